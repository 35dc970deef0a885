"""How DAGs of the tests write down what they did under a lock, and what these notes prove.

Each body appends whole lines to one file (`O_APPEND`, one write each): `enter`, `leave` and whatever a test wants to
know, with a clock that all processes of the machine share. Must not know how the lock came about.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.servers.airflow import Airflow

HEAD = '''
import json, os, time
from datetime import datetime, timedelta
import lockstead
from airflow_lockstead import AcquireLockOperator, LockedTaskGroup, LockSensor, ReleaseLockOperator, locked
from airflow_lockstead import LockNotifier
try:
    from airflow.sdk import BaseOperator, DAG, task, task_group
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
except ImportError:
    from airflow import DAG
    from airflow.decorators import task, task_group
    from airflow.models import BaseOperator
    from airflow.operators.bash import BashOperator
    from airflow.operators.empty import EmptyOperator
    from airflow.triggers.temporal import TimeDeltaTrigger

NOTES = {notes!r}
SIGN = NOTES + ".sign"
LOCK = {lock!r}

def note(what, **more):
    """Append one line, whole."""
    line = json.dumps(dict(more, what=what, pid=os.getpid(), at=time.monotonic())) + "\\n"
    there = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(there, line.encode())
    finally:
        os.close(there)

def STAYS():
    """Return the notes of who entered."""
    with open(NOTES) as there:
        return [line for line in there if '"enter"' in line]

def work(name, seconds=0.2, **more):
    """Enter the section, with the token of the lease that is held, and leave it."""
    token = lockstead.current_lease().sequencer().token
    note("enter", name=name, token=token, **more)
    time.sleep(seconds)
    note("leave", name=name, token=token, **more)
'''


@dataclass(frozen=True, slots=True)
class Stay:
    """One body's stay in the section. ended is None if it never said that it left."""

    name: str
    token: int
    pid: int
    began: float
    ended: float | None


class Notes:
    """What the bodies of one test wrote down."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.notes"
        self.url = f"sqlite:///{directory}/{name}.db#section"

    def dag(self, text: str, **more: object) -> str:
        """Return text of a DAG file: what it may use, then the test's own. more fills `{words}` of the lock's URL."""
        return HEAD.format(notes=str(self.path), lock=more.pop("lock", self.url)) + textwrap.dedent(text)

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what was written, of these kinds or of all."""
        if not self.path.exists():
            return []
        read = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [one for one in read if not kinds or one["what"] in kinds]

    def stays(self) -> list[Stay]:
        """Return every stay in the section, in the order of entering."""
        left = {(one["pid"], one["name"], one["token"]): one["at"] for one in self.lines("leave")}
        return [
            Stay(one["name"], one["token"], one["pid"], one["at"], left.get((one["pid"], one["name"], one["token"])))
            for one in sorted(self.lines("enter"), key=lambda one: one["at"])
        ]

    def overlaps(self) -> list[tuple[Stay, Stay]]:
        """Return the pairs that were in the section at once under different tokens; within one lease tasks may."""
        stays = self.stays()
        return [
            (one, two)
            for at, one in enumerate(stays)
            for two in stays[at + 1 :]
            if one.token != two.token and (one.ended is None or two.began < one.ended)
        ]

    def tokens_increase(self) -> bool:
        """Return whether tokens never fall in the order of entering."""
        return all(one.token <= two.token for one, two in pairwise(self.stays()))


WORKERS = """
with DAG("workers", schedule=None, start_date=datetime(2024, 1, 1)):
    @task
    def wake(number):
        time.sleep(2)
    wake.expand(number=list(range(16)))
"""


def enough_workers(airflow: Airflow, notes: Notes) -> None:
    """Let the executor of version 3.0 start its workers, all at once: others wait behind long tasks forever.

    It starts another one only while more messages wait than it has workers, busy ones included.
    """
    if airflow.version.name == "3.0":
        airflow.put("workers", notes.dag(WORKERS))
        airflow.finished(airflow.trigger("workers"))
