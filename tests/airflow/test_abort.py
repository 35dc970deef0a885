"""Whose lock is taken away is stopped, whatever it does; fails with the reason; is not retried; leaves nobody behind.

All bodies run at once, in one run of one DAG, and each loses its lock as soon as it works.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import lockstead
from tests.airflow.sections import Notes, enough_workers
from tests.servers.airflow import Airflow, Attempt, Run
from tests.servers.marked import is_alive

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

VERSIONS = ("3.3", "3.0", "2.10")
"""Those whose ways to end a task differ; the others would say the same again."""

TTL = 12
ASKING = ("variables", "variables-2", "xcoms", "xcoms-2")
BODIES = ("sleep", "taken", "asyncio", "child", "gil", "swallow", "swallow_for_ever", *ASKING, "bash")
FEW = ("taken", "gil", "swallow_for_ever", *ASKING, "bash")
"""Where an older version might differ; the executor of 3.0 runs eight at once."""

FAMILIES = ("child", "bash")
"""Those that start Bash, what it waits for, and what loses its parent."""

ENDED = ("failed", "success", "up_for_retry", "up_for_reschedule")
STOPPED_WITHIN = 30.0
"""Seconds from the loss: a third of the ttl until it is found, and a busy machine."""


@dataclass(slots=True)
class Seen:
    """What was seen of one body from outside: its process, and what that started; who of the latter outlived it."""

    held: lockstead.LockInfo
    family: list[psutil.Process]
    lost_at: float
    ended_at: float = 0.0
    left: list[psutil.Process] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Aborted:
    """What became of one body: its task, what was seen, what it noted, what its log says."""

    task: Attempt
    seen: Seen
    notes: list[dict[str, Any]]
    log: str

    def at(self, *kinds: str) -> float:
        """Return the seconds from the loss until the first note of these kinds."""
        return float(next(one["at"] for one in self.notes if one["what"] in kinds)) - self.seen.lost_at

    def has(self, what: str) -> bool:
        return any(one["what"] == what for one in self.notes)


@dataclass(frozen=True, slots=True)
class Everybody:
    """What became of all bodies, and of their run; and which of their marks a process carries when all is over."""

    state: str
    left_marks: set[str]
    bodies: dict[str, Aborted]


@pytest.fixture(scope="session")
def everybody(airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Everybody:
    """Run all bodies, take all locks away, and wait for the end."""
    if airflow.version.name not in VERSIONS:
        pytest.skip("the same as on the versions that it runs on")
    bodies = BODIES if airflow.version.name == "3.3" else FEW
    directory = tmp_path_factory.mktemp("aborted-")
    notes = Notes(directory, "aborted")
    text = (Path(__file__).parent / "aborted.py").read_text().replace("from __future__ import annotations\n", "")
    before = marks(airflow)
    enough_workers(airflow, notes)
    airflow.put("aborted", notes.dag(f"DIRECTORY, TTL, BODIES = {str(directory)!r}, {TTL}, {bodies}\n{text}"))
    run = airflow.trigger("aborted")
    seen: dict[str, Seen] = {}

    def all_ended() -> bool:
        # one after the other, as they begin: there may be fewer slots than bodies
        for name in began(notes, directory) - set(seen):
            seen[name] = taken_away(airflow, run, name, directory)
        for name, one in seen.items():
            if not one.ended_at and airflow.task(run, f"{name}.work").state in ENDED:
                one.ended_at = time.monotonic()
                # in version 2 the body itself writes that it failed, and ends after that
                one.left = [child for child in one.family[1:] if is_there(child)]
        return all(name in seen and seen[name].ended_at for name in bodies)

    airflow.until(all_ended, f"not all bodies ended: {airflow.tasks(run)}", 240)
    state = airflow.finished(run)
    airflow.until(lambda: not any(is_there(one) for each in seen.values() for one in each.family), "somebody lives on")
    return Everybody(
        state,
        set(marks(airflow)) - set(before),
        {
            name: Aborted(
                airflow.task(run, f"{name}.work"),
                seen[name],
                [one for one in notes.lines() if one.get("name") == name],
                "\n".join(airflow.task_log(run, f"{name}.work", attempt=number) for number in range(1, 6)),
            )
            for name in bodies
        },
    )


def began(notes: Notes, directory: Path) -> set[str]:
    """Return the bodies that are where they are to lose their lock."""
    lines = notes.lines("began", "child", "asks", "holds")
    early = {one["name"] for one in lines if one["what"] == "began"} - {"child", "gil", *ASKING}
    pid = directory / "bash.pid"
    return early | {one["name"] for one in lines if one["what"] != "began"} | ({"bash"} if pid.exists() else set())


def taken_away(airflow: Airflow, run: Run, name: str, directory: Path) -> Seen:
    """Look who works, and take the lock of this body away."""
    body = airflow.body_of(run, f"{name}.work")
    if name in FAMILIES:
        # it says so before it starts them; and amid an exec a process shows no environment
        airflow.until(lambda: len(family_of(airflow, body)) > 3, f"{name} has not started all of its processes")
    family = family_of(airflow, body)
    lock = lockstead.Lock(f"sqlite:///{directory}/{name}.db#{name}", ttl=300, owner="another")
    held = lock.inspect()
    assert held is not None
    lost_at = time.monotonic()
    # where it is revoked, its holder finds that in the record; else there is no record, or another's
    lock.break_lease(reason="a test wants it", by="the test", now=name != "asyncio")
    if name == "taken":
        assert lock.try_acquire() is not None
    return Seen(held, family, lost_at)


def family_of(airflow: Airflow, pid: int) -> list[psutil.Process]:
    """Return a body's process and all that it started, also what lost its parent and has a session of its own."""
    body = psutil.Process(pid)
    started = (group for group in marks(airflow).values() if set(body.children()) & set(group))
    return [body, *next(started, [])]


def marks(airflow: Airflow) -> dict[str, list[psutil.Process]]:
    """Return the living processes that bodies started, by the bodies' marks."""
    found: dict[str, list[psutil.Process]] = {}
    for each in airflow.pids():
        with suppress(psutil.Error):
            one = psutil.Process(each)
            # a body sets it in its own process when it begins, so that those after it show it
            if mark := one.environ().get("LOCKSTEAD_TASK", ""):
                found.setdefault(mark, []).append(one)
    return found


def is_there(one: psutil.Process) -> bool:
    return one.is_running() and is_alive(one.pid)


def test_a_revoked_lease_fails_the_task_without_a_retry(everybody: Everybody) -> None:
    assert {(one.task.state, one.task.try_number) for one in everybody.bodies.values()} == {("failed", 1)}
    reasons = {"taken": "TAKEN", "asyncio": "REVOKED", "gil": "EXPIRED"}
    for name, one in everybody.bodies.items():
        told = f"lease lost: key '{name}', holder '{one.seen.held.holder}', token {one.seen.held.token}, reason "
        assert told + reasons.get(name, "") in one.log
    assert everybody.state == "failed"


def test_a_body_is_stopped_soon_after_its_lock_is_taken_away(everybody: Everybody) -> None:
    late = {name: one.at("stopped") for name, one in everybody.bodies.items() if name not in ("gil", "bash")}
    assert max(late.values()) < STOPPED_WITHIN, late


def test_a_body_in_a_long_c_call_is_interrupted_right_after_it(everybody: Everybody) -> None:
    one = everybody.bodies["gil"]
    assert one.seen.ended_at - one.seen.lost_at - one.at("came back", "stopped") < STOPPED_WITHIN


def test_nothing_that_a_body_started_outlives_it(everybody: Everybody) -> None:
    assert not [pid for one in everybody.bodies.values() for pid in one.seen.left]
    # nor anything that it started after its lock was taken away
    assert everybody.left_marks == set()
    # Bash, what it waits for, and what lost its parent
    assert all(len(one.seen.family) > 3 for name, one in everybody.bodies.items() if name in FAMILIES)


def test_a_loss_among_questions_to_airflow_mixes_no_answers_up(everybody: Everybody) -> None:
    for one in (everybody.bodies[name] for name in ASKING):
        assert one.has("stopped")
        assert one.has("asked")
        assert not one.has("wrong")
