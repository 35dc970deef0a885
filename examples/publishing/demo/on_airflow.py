"""The demo on a real Airflow: two DAGs, the same two repositories, and a worker that dies in mid-section.

Airflow is the one that the tests use (`tests/servers/airflow.py`): scheduler, triggerer, DAG processor and API server
on a PostgreSQL of its own. The oracle and Airflow's own tables say what happened, not what tasks say of themselves.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import lockstead
from airflow_lockstead.config import KEEPER_TTL_MIN
from examples.publishing.conversation import PHASES
from examples.publishing.demo.acts import Finding, judged, say, unharmed
from examples.publishing.demo.task_logs import Said, TaskLogs
from examples.publishing.demo.theatre import Ledger, Reader, Theatre, attempted
from examples.publishing.events import Event, What
from examples.publishing.runner import FORMATS, Job
from tests.servers.airflow import ENDED, Airflow, Run
from tests.servers.airflow_parts import ROOT

VERSION = "3.3"
DAG_FILE = Path(__file__).parents[1] / "airflow_dag.py"
DAGS = {"tools": "publish_tools", "services": "publish_services"}
DOOMED = "tools"
LINGER = 5.0
PATIENCE = 300.0


@dataclass(slots=True)
class Course:
    """What was seen of the runs. killed: the process that was."""

    runs: Mapping[str, Run]
    events: list[Event] = field(default_factory=list)
    killed: int | None = None

    def of(self, what: What, repository: str) -> list[Event]:
        """Give the events of a kind on one repository, in their order."""
        return [one for one in self.events if (one.what, one.repository) == (what, repository)]


@contextmanager
def an_airflow(theatre: Theatre, findings: Sequence[Finding]) -> Iterator[Airflow]:
    """Run an Airflow whose DAGs publish to the theatre's repositories. Its home is below build/, and goes with it.

    It stays, for its logs, if the block fails or made a finding that is not good.
    """
    home = ROOT / "build" / "demo-airflow" / uuid.uuid4().hex[:8]
    (home / "dags").mkdir(parents=True)
    shutil.copy(DAG_FILE, home / "dags" / "publishing.py")
    told = {
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_VAR_PUBLISHING_REPO": f"gs://{theatre.place.bucket}/{theatre.place.prefix}".rstrip("/"),
        "AIRFLOW_VAR_PUBLISHING_SECRET_KEY": theatre.secret_key,
        "PUBLISHING_TTL": f"{theatre.ttl:g}",
        "PUBLISHING_KEEPER": "yes" if theatre.ttl >= KEEPER_TTL_MIN.default else "no",
    }
    theatre.board.act("Before: a real Airflow, all of it on this machine")
    theatre.board.note("starting PostgreSQL, scheduler, triggerer, DAG processor and API server")
    started = time.monotonic()
    is_wanted = False
    try:
        with Airflow(VERSION, home, told=told) as airflow:
            airflow.until(lambda: set(DAGS.values()) <= _known(airflow), "the DAGs are not there")
            theatre.board.note(
                f"Airflow {airflow.version.full} runs after {time.monotonic() - started:.0f} s, with the DAGs"
                f" {' and '.join(DAGS.values())}; to look at while it lasts: http://127.0.0.1:{airflow.port}"
            )
            yield airflow
        is_wanted = not all(finding.is_good for finding in findings)
    except Exception:
        is_wanted = True
        raise
    finally:
        if is_wanted:
            theatre.board.note(f"its logs are in {home}", "yellow")
        else:
            shutil.rmtree(home, ignore_errors=True)


def two_dags(theatre: Theatre, airflow: Airflow, ledger: Ledger) -> list[Finding]:
    """Two DAGs publish to both repositories at once, and one loses its worker with a version half written."""
    theatre.board.act("Act 1: two DAGs publish to both repositories; a worker is killed in mid-section")
    jobs = dict(zip(DAGS, theatre.jobs("", tuple(DAGS)), strict=True))
    attempted(ledger, tuple(jobs.values()))
    with Reader(theatre, ledger, pause=1.0) as reader:
        course = _play(theatre, airflow, ledger, jobs)
    states = {name: airflow.run_state(run) for name, run in course.runs.items()}
    findings = [
        Finding(set(states.values()) == {"success"}, f"Airflow says of the runs: {_listed(states)}"),
        _retried(airflow, course),
        Finding(
            any(one.pruned for one in course.of(What.PUBLISHED, "apt") if one.run == DOOMED),
            "the half version that the killed one left was cleared away",
        ),
        *(_apart(course, kind) for kind in FORMATS),
        _free(theatre),
    ]
    for finding in findings:
        say(theatre, finding)
    return [*findings, *judged(theatre, ledger), unharmed(theatre, reader)]


def _play(theatre: Theatre, airflow: Airflow, ledger: Ledger, jobs: Mapping[str, Job]) -> Course:
    """Start the runs, the second as soon as the first holds a lock; kill; give what was seen when both have ended."""
    logs = TaskLogs(airflow.home / "logs")
    course = Course({DOOMED: _start(airflow, DOOMED, jobs[DOOMED])})
    ends_at = time.monotonic() + PATIENCE + 60 * theatre.pace
    while True:
        # Asked before reading, or the last words would be missed.
        is_over = len(course.runs) == len(DAGS) and all(airflow.run_state(run) in ENDED for run in course.runs.values())
        for said in logs.news():
            _take(theatre, airflow, ledger, jobs, course, said)
        if is_over:
            return course
        if time.monotonic() > ends_at:
            states = {name: airflow.tasks(run) for name, run in course.runs.items()}
            raise TimeoutError(f"the runs did not end within {PATIENCE:.0f} s: {states}")
        if len(course.runs) < len(DAGS) and course.of(What.HOLDS, "apt"):
            started = {name: _start(airflow, name, jobs[name]) for name in DAGS if name not in course.runs}
            course.runs = {**course.runs, **started}
        time.sleep(0.1)


def _take(
    theatre: Theatre, airflow: Airflow, ledger: Ledger, jobs: Mapping[str, Job], course: Course, said: Said
) -> None:
    if said.event is None:
        theatre.board.note(f"{said.run}, {said.task}: {said.text}", "dim")
        return
    event = said.event
    course.events.append(event)
    theatre.note_event(ledger, jobs[event.run], event)
    if course.killed is None and (event.run, event.repository, event.phase) == (DOOMED, "apt", "metadata"):
        course.killed = airflow.kill_body(course.runs[DOOMED], said.task)
        theatre.board.note(
            f"killed: SIGKILL to process {course.killed}, the body of {said.task}, its version half written", "yellow"
        )


def _start(airflow: Airflow, name: str, job: Job) -> Run:
    pace = {f"{kind}/{phase}": job.pace.every for kind in FORMATS for phase in PHASES} if job.pace.every else {}
    if name == DOOMED:
        pace["apt/metadata"] = LINGER + job.pace.every
    return airflow.trigger(DAGS[name], name, {"packages": [str(path) for path in job.files], "pace": pace})


def _retried(airflow: Airflow, course: Course) -> Finding:
    run = course.runs[DOOMED]
    tries = airflow.task(run, "apt.build").try_number
    # The task that says the token ran once for each run: nobody acquired anew.
    is_good = course.killed is not None and tries > 1 and len(course.of(What.HOLDS, "apt")) == len(DAGS)
    return Finding(is_good, f"the killed task was tried {tries} times, under one and the same lease")


def _apart(course: Course, kind: str) -> Finding:
    """Judge whether one held after the other, with a higher token."""
    held = course.of(What.HOLDS, kind)
    ended = {one.run: one.at for one in course.of(What.PUBLISHED, kind)}
    are_apart = all(
        one.run in ended and ended[one.run] <= other.at and (one.number or 0) < (other.number or 0)
        for one, other in pairwise(held)
    )
    order = ", then ".join(f"{one.run} with token {one.number}" for one in held)
    return Finding(are_apart and len(held) == len(DAGS), f"{kind}: one after the other: {order}")


def _free(theatre: Theatre) -> Finding:
    held = [kind for kind in FORMATS if lockstead.Lock(f"{theatre.lock_url}#{kind}").inspect() is not None]
    return Finding(not held, "both locks are free" if not held else f"still locked: {', '.join(held)}")


def _known(airflow: Airflow) -> set[str]:
    return {row[0] for row in airflow.asked("SELECT dag_id FROM serialized_dag")}


def _listed(states: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {state}" for name, state in states.items())
