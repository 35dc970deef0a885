"""Who is marked or killed while it works under a lock leaves it to nobody before it has ended, on a real Airflow.

All bodies run in one run of one DAG, and each is ended as soon as it works.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lockstead
from tests.airflow.sections import Notes, enough_workers
from tests.servers.airflow import Airflow
from tests.servers.marked import is_alive

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

VERSIONS = ("3.3", "3.0", "2.10")
"""Those whose ways to end a task differ; the others would say the same again."""

TTL = 40
BODIES = ("marked_failed", "marked_success", "body_killed", "supervisor_killed")
SOON = 30.0
"""Seconds for what takes a moment, on a busy machine."""


@dataclass(slots=True)
class Watched:
    """What was seen of one body from outside. Instants are on the clock that the notes use; None while not seen."""

    pid: int
    lock: lockstead.Lock
    ended_by_us_at: float = 0.0
    died_at: float | None = None
    free_at: float | None = None
    child: int | None = None
    is_child_dead_too: bool | None = None
    holders: set[str] = field(default_factory=set)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> None:
        """Look at the lock, and then at the process: who lives when the lock is free, lived before too."""
        held = self.lock.inspect()
        lives = is_alive(self.pid)
        now = time.monotonic()
        if held is not None and not held.is_expired:
            self.holders.add(held.holder)
        elif self.free_at is None:
            self.free_at = now
        if not lives and self.died_at is None:
            self.died_at = now
            self.is_child_dead_too = self.child is not None and not is_alive(self.child)

    @property
    def body_ended_at(self) -> float:
        """When the body returned, or its process died."""
        return min([*self.told("ended", self.pid), self.died_at or math.inf])

    def told(self, what: str, pid: int | None = None) -> list[float]:
        """Return the instants of the notes of one kind, in order; of one process only."""
        return [one["at"] for one in self.notes if one["what"] == what and pid in (None, one["pid"])]


@pytest.fixture(scope="session")
def watched(airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Watched]:
    """End all bodies, each in its way, and watch until every lock is free."""
    if airflow.version.name not in VERSIONS:
        pytest.skip("the same as on the versions that it runs on")
    directory = tmp_path_factory.mktemp("killed-")
    notes = Notes(directory, "killed")
    text = (Path(__file__).parent / "killed.py").read_text().replace("from __future__ import annotations\n", "")
    enough_workers(airflow, notes)
    airflow.put("ended_by_force", notes.dag(f"DIRECTORY, TTL = {str(directory)!r}, {TTL}\n{text}"))
    run = airflow.trigger("ended_by_force")
    ways = {
        "marked_failed": lambda: airflow.mark(run, "marked_failed.work", "failed"),
        "marked_success": lambda: airflow.mark(run, "marked_success.work", "success"),
        "body_killed": lambda: airflow.kill_body(run, "body_killed.work"),
        "supervisor_killed": lambda: airflow.kill_supervisor(run, "supervisor_killed.work"),
    }
    seen: dict[str, Watched] = {}

    def all_free() -> bool:
        # one after the other, as they begin to work: there may be fewer slots than bodies
        for name in {one["name"] for one in notes.lines("works")} - set(seen):
            lock = lockstead.Lock(f"sqlite:///{directory}/{name}.db#{name}")
            seen[name] = Watched(airflow.body_of(run, f"{name}.work"), lock)
            seen[name].child = next((one["child"] for one in notes.lines("child") if one["name"] == name), None)
            seen[name].look()
            seen[name].ended_by_us_at = time.monotonic()
            ways[name]()
        for one in seen.values():
            one.look()
        return all(name in seen and (seen[name].free_at or name == "supervisor_killed") for name in BODIES)

    airflow.until(all_free, f"not all locks became free: {airflow.tasks(run)}")
    airflow.until(lambda: seen["supervisor_killed"].look() or seen["supervisor_killed"].died_at, "the orphan lives on")
    # Airflow would find out by itself after five minutes
    airflow.mark(run, "supervisor_killed.work", "failed")
    airflow.until(lambda: seen["supervisor_killed"].look() or seen["supervisor_killed"].free_at, "it is never released")
    for name, one in seen.items():
        one.notes = [line for line in notes.lines() if line["name"] == name]
    return seen


@pytest.mark.parametrize("name", ["marked_failed", "marked_success"])
def test_a_marked_running_tasks_lock_is_free_after_its_body_ends(watched: dict[str, Watched], name: str) -> None:
    one = watched[name]
    assert one.free_at is not None
    assert one.body_ended_at <= one.free_at
    # it went on working after the mark, so there was something to wait for
    assert one.told("works", one.pid)[-1] > one.ended_by_us_at
    assert one.told("works", one.pid)[-1] < one.free_at
    assert len(one.holders) == 1


def test_the_next_task_waits_for_the_body_of_a_marked_task(
    watched: dict[str, Watched],
) -> None:
    one = watched["marked_success"]
    [follows] = one.told("follows")
    assert one.told("works", one.pid)[-1] < follows
    assert follows > one.ended_by_us_at
    assert len({note["token"] for note in one.notes}) == 1


def test_a_task_with_a_killed_process_retries_under_its_lease(airflow: Airflow, watched: dict[str, Watched]) -> None:
    one = watched["body_killed"]
    if airflow.version.name == "3.0":
        assert len(one.told("began")) == 1  # it takes the death of a process for a failure, and retries nothing
        return
    first, second = one.told("began")
    assert first < one.ended_by_us_at < second
    assert one.told("works", one.pid)[-1] < second
    assert len({note["token"] for note in one.notes}) == len(one.holders) == 1
    assert one.free_at is not None
    assert one.free_at > one.told("ended")[-1]
    # what the first had started lives no more when the second begins
    assert one.child is not None
    assert [note["left"] for note in one.notes if note["what"] == "found"] == [[]]


def test_a_body_with_a_killed_supervisor_ends_with_its_processes(watched: dict[str, Watched]) -> None:
    one = watched["supervisor_killed"]
    assert one.died_at is not None
    assert one.died_at - one.ended_by_us_at < SOON
    assert one.child is not None
    # when its own process had ended, and nobody else had looked yet: the task was not even marked
    assert one.is_child_dead_too
    assert one.free_at is not None
    assert one.died_at <= one.free_at
    assert len(one.told("began")) == 1
