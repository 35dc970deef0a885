"""The demo on a real Dagster: two jobs, the same two repositories, and a run whose worker is killed in its section.

Dagster is `dagster dev` (`dagster_dev.py`), in an environment of its own. The oracle and Dagster's own event log show
what happened, not what runs report of themselves.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from examples.publishing.dagster_launch import JOBS, run_config
from examples.publishing.demo.acts import Finding, judged, say, unharmed
from examples.publishing.demo.dagster_dev import WORKER, DagsterDev, DagsterRun, Told
from examples.publishing.demo.environments import ROOT, Environment
from examples.publishing.demo.faults import Part
from examples.publishing.demo.orchestrated import (
    DOOMED,
    Course,
    a_home,
    apart,
    cleared,
    doomed,
    enter,
    free,
    listed,
    paced,
    play,
    settings,
)
from examples.publishing.demo.party import Orchestrated, Scene, note_wait, tokens
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.events import Event, EventKind
from examples.publishing.runner import FORMATS, Job

DAGSTER = Environment("dagster", "1.13")
MODULE = "examples.publishing.dagster_definitions"
RUNS = dict(zip(("tools", "services"), JOBS, strict=True))
OF_THE_LOCK = re.compile(r"(waiting: |acquired: |lost: )")
"""The owner that a run waits for, the end of the wait, and a lost lease."""

WAITING = "waiting: "
LOST = "lost: "
TOKEN = "lockstead/token"
LINGER = 240.0
PATIENCE = 420.0


def dagster_at(theatre: Theatre, home: Path, more: Mapping[str, str]) -> DagsterDev:
    """Return a Dagster, not started, whose jobs publish to the demo's repositories. more: environment of its
    processes."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**settings(theatre, home / "tmp"), "PYTHONPATH": path, **more}
    return DagsterDev(home, MODULE, environment, DAGSTER.python)


@contextmanager
def a_dagster(theatre: Theatre, findings: Sequence[Finding]) -> Iterator[DagsterDev]:
    """Run a Dagster whose jobs publish to the demo's repositories; its home is made by `a_home`."""
    with a_home(theatre, "demo-dagster", findings) as home:
        theatre.board.act("Before: a real Dagster, all of it on this machine")
        theatre.board.note("starting webserver, daemon and code server")
        started = time.monotonic()
        with dagster_at(theatre, home, {}) as dagster:
            theatre.board.note(
                f"Dagster {DAGSTER.installed('dagster')} runs after {time.monotonic() - started:.0f} s, with the jobs"
                f" {' and '.join(JOBS)}; to look at while it lasts: http://127.0.0.1:{dagster.port}"
            )
            yield dagster


def two_jobs(theatre: Theatre, dagster: DagsterDev, ledger: Ledger) -> list[Finding]:
    """Two jobs publish to both repositories at once, and one loses its run worker with a version half written."""
    theatre.board.act("Act 1: two jobs publish to both repositories; a run worker is killed in mid-section")
    jobs = dict(zip(RUNS, theatre.jobs("", tuple(RUNS)), strict=True))
    attempted(ledger, tuple(jobs.values()))
    paces = {name: paced(job, doomed(name, LINGER)) for name, job in jobs.items()}
    seen = Play(theatre, dagster, ledger, RUNS, jobs, paces, frozenset({DOOMED}), "-again")
    with Reader(theatre, ledger, pause=1.0) as reader:
        play(seen, theatre, seen.course, list(RUNS), PATIENCE + 60 * theatre.pace)
    findings = [
        _repaired(seen),
        _awaited(seen),
        _handed_over(seen),
        cleared(seen.course),
        *(apart(seen.course, kind, _holders(seen.course, kind)) for kind in FORMATS),
        *(_shown(seen, kind) for kind in FORMATS),
        free(theatre),
    ]
    for finding in findings:
        say(theatre, finding)
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


@dataclass(slots=True)
class Play:
    """Some runs in this Dagster, by name; launched, jobs and paces have the same names.

    launched: the names of the jobs in Dagster. followed: runs that are repeated by another run, which has the same name
    with a suffix. names: of all runs, by id. awaited: the owner that each one waited for. workers: the process of the
    first run of each name; steps: those of the steps.
    """

    theatre: Theatre
    dagster: DagsterDev
    ledger: Ledger
    launched: Mapping[str, str]
    jobs: Mapping[str, Job]
    paces: Mapping[str, Mapping[str, float]]
    followed: frozenset[str]
    suffix: str
    course: Course = field(default_factory=Course)
    runs: Mapping[str, DagsterRun] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    awaited: dict[str, str] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    steps: dict[tuple[str, str], int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Launch a run of the job."""
        config = run_config([str(path) for path in self.jobs[name].files], self.paces[name])
        self.names[self.dagster.launch(self.launched[name], config)] = name

    def are_over(self) -> bool:
        """Return whether all runs have ended, including those that repeat others."""
        runs = self.dagster.runs()
        repeated = {one.parent for one in runs.values()}
        return all(one.has_ended for one in runs.values()) and all(
            one.id in repeated for one in runs.values() if not one.parent and self.names.get(one.id) in self.followed
        )

    def look(self) -> None:
        """Read the event logs of all runs."""
        self.runs = self.dagster.runs()
        for one in self.runs.values():
            # A run that repeats another, launched by Dagster's daemon or by hand, has its packages.
            self.names.setdefault(one.id, f"{self.names.get(one.parent, one.job)}{self.suffix}")
            for told in self.dagster.news(one.id):
                self._take(one, told)

    def kill(self, name: str, repository: str) -> str:  # noqa: ARG002 # one worker runs the steps of both
        """Kill the run worker."""
        if name not in self.workers:
            raise LookupError(f"Dagster does not tell the process of the run {name}")
        os.kill(self.workers[name], signal.SIGKILL)
        return f"process {self.workers[name]}, the run worker of {name}"

    def states(self) -> object:
        """Return the state of each run."""
        return {self.names.get(one.id, one.id): one.status for one in self.runs.values()}

    def _take(self, run: DagsterRun, told: Told) -> None:
        name, kind = self.names[run.id], told.step.partition(".")[0]
        if found := WORKER.search(told.message):
            self.workers.setdefault(name, int(found[1]))
        if told.pid and "in subprocess" in told.message:
            self.steps[name, told.step] = int(told.pid)
        event: Event | None = None
        try:
            event = replace(Event.from_line(told.message), run=name)
        except ValueError:
            if OF_THE_LOCK.match(told.message):
                self.theatre.board.note(f"{name}, {told.step}: {told.message}", "dim")
                if told.message.startswith(WAITING):
                    note_wait(self.awaited, name, told.message)
                    event = Event(name, kind, EventKind.WAITING)
                elif told.message.startswith(LOST):
                    event = Event(name, kind, EventKind.REFUSED, text=told.message.removeprefix(LOST))
        if event is not None:
            enter(self.theatre, self.ledger, self.course, self.jobs[name.removesuffix(self.suffix)], event)


class DagsterParty(Orchestrated[Play]):
    """A run of a job in its own Dagster."""

    name = "dagster"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._dagster: DagsterDev | None = None
        self._again = ""

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return DAGSTER.python

    @property
    def title(self) -> str:
        """Return its version and address."""
        return f"Dagster {DAGSTER.installed('dagster')}, http://127.0.0.1:{self._started.port}"

    def starting(self) -> Generator[None, None, None]:
        """Start webserver, daemon and code server."""
        scene = self._scene
        dagster = self._dagster = dagster_at(scene.theatre, scene.home, scene.settings)
        yield from dagster.starting()
        followed = frozenset() if scene.part is Part.UNHARMED else frozenset({self.name})
        launched, jobs, paces = {self.name: JOBS[0]}, {self.name: scene.job}, {self.name: scene.pace}
        self._play = Play(scene.theatre, dagster, scene.ledger, launched, jobs, paces, followed, "", scene.course)

    def stop(self) -> None:
        """Stop all of it."""
        if self._dagster is not None:
            self._dagster.stop()

    def pause(self, repository: str) -> str:
        """Stop the process of the step (SIGSTOP); the run worker continues."""
        step = f"{repository}.publish_{repository}"
        return self._pause(self._play.steps[self.name, step], f"the step {step}")

    def mend(self) -> str:
        """Re-execute a failed run from failure, as a person would after a look."""
        failed = [one.id for one in self._play.runs.values() if not one.parent and one.status == "FAILURE"]
        if self._again or not failed:
            return ""
        self._again = self._started.execute_again(failed[0])
        return "Dagster shows the run FAILURE; it is executed again from where it failed"

    def findings(self) -> list[Finding]:
        """Read Dagster's GraphQL API, and judge."""
        runs = sorted(self._started.runs().values(), key=lambda one: bool(one.parent))
        states = [one.status for one in runs]
        moment, part = self._scene.moment, self._scene.part
        if moment is None or part is Part.UNHARMED:
            return [Finding(states == ["SUCCESS"], f"Dagster says of its run: {', '.join(states)}")]
        by = "which its daemon launched" if part is Part.KILLED else "from where it failed"
        is_by = bool(self._again) == (part is Part.PAUSED)
        held = tokens(self._scene.course, self.name, moment.repository)
        is_good = states == ["FAILURE", "SUCCESS"] and is_by and len(held) == 2
        text = f"Dagster says of its run: {states[0]}, and of the one after it, {by}: {', '.join(states[1:])}"
        return [Finding(is_good, f"{text}; it held with the tokens {' and '.join(map(str, held))}")]

    @property
    def _started(self) -> DagsterDev:
        if self._dagster is None:
            raise RuntimeError("Dagster has not been started")
        return self._dagster


def _repaired(seen: Play) -> Finding:
    found = {seen.names[one.id]: one.status for one in seen.runs.values()}
    states = {name: found[name] for name in sorted(found, key=lambda name: (name not in RUNS, name != DOOMED, name))}
    wanted = {"services": "SUCCESS", "tools": "FAILURE", "tools-again": "SUCCESS"}
    is_good = seen.course.killed is not None and states == wanted
    return Finding(is_good, f"the killed run was followed by another, which the daemon launched: {listed(states)}")


def _holders(course: Course, kind: str) -> int:
    """Return how often a lock must have been held: what the killed run held and did not finish is held again."""
    return len(RUNS) + all(one.run != DOOMED for one in course.of(EventKind.PUBLISHED, kind))


def _awaited(seen: Play) -> Finding:
    found = {name: said for name, said in seen.awaited.items() if "dagster:" in said}
    said = "; ".join(f"{name}: {text}" for name, text in found.items())
    return Finding(bool(found), f"who waits says so in Dagster's event log; {said or 'nobody was seen to wait'}")


def _handed_over(seen: Play) -> Finding:
    """Return whether the orphaned step ended by itself, and did not keep the lock."""
    killed_at = seen.course.killed.at if seen.course.killed else time.monotonic()
    after = [one.at - killed_at for one in seen.course.of(EventKind.HOLDS, "apt") if one.run != DOOMED]
    waited, ttl = min(after, default=seen.theatre.ttl), seen.theatre.ttl
    text = f"the step that it left behind stopped: another held the lock after {waited:.1f} s, and its ttl is {ttl:g} s"
    return Finding(0 < waited < ttl / 2, text)


def _shown(seen: Play, kind: str) -> Finding:
    """Return whether every materialization shows the token under which it was published."""
    held = {one.run: str(one.number) for one in seen.course.of(EventKind.HOLDS, kind)}
    shown = {seen.names[run]: entries.get(TOKEN, "") for run, entries in seen.dagster.metadata(kind)}
    is_good = bool(shown) and all(held.get(run) == token for run, token in shown.items())
    return Finding(is_good, f"{kind}: Dagster shows each version with its token: {listed(shown)}")
