"""The demo on a real Prefect: two flows, the same two repositories, and a flow run that is killed in its section.

Prefect is the one of the tests (`tests/servers/prefect.py`): a server and a process worker, in an environment of their
own. The oracle and Prefect's own API show what happened, not what flow runs report of themselves.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from examples.publishing.demo.acts import Finding, judged, say, unharmed
from examples.publishing.demo.environments import Environment
from examples.publishing.demo.faults import Part
from examples.publishing.demo.flow_runs import Api, FlowRun, Said, WorkerLog
from examples.publishing.demo.orchestrated import (
    DOOMED,
    Course,
    a_home,
    apart,
    cleared,
    doomed,
    enter,
    free,
    paced,
    play,
    settings,
)
from examples.publishing.demo.party import READY_WITHIN, WAITING, Orchestrated, Scene, note_wait, tokens, until
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.events import Event, EventKind
from examples.publishing.runner import FORMATS, Job
from tests.servers.base import dies_with_us
from tests.servers.prefect import PrefectServer, Worker, told

PREFECT = Environment("prefect", "3.8")
FLOWS = {"tools": "publish_tools", "services": "publish_services"}
DEPLOYMENT = "demo"
POOL = "publishing"
AWAITING = "AwaitingLock"
KEY = re.compile(r"(?:waiting for|the lease of .* on|acquired) '(?P<key>[^']+)'")
LOST = "the lease of "
LINGER = 120.0
PATIENCE = 240.0


class Stage:
    """A Prefect server, a process worker, a client of the API, and the output of the worker's flow runs.

    more: environment of all its processes.
    """

    def __init__(self, theatre: Theatre, home: Path, more: Mapping[str, str]) -> None:
        self._home = home
        # a worker leaves folders behind, and so does a killed flow run
        self._ours = {**settings(theatre, home / "tmp"), **more}
        self._server = PrefectServer(home / "server", more, PREFECT.python)
        self._worker = Worker(home / "worker", self._server, POOL, settings=self._ours, python=PREFECT.python)
        self.api = Api(self._server.url)
        self.log = WorkerLog(self._worker.directory / "log")

    def starting(self) -> Generator[None, None, None]:
        """Start it, and yield wherever it waits; closing the generator stops it."""
        self._server.launch()
        yield from until(lambda: _is_up(self._server), "Prefect's server does not serve", READY_WITHIN)
        _pool(self._server)
        self._worker.launch()
        yield from self._deploying()
        yield from until(lambda: _is_up(self._worker), "Prefect's worker is not ready", READY_WITHIN)

    def stop(self) -> None:
        """Stop it, and all processes that it started."""
        self.api.close()
        for one in (self._worker, self._server):
            one.stop()
            if one.process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)

    def _deploying(self) -> Iterator[None]:
        """Deploy the flows as their author would."""
        with (self._home / "deploy.log").open("wb") as log:
            deploying = subprocess.Popen(
                [
                    *dies_with_us(),
                    str(PREFECT.python),
                    *("-m", "examples.publishing.prefect_flow", "--deploy", POOL),
                ],
                env={**os.environ, **told(self._home / "author", self._server.url), **self._ours},
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield from until(lambda: deploying.poll() is not None, "the flows were not deployed", READY_WITHIN)
        finally:
            deploying.kill()
            status = deploying.wait()
        if status:
            raise RuntimeError(f"the flows were not deployed:\n{(self._home / 'deploy.log').read_text()[-3000:]}")


@contextmanager
def a_prefect(theatre: Theatre, findings: Sequence[Finding]) -> Iterator[Stage]:
    """Run a Prefect whose flows publish to the demo's repositories; its home is made by `a_home`."""
    with a_home(theatre, "demo-prefect", findings) as home:
        theatre.board.act("Before: a real Prefect, all of it on this machine")
        theatre.board.note("starting a server and a process worker")
        started = time.monotonic()
        stage = Stage(theatre, home, {})
        try:
            for _ in stage.starting():
                time.sleep(0.05)
            theatre.board.note(
                f"Prefect {PREFECT.installed('prefect')} runs after {time.monotonic() - started:.0f} s, with the flows"
                f" {' and '.join(FLOWS.values())}"
            )
            yield stage
        finally:
            stage.stop()


def two_flows(theatre: Theatre, stage: Stage, ledger: Ledger) -> list[Finding]:
    """Two flows publish to both repositories at once, and one loses its process with a version half written."""
    theatre.board.act("Act 1: two flows publish to both repositories; a flow run is killed in mid-section")
    jobs = dict(zip(FLOWS, theatre.jobs("", tuple(FLOWS)), strict=True))
    attempted(ledger, tuple(jobs.values()))
    paces = {name: paced(job, doomed(name, LINGER)) for name, job in jobs.items()}
    seen = Play(theatre, stage, ledger, FLOWS, jobs, paces)
    with Reader(theatre, ledger, pause=1.0) as reader:
        play(seen, theatre, seen.course, list(FLOWS), PATIENCE + 60 * theatre.pace)
    findings = [
        _repaired(seen),
        _awaited(seen),
        cleared(seen.course),
        # the killed one held the lock of apt, and another one held it for its packages
        *(apart(seen.course, kind, len(FLOWS) + (kind == "apt")) for kind in FORMATS),
        free(theatre),
    ]
    for finding in findings:
        say(theatre, finding)
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


@dataclass(slots=True)
class Play:
    """Some runs in this Prefect, by name; flows, jobs and paces have the same names. awaited: the owner that each
    waited for.

    heir: our name of a run that the automation started, and that repeats another; "" for Prefect's name.
    """

    theatre: Theatre
    stage: Stage
    ledger: Ledger
    flows: Mapping[str, str]
    jobs: Mapping[str, Job]
    paces: Mapping[str, Mapping[str, float]]
    course: Course = field(default_factory=Course)
    heir: str = ""
    runs: Mapping[str, FlowRun] = field(default_factory=dict)
    awaited: dict[str, str] = field(default_factory=dict)
    shown: set[tuple[str, str]] = field(default_factory=set)

    def start(self, name: str) -> None:
        """Start a run of the flow's deployment."""
        parameters = {"packages": [str(path) for path in self.jobs[name].files], "pace": dict(self.paces[name])}
        self.stage.api.start(f"{self.flows[name].replace('_', '-')}/{DEPLOYMENT}", name, parameters)

    def are_over(self) -> bool:
        """Return whether all have ended, and a crashed one has been followed by another that has ended."""
        self.runs = self.stage.api.runs()
        other = self.another()
        ours = [self.runs[name] for name in self.flows if name in self.runs]
        is_followed = other is not None and other.has_ended
        return all(one.has_ended and (one.state_type != "CRASHED" or is_followed) for one in ours)

    def look(self) -> None:
        """Read the output of the runs, and the states of waiting and crashed runs in Prefect's API."""
        self.runs = self.stage.api.runs()
        for said in self.stage.log.news():
            self._take(said)
        for name, run in self.runs.items():
            if run.state == AWAITING:
                self._show(name, f"{AWAITING}: {run.message}")
                note_wait(self.awaited, name, run.message)
            elif run.state_type == "CRASHED" and run.deployment:
                self._show(name, f"{run.state}: {run.message}")

    def kill(self, name: str, repository: str) -> str:  # noqa: ARG002 # one process publishes to both
        """Kill the process of the flow run."""
        pid = self.process(name)
        os.kill(pid, signal.SIGKILL)
        return f"process {pid}, the flow run {name}"

    def process(self, name: str) -> int:
        """Return the process of a run; LookupError if Prefect does not know it."""
        pid = self.runs[name].pid
        if pid is None:
            raise LookupError(f"Prefect does not know the process of the run {name}")
        return pid

    def states(self) -> object:
        """Return the runs."""
        return list(self.runs.values())

    def another(self) -> FlowRun | None:
        """Return the run that the automation started for the killed one."""
        others = (one for name, one in self.runs.items() if one.deployment and name not in self.flows)
        return next(others, None)

    def _show(self, name: str, text: str) -> None:
        if (name, text) not in self.shown:
            self.shown.add((name, text))
            self.theatre.board.note(f"Prefect shows {name} {text}", "dim")

    def _take(self, said: Said) -> None:
        if said.event is not None:
            self._enter(said.event)
            return
        kind = found["key"] if (found := KEY.match(said.text)) else ""
        run = said.run.removesuffix(f"-{kind}")
        if said.text.startswith(WAITING):
            self._enter(Event(run, kind, EventKind.WAITING))
        elif said.text.startswith(LOST):
            self._enter(Event(run, kind, EventKind.REFUSED, text=said.text))

    def _enter(self, event: Event) -> None:
        # The automation's run has a name made up by Prefect, and the packages of the killed one.
        name = event.run if event.run in self.jobs else self.heir or event.run
        job = self.jobs.get(name, next(iter(self.jobs.values())))
        enter(self.theatre, self.ledger, self.course, job, replace(event, run=name))


class PrefectParty(Orchestrated[Play]):
    """A run of a flow in its own Prefect."""

    name = "prefect"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._stage: Stage | None = None

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return PREFECT.python

    @property
    def title(self) -> str:
        """Return its version."""
        return f"Prefect {PREFECT.installed('prefect')}"

    @property
    def awaited(self) -> str:
        """Return the message of its state AwaitingLock."""
        return next((said for said in self._play.awaited.values() if said), "")

    def starting(self) -> Generator[None, None, None]:
        """Start a server and a process worker, and deploy the flows."""
        scene = self._scene
        stage = self._stage = Stage(scene.theatre, scene.home, scene.settings)
        yield from stage.starting()
        flows, jobs, paces = {self.name: FLOWS["tools"]}, {self.name: scene.job}, {self.name: scene.pace}
        self._play = Play(scene.theatre, stage, scene.ledger, flows, jobs, paces, scene.course, self.name)

    def stop(self) -> None:
        """Stop all of it."""
        if self._stage is not None:
            self._stage.stop()

    def pause(self, repository: str) -> str:  # noqa: ARG002 # one process publishes to both
        """Stop the process of the flow run (SIGSTOP); its worker continues."""
        return self._pause(self._play.process(self.name), "the flow run")

    def mend(self) -> str:
        """Do nothing: the section's own retry acquires another lease."""
        return ""

    def findings(self) -> list[Finding]:
        """Read Prefect's API, and judge."""
        self._play.are_over()
        run, other = self._play.runs[self.name], self._play.another()
        moment, part = self._scene.moment, self._scene.part
        if moment is None or part is Part.UNHARMED:
            return [Finding(run.state_type == "COMPLETED", f"Prefect says of its run: {run.state}")]
        held = tokens(self._scene.course, self.name, moment.repository)
        said = f"it held with the tokens {' and '.join(map(str, held))}"
        if part is Part.PAUSED:
            is_good = run.state_type == "COMPLETED" and other is None and len(held) == 2
            return [Finding(is_good, f"Prefect says of its run, whose section was tried again: {run.state}; {said}")]
        end = "none" if other is None else other.state
        is_good = run.state_type == "CRASHED" and end == "Completed" and len(held) == 2
        text = f"Prefect says of its run: {run.state}, and of the one that an automation started for it: {end}"
        return [Finding(is_good, f"{text}; {said}")]


def _repaired(seen: Play) -> Finding:
    other = seen.another()
    runs = {name: seen.runs[name] for name in FLOWS} | ({} if other is None else {other.name: other})
    is_good = (
        [one.state_type for one in runs.values()] == ["CRASHED", "COMPLETED", "COMPLETED"]
        and seen.course.killed is not None
        and other is not None
        and other.deployment == seen.runs[DOOMED].deployment
    )
    states = ", ".join(f"{name} {one.state}" for name, one in runs.items())
    return Finding(is_good, f"the killed run was followed by another, which an automation started: {states}")


def _awaited(seen: Play) -> Finding:
    found = {name: said for name, said in seen.awaited.items() if "prefect:" in said}
    said = "; ".join(f"{name}: {text}" for name, text in found.items())
    return Finding(bool(found), f"who waits is {AWAITING}, by Prefect's API; {said or 'nobody was seen to wait'}")


def _pool(server: PrefectServer) -> None:
    """Create the pool; its worker does the rest."""
    pool = {"name": POOL, "type": "process"}
    httpx.post(f"{server.url}/work_pools/", json=pool, timeout=30.0, trust_env=False).raise_for_status()


def _is_up(one: PrefectServer | Worker) -> bool:
    """Return whether it is ready; RuntimeError if it has ended instead."""
    if not one.is_running:
        raise RuntimeError(f"Prefect did not come up\n{one.log()}")
    return one.is_ready()
