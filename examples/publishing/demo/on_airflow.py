"""The demo on a real Airflow: two DAGs, the same two repositories, and a worker that is killed in its section.

Airflow is the one of the tests (`tests/servers/airflow.py`): scheduler, triggerer, DAG processor and API server on a
PostgreSQL of its own. The oracle and Airflow's own tables show what happened, not what tasks report of themselves.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_lockstead.config import KEEPER_TTL_MIN
from examples.publishing.demo.acts import Finding, judged, say, unharmed
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
from examples.publishing.demo.party import READY_WITHIN, WAITING, Orchestrated, Scene, note_wait, tokens, until
from examples.publishing.demo.task_logs import Said, TaskLogs
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.events import Event, EventKind
from examples.publishing.runner import FORMATS, Job
from tests.servers.airflow import ENDED, Airflow, Run

AIRFLOW = Environment("airflow", "3.3")
DAG_FILE = Path(__file__).parents[1] / "airflow_dag.py"
DAGS = {"tools": "publish_tools", "services": "publish_services"}
LOST = re.compile(r"lease lost: .*? reason \w+: (?P<why>.*); the body (?:was stopped|raised)")
"""The error of a task that was running when its lease was lost.

The task's own report may be incomplete: the loss interrupts it anywhere.
"""
LINGER = 120.0
PATIENCE = 300.0

KEEPERLESS_TTL = 30.0
"""The ttl in seconds of a group without a keeper: longer than the pause between two tasks on a busy machine."""


def airflow_at(theatre: Theatre, home: Path, ttl: float, more: Mapping[str, str]) -> Airflow:
    """Return an Airflow, not started, whose DAGs publish to the demo's repositories. more: additional settings."""
    (home / "dags").mkdir()
    shutil.copy(DAG_FILE, home / "dags" / "publishing.py")
    ours = settings(theatre, home / "tmp")
    told = {
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_VAR_PUBLISHING_REPO": ours.pop("PUBLISHING_REPO"),
        "AIRFLOW_VAR_PUBLISHING_SECRET_KEY": ours.pop("PUBLISHING_SECRET_KEY"),
        **ours,
        "PUBLISHING_TTL": f"{ttl:g}",
        "PUBLISHING_KEEPER": "yes" if ttl >= KEEPER_TTL_MIN.default else "no",
        **more,
    }
    return Airflow(AIRFLOW.version, home, told=told)


@contextmanager
def an_airflow(theatre: Theatre, findings: Sequence[Finding]) -> Iterator[Airflow]:
    """Run an Airflow whose DAGs publish to the demo's repositories; its home is made by `a_home`."""
    with a_home(theatre, "demo-airflow", findings) as home:
        theatre.board.act("Before: a real Airflow, all of it on this machine")
        theatre.board.note("starting PostgreSQL, scheduler, triggerer, DAG processor and API server")
        started = time.monotonic()
        with airflow_at(theatre, home, theatre.ttl, {}) as airflow:
            airflow.until(lambda: set(DAGS.values()) <= _known(airflow), "the DAGs are not there")
            theatre.board.note(
                f"Airflow {airflow.version.full} runs after {time.monotonic() - started:.0f} s, with the DAGs"
                f" {' and '.join(DAGS.values())}; to look at while it lasts: http://127.0.0.1:{airflow.port}"
            )
            yield airflow


def two_dags(theatre: Theatre, airflow: Airflow, ledger: Ledger) -> list[Finding]:
    """Two DAGs publish to both repositories at once, and one loses its worker with a version half written."""
    theatre.board.act("Act 1: two DAGs publish to both repositories; a worker is killed in mid-section")
    jobs = dict(zip(DAGS, theatre.jobs("", tuple(DAGS)), strict=True))
    attempted(ledger, tuple(jobs.values()))
    paces = {name: paced(job, doomed(name, LINGER)) for name, job in jobs.items()}
    seen = Play(theatre, airflow, ledger, DAGS, jobs, paces)
    course = seen.course
    with Reader(theatre, ledger, pause=1.0) as reader:
        play(seen, theatre, course, list(DAGS), PATIENCE + 60 * theatre.pace)
    states = {name: airflow.run_state(run) for name, run in seen.runs.items()}
    findings = [
        Finding(set(states.values()) == {"success"}, f"Airflow says of the runs: {listed(states)}"),
        _retried(
            airflow, seen.runs[DOOMED], "apt.build", one_lease=len(course.of(EventKind.HOLDS, "apt")) == len(DAGS)
        ),
        cleared(course, by=DOOMED),
        *(apart(course, kind, len(DAGS)) for kind in FORMATS),
        free(theatre),
    ]
    for finding in findings:
        say(theatre, finding)
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


@dataclass(slots=True)
class Play:
    """Some runs in this Airflow, by name; dags, jobs and paces have the same names.

    at: the latest task of each run on each repository. awaited: the owner that each one waited for.
    """

    theatre: Theatre
    airflow: Airflow
    ledger: Ledger
    dags: Mapping[str, str]
    jobs: Mapping[str, Job]
    paces: Mapping[str, Mapping[str, float]]
    course: Course = field(default_factory=Course)
    logs: TaskLogs = field(init=False)
    runs: dict[str, Run] = field(default_factory=dict)
    awaited: dict[str, str] = field(default_factory=dict)
    at: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.logs = TaskLogs(self.airflow.home / "logs")

    def start(self, name: str) -> None:
        """Trigger the DAG of a run."""
        conf = {"packages": [str(path) for path in self.jobs[name].files], "pace": dict(self.paces[name])}
        self.runs[name] = self.airflow.trigger(self.dags[name], name, conf)

    def are_over(self) -> bool:
        """Return whether the runs have ended."""
        return all(self.airflow.run_state(run) in ENDED for run in self.runs.values())

    def look(self) -> None:
        """Read new lines of the logs."""
        for said in self.logs.news():
            self._take(said)

    def kill(self, name: str, repository: str) -> str:
        """Kill the process of the task that works on a repository."""
        task = self.at[name, repository]
        return f"process {self.airflow.kill_body(self.runs[name], task)}, the body of {task}"

    def states(self) -> object:
        """Return the tasks of the runs."""
        return {name: self.airflow.tasks(run) for name, run in self.runs.items()}

    def _take(self, said: Said) -> None:
        event = said.event
        if event is not None:
            self.at[said.run, event.repository] = said.task
        else:
            self.theatre.board.note(f"{said.run}, {said.task}: {said.text}", "dim")
            kind = said.task.partition(".")[0]
            if said.text.startswith(WAITING):
                note_wait(self.awaited, said.run, said.text)
                event = Event(said.run, kind, EventKind.WAITING)
            elif found := LOST.match(said.text):
                event = Event(said.run, kind, EventKind.REFUSED, text=found["why"])
        if event is not None:
            enter(self.theatre, self.ledger, self.course, self.jobs[said.run], event)


class AirflowParty(Orchestrated[Play]):
    """A run of a DAG in its own Airflow."""

    name = "airflow"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._airflow: Airflow | None = None
        self._killed = ""
        self._failed = ""

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return AIRFLOW.python

    @property
    def title(self) -> str:
        """Return its version and address."""
        return f"Airflow {AIRFLOW.installed('apache_airflow')}, http://127.0.0.1:{self._started.port}"

    def starting(self) -> Generator[None, None, None]:
        """Start scheduler, triggerer, DAG processor and API server."""
        scene = self._scene
        # a keeper, in the triggerer, would renew the lease of a paused task
        has_keeper = scene.part is not Part.PAUSED
        ttl = KEEPER_TTL_MIN.default if has_keeper else max(scene.theatre.ttl, KEEPERLESS_TTL)
        airflow = self._airflow = airflow_at(scene.theatre, scene.home, ttl, scene.settings)
        yield from airflow.starting()
        yield from until(lambda: DAGS["tools"] in _known(airflow), "Airflow does not know the DAGs", READY_WITHIN)
        dags, jobs, paces = {self.name: DAGS["tools"]}, {self.name: scene.job}, {self.name: scene.pace}
        self._play = Play(scene.theatre, airflow, scene.ledger, dags, jobs, paces, scene.course)

    def stop(self) -> None:
        """Stop all of it."""
        if self._airflow is not None:
            self._airflow.stop()

    def is_over(self) -> bool:
        """Return whether the run has ended; one that was paused and has failed will be cleared first."""
        state = self._started.run_state(self._run)
        is_to_be_cleared = self._scene.part is Part.PAUSED and not self._failed
        return state == "success" or (state == "failed" and not is_to_be_cleared)

    def kill(self, repository: str) -> str:
        """Kill the process of the task."""
        self._killed = self._play.at[self.name, repository]
        return super().kill(repository)

    def pause(self, repository: str) -> str:
        """Stop the process of the task (SIGSTOP); its supervisor continues."""
        task = self._play.at[self.name, repository]
        return self._pause(self._started.body_of(self._run, task), f"the body of {task}")

    def mend(self) -> str:
        """Clear the group of a failed run, as a person would after a look."""
        moment = self._scene.moment
        if self._failed or moment is None or self._started.run_state(self._run) != "failed":
            return ""
        failed = [one.task_id for one in self._started.tasks(self._run) if one.state == "failed"]
        self._failed = ", ".join(failed)
        self._started.clear(self._run, [f"{moment.repository}.lock_acquire"], downstream=True)
        return f"Airflow shows the run failed, by {self._failed}; {moment.repository} is cleared from lock_acquire on"

    def findings(self) -> list[Finding]:
        """Read Airflow's tables, and judge."""
        state, moment, course = self._started.run_state(self._run), self._scene.moment, self._scene.course
        if moment is None or self._scene.part is Part.UNHARMED:
            return [Finding(state == "success", f"Airflow says of its run: {state}")]
        held = tokens(course, self.name, moment.repository)
        if self._scene.part is Part.KILLED:
            retried = _retried(self._started, self._run, self._killed, one_lease=len(held) == 1)
            return [Finding(state == "success", f"Airflow says of its run: {state}"), retried]
        text = f"Airflow says of its run: failed by {self._failed or 'nothing'}, and when that was cleared {state}"
        is_good = bool(self._failed) and state == "success" and len(held) == 2
        return [Finding(is_good, f"{text}; it held with the tokens {' and '.join(map(str, held))}")]

    @property
    def _started(self) -> Airflow:
        if self._airflow is None:
            raise RuntimeError("Airflow has not been started")
        return self._airflow

    @property
    def _run(self) -> Run:
        return self._play.runs[self.name]


def _retried(airflow: Airflow, run: Run, task: str, *, one_lease: bool) -> Finding:
    """Return whether the killed task was retried; the task that reports the token ran once for each lease."""
    tries = airflow.task(run, task).try_number if task else 0
    return Finding(tries > 1 and one_lease, f"the killed task was tried {tries} times, under one and the same lease")


def _known(airflow: Airflow) -> set[str]:
    return {row[0] for row in airflow.asked("SELECT dag_id FROM serialized_dag")}
