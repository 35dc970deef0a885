"""Measures a lock in a real Airflow beside what Airflow itself has for the purpose, a pool with one slot; in one run.

`make bench-airflow`; `--version 3.3` chooses the Airflow, `--markdown` prints what docs/benchmarks.md keeps. Three ways
to let one run at a time work: the pool, `@task.locked`, `LockedTaskGroup`; two DAGs for each, the same body in all.
Conditions are equal: a lease lives as long as Airflow waits for a sign of life of a task.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.airflow.sections import Notes, Stay
from tests.benchmarks.command import command, parser
from tests.benchmarks.figures import Row
from tests.servers.airflow import Airflow, Run
from tests.servers.marked import is_alive, kill
from tests.servers.redis import RedisServer

LIFE: Final = 45
"""Seconds: the lease's ttl, and Airflow's heartbeat timeout."""

RUNS: Final = 8
"""Runs that want to work at once, of two DAGs."""

PATIENCE: Final = 600.0

POOL: Final = "one"

BODY = """
def stay(dag_run, run_id):
    '''Work for a second, or as long as the run says, and note every moment of it.'''
    note("enter", name=run_id, token=os.getpid())
    ends_at = time.monotonic() + float((dag_run.conf or {}).get("hold", 1))
    while time.monotonic() < ends_at:
        note("works", name=run_id, token=os.getpid())
        time.sleep(0.1)
    note("leave", name=run_id, token=os.getpid())

with DAG("DAG_ID", schedule=None, start_date=datetime(2024, 1, 1), max_active_runs=32, default_args={"retries": 0}):
"""

POOLED = """
    @task(pool="one")
    def work(dag_run=None, run_id=None):
        stay(dag_run, run_id)
    work()
"""

LOCKED = """
    @task.locked(lock=LOCK, ttl=LIFE)
    def work(dag_run=None, run_id=None):
        stay(dag_run, run_id)
    work()
"""

GROUPED = """
    with LockedTaskGroup("publish", lock=LOCK, ttl=LIFE):
        @task
        def work(dag_run=None, run_id=None):
            stay(dag_run, run_id)
        work()
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to let one run at a time work. waits_at is the task that waits, in the state that it then has."""

    name: str
    text: str
    task_id: str
    waits_at: str
    waiting: str


POOLING: Final = Way("pool", POOLED, "work", "work", "scheduled")
TASK: Final = Way("`@task.locked`", LOCKED, "work", "work", "deferred")
GROUP: Final = Way("`LockedTaskGroup`", GROUPED, "publish.work", "publish.lock_acquire", "deferred")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of a lock whose holder was killed. seconds from the kill until the next one worked.

    overlap: seconds for which the one who should have been dead worked beside the next.
    """

    seconds: float
    overlap: float


class Trial:
    """One way on one Airflow: its two DAGs, and what their bodies noted."""

    def __init__(self, airflow: Airflow, way: Way, lock: str, directory: Path) -> None:
        self._airflow = airflow
        self._way = way
        self._name = way.name.strip("`@").replace(".", "_").replace(" ", "_").lower()
        self.notes = Notes(directory, self._name)
        for dag_id in self.dags:
            text = (BODY + way.text).replace("DAG_ID", dag_id).replace("LIFE", str(LIFE))
            airflow.put(dag_id, self.notes.dag(text, lock=f"{lock}#{self._name}"))

    @property
    def dags(self) -> tuple[str, str]:
        """Name the two DAGs."""
        return f"{self._name}_a", f"{self._name}_b"

    def hand_overs(self) -> list[float]:
        """Let many runs want to work at once; the seconds from each one's end to the next one's beginning."""
        runs = [self._airflow.trigger(self.dags[number % 2]) for number in range(RUNS)]
        for run in runs:
            state = self._airflow.finished(run, PATIENCE)
            if state != "success":
                raise RuntimeError(f"{self._way.name}: {run} ended {state}")
        stays = self._of(runs)
        if overlaps := [pair for pair in pairwise(stays) if pair[0].ended is None or pair[1].began < pair[0].ended]:
            raise RuntimeError(f"{self._way.name}: {overlaps[0]} overlap")
        return [two.began - one.ended for one, two in pairwise(stays) if one.ended is not None]

    def recovery(self, strike: Callable[[Run], None]) -> Recovery:
        """Kill one who works, while another waits; what becomes of it."""
        airflow, way = self._airflow, self._way
        holder = airflow.trigger(self.dags[0], conf={"hold": 2 * PATIENCE})
        airflow.until(lambda: self._of([holder]), f"{way.name}: nobody works", PATIENCE)
        waiter = airflow.trigger(self.dags[1])
        airflow.reaches(waiter, way.waits_at, way.waiting)
        struck_at = time.monotonic()
        strike(holder)
        stay: Stay = airflow.until(lambda: self._of([waiter]), f"{way.name}: it does not recover", PATIENCE)[0]
        airflow.finished(waiter, PATIENCE)
        beside = [
            one["at"] - stay.began
            for one in self.notes.lines("works")
            if one["name"] == holder.run_id and one["at"] > stay.began
        ]
        self._end(holder)
        return Recovery(stay.began - struck_at, max(beside, default=0.0))

    def kill_body(self, run: Run) -> None:
        """Kill the process that works."""
        self._airflow.kill_body(run, self._way.task_id)

    def kill_supervisor(self, run: Run) -> None:
        """Kill the process that watches over it."""
        self._airflow.kill_supervisor(run, self._way.task_id)

    def _of(self, runs: list[Run]) -> list[Stay]:
        names = {run.run_id for run in runs}
        return [stay for stay in self.notes.stays() if stay.name in names]

    def _end(self, run: Run) -> None:
        for stay in self._of([run]):
            if is_alive(stay.pid):
                kill(stay.pid)
        self._airflow.mark_run(run, "failed")


def measured(version: str, directory: Path) -> Iterator[Row]:
    """Measure on one Airflow, with the locks on a Redis."""
    told = {
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(LIFE),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "AIRFLOW__LOCKSTEAD__KEEPER_TTL_MIN": str(LIFE),
    }
    redis = RedisServer(directory / "redis").start()
    try:
        with Airflow(version, directory / "airflow", parallelism=32, told=told) as airflow:
            airflow.run("pools", "set", POOL, "1", "for one at a time")
            lock = f"redis://127.0.0.1:{redis.port}/0"
            ways = (POOLING, TASK, GROUP)
            trials = [Trial(airflow, way, lock, directory) for way in ways]
            for trial in trials:
                trial.hand_overs()  # the first time takes longer
            gaps = [statistics.median(trial.hand_overs()) for trial in trials]
            yield from compared("hand-over between two DAGs, p50", ways, gaps)
            yield from recoveries("task process killed", ways, [trial.recovery(trial.kill_body) for trial in trials])
            # these wait for minutes, and for nothing that another way does
            with ThreadPoolExecutor(len(trials)) as threads:
                struck = threads.map(lambda trial: trial.recovery(trial.kill_supervisor), trials)
                yield from recoveries("supervisor killed", ways, list(struck))
    finally:
        redis.stop()


def recoveries(what: str, ways: tuple[Way, ...], found: list[Recovery]) -> Iterator[Row]:
    """Lay out what became of the three."""
    yield from compared(f"{what}: until the next works", ways, [one.seconds for one in found])
    yield from compared(f"{what}: overlap with the next", ways, [one.overlap for one in found], limit=0.0)


def compared(what: str, ways: tuple[Way, ...], seconds: list[float], limit: float | None = None) -> Iterator[Row]:
    """Put ours beside the pool."""
    theirs, against = seconds[0], ways[0].name
    for way, ours in zip(ways[1:], seconds[1:], strict=True):
        ratio = ours / theirs if theirs else None
        yield Row(f"{way.name}: {what}", ours, "s", limit, against, theirs, ratio)


def main() -> None:
    """Measure, and print one table."""
    arguments = parser("bench-airflow", __doc__)
    arguments.add_argument("--version", default="3.3", help="which of the Airflows that are pinned")
    wanted = arguments.parse_args()
    command(
        wanted,
        lambda wanted, folder, _say: measured(wanted.version, folder),
        doing="an Airflow, for some minutes",
        about=f"Airflow {wanted.version}; leases and signs of life {LIFE} s",
    )


if __name__ == "__main__":
    main()
