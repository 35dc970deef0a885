"""The demo on a real Prefect: two flows, the same two repositories, and a flow run that dies in mid-section.

Prefect is the one that the tests use (`tests/servers/prefect.py`): a server and a process worker, in the environment
that this runs in. The oracle and Prefect's own API say what happened, not what flow runs say of themselves.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

import lockstead
from examples.publishing.conversation import PHASES
from examples.publishing.demo.acts import Finding, judged, say, unharmed
from examples.publishing.demo.flow_runs import Api, FlowRun, Said, WorkerLog
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.events import Event, What
from examples.publishing.runner import FORMATS, Job
from tests.servers.base import dies_with_us
from tests.servers.prefect import ROOT, PrefectServer, Worker, told

FLOWS = {"tools": "publish_tools", "services": "publish_services"}
DEPLOYMENT = "demo"
POOL = "publishing"
DOOMED = "tools"
AWAITING = "AwaitingLock"
LINGER = 120.0
PATIENCE = 240.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A Prefect at work: its API, and what its worker's flow runs write."""

    api: Api
    log: WorkerLog


@dataclass(slots=True)
class Course:
    """What was seen of the runs, by their names. killed: the process that was. awaited: whom each one waited for."""

    runs: Mapping[str, FlowRun] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    killed: int | None = None
    crashed: bool = False
    awaited: dict[str, str] = field(default_factory=dict)

    def of(self, what: What, repository: str) -> list[Event]:
        """Give the events of a kind on one repository, in their order."""
        found = [one for one in self.events if (one.what, one.repository) == (what, repository)]
        return sorted(found, key=lambda one: one.at)


@contextmanager
def a_prefect(theatre: Theatre, findings: Sequence[Finding]) -> Iterator[Stage]:
    """Run a Prefect whose flows publish to the theatre's repositories. Its home is below build/, and goes with it.

    It stays, for its logs, if the block fails or made a finding that is not good.
    """
    home = ROOT / "build" / "demo-prefect" / uuid.uuid4().hex[:8]
    (home / "tmp").mkdir(parents=True)
    ours = {
        # a worker leaves folders behind, and a killed flow run its own
        "TMPDIR": str(home / "tmp"),
        "PUBLISHING_REPO": f"gs://{theatre.place.bucket}/{theatre.place.prefix}".rstrip("/"),
        "PUBLISHING_SECRET_KEY": theatre.secret_key,
        "PUBLISHING_TTL": f"{theatre.ttl:g}",
    }
    theatre.board.act("Before: a real Prefect, all of it on this machine")
    theatre.board.note("starting a server and a process worker")
    started = time.monotonic()
    is_wanted = False
    server = PrefectServer(home / "server")
    worker = Worker(home / "worker", server, POOL, settings=ours)
    try:
        server.start()
        _pool(server)
        worker.launch()
        _deploy(home, server, ours)
        worker.until(worker.is_ready, "it did not come up")
        theatre.board.note(
            f"Prefect {_version(server)} runs after {time.monotonic() - started:.0f} s, with the flows"
            f" {' and '.join(FLOWS.values())}"
        )
        with Api(server.url) as api:
            yield Stage(api, WorkerLog(worker.directory / "log"))
        is_wanted = not all(finding.is_good for finding in findings)
    except Exception:
        is_wanted = True
        raise
    finally:
        _end(worker)
        _end(server)
        if is_wanted:
            theatre.board.note(f"its logs are in {home}", "yellow")
        else:
            shutil.rmtree(home, ignore_errors=True)


def two_flows(theatre: Theatre, stage: Stage, ledger: Ledger) -> list[Finding]:
    """Two flows publish to both repositories at once, and one loses its process with a version half written."""
    theatre.board.act("Act 1: two flows publish to both repositories; a flow run is killed in mid-section")
    jobs = dict(zip(FLOWS, theatre.jobs("", tuple(FLOWS)), strict=True))
    attempted(ledger, tuple(jobs.values()))
    with Reader(theatre, ledger, pause=1.0) as reader:
        course = _play(theatre, stage, ledger, jobs)
    findings = [
        _repaired(course),
        _awaited(course),
        Finding(
            any(one.pruned for one in course.of(What.PUBLISHED, "apt")),
            "the half version that the killed one left was cleared away",
        ),
        *(_apart(course, kind) for kind in FORMATS),
        _free(theatre),
    ]
    for finding in findings:
        say(theatre, finding)
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


def _play(theatre: Theatre, stage: Stage, ledger: Ledger, jobs: Mapping[str, Job]) -> Course:
    """Start the runs, the second as soon as the first holds a lock; kill; give what was seen when both have ended."""
    course = Course()
    _start(stage, DOOMED, jobs[DOOMED])
    is_alone = True
    ends_at = time.monotonic() + PATIENCE + 60 * theatre.pace
    while True:
        # Asked before reading, or the last words would be missed.
        course.runs = stage.api.runs()
        for said in stage.log.news():
            _take(theatre, ledger, jobs, course, said)
        _look(theatre, course)
        if not is_alone and _is_over(course):
            return course
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the runs did not end within {PATIENCE:.0f} s: {list(course.runs.values())}")
        if is_alone and course.of(What.HOLDS, "apt"):
            is_alone = False
            for name in FLOWS.keys() - {DOOMED}:
                _start(stage, name, jobs[name])
        time.sleep(0.2)


def _take(theatre: Theatre, ledger: Ledger, jobs: Mapping[str, Job], course: Course, said: Said) -> None:
    if said.event is None:
        theatre.board.note(f"{said.run}: {said.text}", "dim")
        return
    event = said.event
    course.events.append(event)
    # The automation's run has a name that Prefect made up; it has the packages of the one that was killed.
    theatre.note_event(ledger, jobs.get(event.run, jobs[DOOMED]), event)


def _look(theatre: Theatre, course: Course) -> None:
    """Note what Prefect's states say of those who wait, and of the one that was killed."""
    for name, run in course.runs.items():
        if run.state == AWAITING and course.awaited.get(name) != run.message:
            course.awaited[name] = run.message
            theatre.board.note(f"Prefect shows {name} {AWAITING}: {run.message}", "dim")
    if course.killed is None and course.awaited and any(one.phase == "metadata" for one in course.events):
        course.killed = course.runs[DOOMED].pid
        if course.killed is None:
            raise LookupError("Prefect does not know the process of the run that is to be killed")
        os.kill(course.killed, signal.SIGKILL)
        theatre.board.note(
            f"killed: SIGKILL to process {course.killed}, the flow run {DOOMED}, its version half written", "yellow"
        )
    if course.killed is not None and not course.crashed and course.runs[DOOMED].state_type == "CRASHED":
        course.crashed = True
        theatre.board.note(f"Prefect shows {DOOMED} {course.runs[DOOMED].state}: {course.runs[DOOMED].message}", "dim")


def _another(course: Course) -> FlowRun | None:
    """Give the run that the automation started for the killed one."""
    others = (one for name, one in course.runs.items() if one.deployment and name not in FLOWS)
    return next(others, None)


def _is_over(course: Course) -> bool:
    """Tell whether all have ended, and the one that was killed has been followed by another that has."""
    other = _another(course)
    return all(course.runs[name].has_ended for name in FLOWS if name in course.runs) and (
        course.runs[DOOMED].state_type != "CRASHED" or (other is not None and other.has_ended)
    )


def _start(stage: Stage, name: str, job: Job) -> None:
    pace = {f"{kind}/{phase}": job.pace.every for kind in FORMATS for phase in PHASES} if job.pace.every else {}
    if name == DOOMED:
        pace["apt/metadata"] = LINGER + job.pace.every
    parameters = {"packages": [str(path) for path in job.files], "pace": pace}
    stage.api.start(f"{FLOWS[name].replace('_', '-')}/{DEPLOYMENT}", name, parameters)


def _repaired(course: Course) -> Finding:
    other = _another(course)
    runs = {name: course.runs[name] for name in FLOWS} | ({} if other is None else {other.name: other})
    is_good = (
        [one.state_type for one in runs.values()] == ["CRASHED", "COMPLETED", "COMPLETED"]
        and course.killed is not None
        and other is not None
        and other.deployment == course.runs[DOOMED].deployment
    )
    states = ", ".join(f"{name} {one.state}" for name, one in runs.items())
    return Finding(is_good, f"the killed run was followed by another, which an automation started: {states}")


def _awaited(course: Course) -> Finding:
    found = {name: said for name, said in course.awaited.items() if "prefect:" in said}
    said = "; ".join(f"{name}: {text}" for name, text in found.items())
    return Finding(bool(found), f"who waits is {AWAITING}, by Prefect's API; {said or 'nobody was seen to wait'}")


def _apart(course: Course, kind: str) -> Finding:
    """Judge whether one held after the other, with a higher token; the killed one ended by being killed."""
    held = course.of(What.HOLDS, kind)
    ended = [(one.run, one.at) for one in course.of(What.PUBLISHED, kind)]
    are_apart = all(
        (one.number or 0) < (other.number or 0)
        and (
            (kind == "apt" and one is held[0] and one.run == DOOMED)
            or any(run == one.run and one.at <= at <= other.at for run, at in ended)
        )
        for one, other in pairwise(held)
    )
    order = ", then ".join(f"{one.run} with token {one.number}" for one in held)
    is_good = are_apart and len(held) == len(FLOWS) + (kind == "apt")
    return Finding(is_good, f"{kind}: one after the other: {order}")


def _free(theatre: Theatre) -> Finding:
    held = [kind for kind in FORMATS if lockstead.Lock(f"{theatre.lock_url}#{kind}").inspect() is not None]
    return Finding(not held, "both locks are free" if not held else f"still locked: {', '.join(held)}")


def _pool(server: PrefectServer) -> None:
    """Make the pool; its worker says what else belongs to it."""
    pool = {"name": POOL, "type": "process"}
    httpx.post(f"{server.url}/work_pools/", json=pool, timeout=30.0, trust_env=False).raise_for_status()


def _deploy(home: Path, server: PrefectServer, ours: Mapping[str, str]) -> None:
    """Deploy the flows as their author would."""
    with (home / "deploy.log").open("wb") as log:
        done = subprocess.run(
            [*dies_with_us(), sys.executable, "-m", "examples.publishing.prefect_flow", "--deploy", POOL],
            env={**os.environ, **told(home / "author", server.url), **ours},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )
    if done.returncode:
        raise RuntimeError(f"the flows were not deployed:\n{(home / 'deploy.log').read_text()[-3000:]}")


def _version(server: PrefectServer) -> str:
    return str(httpx.get(f"{server.url}/admin/version", timeout=30.0, trust_env=False).raise_for_status().json())


def _end(server: PrefectServer | Worker) -> None:
    """Stop it, and whatever it started that outlives it."""
    server.stop()
    if server.process is not None:
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
