"""A lease is lost: the body is interrupted, what it started is ended, the lock is given back, and the step fails."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import aborting, locked
from tests.dagster import bodies
from tests.dagster.runs import apart, failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import LIMIT, Beside, Place, taken_away, until

BODIES = [
    bodies.sleeps,
    bodies.computes,
    bodies.shells,
    bodies.pipes,
    bodies.awaits,
    bodies.awaits_and_blocks,
    bodies.awaits_and_yields,
    bodies.generates,
    bodies.swallows,
    bodies.holds,
]
STARTS = {"shells": 2, "pipes": 1}
"""How many processes of a body run before its lease is taken away."""

GRACE: Final = 10.0
"""Seconds after which a step process is left whose body cannot be interrupted."""


@pytest.mark.parametrize("retries", [False, True], ids=["once", "retries"])
@pytest.mark.parametrize("op", BODIES, ids=lambda op: op.name)
def test_a_lost_body_fails_once_cleans_up_and_leaves_no_process(place: Place, op: Any, retries: bool) -> None:
    seen: list[list[int]] = []

    def contend() -> None:
        taken_away(place, started=STARTS.get(op.name, 0))()
        with place.lock().hold(timeout=LIMIT):
            seen.append(place.sleepers())

    with Beside(contend):
        result = in_process(bodies.job_of(op, retries=retries))
    said = metadata_of(failure_of(result, op.name))
    assert said["lockstead/key"] == "k"
    assert said["lockstead/reason"] == "REVOKED"
    assert said["lockstead/holder"].startswith(f"dagster:{result.run_id}:{op.name}:0/")
    assert isinstance(said.get("lockstead/token"), int) or op is bodies.holds
    assert (place.count("in"), place.count("finally"), place.count("undisturbed")) == (1, 1, 0)
    assert seen == [[]], "the lock was free while a process of the body lived"


@pytest.mark.parametrize("retries", [False, True], ids=["once", "retries"])
@pytest.mark.parametrize("op", [bodies.writes, bodies.writes_and_swallows], ids=lambda op: op.name)
def test_a_loss_while_an_io_manager_writes_fails_the_step(place: Place, op: Any, retries: bool) -> None:
    with Beside(taken_away(place)):
        result = in_process(bodies.job_of(op, retries=retries))
    said = metadata_of(failure_of(result, op.name))
    assert said["lockstead/reason"] == "REVOKED"
    assert place.count("in") == 1
    assert place.lock().inspect() is None


def test_the_lock_is_held_while_an_io_manager_writes(place: Place) -> None:
    seen: list[object] = []

    class Looks(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            seen.append(place.lock().inspect())

        def load_input(self, context: dg.InputContext) -> object:
            return None

    result = in_process(job_with(bodies.returns, {**bodies.RESOURCES, "io_manager": Looks()}))
    assert result.success
    assert seen[0] is not None
    assert place.lock().inspect() is None


def test_an_io_managers_failure_frees_the_lock(place: Place) -> None:
    class Fails(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            raise OSError("the disk is full")

        def load_input(self, context: dg.InputContext) -> object:
            return None

    job = job_with(bodies.returns, {**bodies.RESOURCES, "io_manager": Fails()})
    with pytest.raises(OSError, match="the disk is full") as kept:
        job.execute_in_process()
    assert place.lock().inspect() is None
    del kept


def test_a_lease_taken_by_another_fails_only_its_step(place: Place) -> None:
    others: list[lockstead.Lease] = []

    def take() -> None:
        taken_away(place, now=True)()
        others.append(lockstead.Lock(f"{place.url}#k", owner="somebody/else", ttl=60).acquire(timeout=30))

    with Beside(take):
        result = in_process(bodies.job_of(bodies.sleeps))
    assert metadata_of(failure_of(result, "sleeps"))["lockstead/reason"] in ("GONE", "REVOKED", "TAKEN")
    [other] = others
    other.check()
    held = place.lock().inspect()
    assert held is not None
    assert (held.holder, held.is_expired) == (other.holder, False)
    assert other.release()


def test_a_stubborn_daemon_ends_before_the_lock_is_free(place: Place) -> None:
    seen: list[list[int]] = []

    def contend() -> None:
        until(place.sleepers, "the processes run")
        taken_away(place)()
        with place.lock().hold(timeout=LIMIT):
            seen.append(place.sleepers())

    with Beside(contend):
        result = in_process(bodies.job_of(bodies.leaves_behind))
    assert not result.success
    assert seen == [[]]


@pytest.mark.parametrize(
    "name", ["sleeps", "computes", "shells", "pipes", "awaits", "awaits_and_yields", "writes", "swallows"]
)
def test_a_step_process_whose_lease_is_lost_fails_once(place: Place, instance: dg.DagsterInstance, name: str) -> None:
    seen: list[list[int]] = []

    def contend() -> None:
        taken_away(place, started=STARTS.get(name, 0))()
        with place.lock().hold(timeout=LIMIT):
            seen.append(place.sleepers())

    with Beside(contend):
        result = apart(instance, name, retries=True)
    said = metadata_of(failure_of(result, name))
    assert said["lockstead/reason"] == "REVOKED"
    assert said["lockstead/holder"].startswith(f"dagster:{result.run_id}:{name}:0/")
    assert isinstance(said["lockstead/token"], int)
    # who is left after the grace cleans up nothing
    assert (place.count("in"), place.count("undisturbed")) == (1, 0)
    assert place.count("finally") == (0 if name == "writes" else 1)
    assert seen == [[]]


@pytest.mark.parametrize("name", ["deaf", "never_returns"])
def test_an_uninterruptible_step_process_exits_after_a_grace(
    place: Place, instance: dg.DagsterInstance, name: str
) -> None:
    at: list[float] = []
    with Beside(taken_away(place, started=1 if name == "never_returns" else 0, at=at)):
        result = apart(instance, name)
        took = time.monotonic() - at[0]
    assert took > GRACE
    assert is_left(failure_of(result, name), result), [event.message for event in result.all_events]
    assert place.count("in") == 1
    assert place.count("deaf") >= (1 if name == "deaf" else 0)
    assert place.sleepers() == []


def is_left(failure: Any, result: Any) -> bool:
    """Return whether a run says that a step process was left: by what that says of the loss, or by its exit code."""
    if failure.user_failure_data is not None:
        return metadata_of(failure)["lockstead/key"] == "k"
    return any("exited with code 75" in (event.message or "") for event in result.all_events)


@pytest.mark.parametrize("where", ["here", "apart"])
def test_blocking_the_interpreter_past_the_ttl_is_detected(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    op = bodies.keeps_the_interpreter
    result = in_process(bodies.job_of(op)) if where == "here" else apart(instance, op.name)
    assert metadata_of(failure_of(result, "keeps_the_interpreter"))["lockstead/reason"] in ("EXPIRED", "UNREACHABLE")
    assert (place.count("in"), place.count("back"), place.count("undisturbed")) == (1, 1, 0)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Return the interrupts that the main thread hears, as somebody else's handler hears them."""
    signals: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: signals.append(number))
    yield signals
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("op", [bodies.awaits, bodies.goes_on], ids=lambda op: op.name)
def test_a_run_in_another_thread_fails_without_an_interrupt(place: Place, heard: list[int], op: Any) -> None:
    results: list[Any] = []

    def run() -> None:
        results.append(in_process(bodies.job_of(op, retries=True)))

    with Beside(run):
        taken_away(place)()
        # here the main thread is not the body's, and must go on
        until(lambda: results, "the run ends")
    said = metadata_of(failure_of(results[0], op.name))
    assert said["lockstead/reason"] == "REVOKED"
    assert (place.count("in"), place.count("finally")) == (1, 1)
    assert heard == []
    assert place.lock().inspect() is None


def test_a_result_of_a_body_that_missed_the_loss_is_not_written(place: Place) -> None:
    written: list[object] = []

    class Writes(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            written.append(obj)

        def load_input(self, context: dg.InputContext) -> object:
            return None

    with Beside(taken_away(place)):
        result = in_process(job_with(bodies.swallows, {**bodies.RESOURCES, "io_manager": Writes()}))
    failure_of(result, "swallows")
    assert written == []


def test_an_awaiting_task_is_cancelled_and_not_interrupted(place: Place) -> None:
    seen: list[str] = []

    @dg.op
    @locked("k")
    async def gathers() -> None:
        async def one() -> None:
            try:
                await asyncio.sleep(60)
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

        bodies.note("in")
        await asyncio.gather(one(), one())

    with Beside(taken_away(place)):
        result = in_process(job_with(gathers, bodies.RESOURCES))
    failure_of(result, "gathers")
    assert seen == ["CancelledError", "CancelledError"]


def test_an_interrupt_is_raised_only_where_dagster_accepts_one() -> None:
    from dagster._core.errors import raise_execution_interrupts
    from dagster._utils.interrupts import capture_interrupts

    before = signal.getsignal(signal.SIGUSR2)
    with capture_interrupts():
        abort = aborting.Abort()
        with pytest.raises(aborting.LeaseLostInterrupt), abort:
            abort.now("the test")
            ends_at = time.monotonic() + 0.3
            while time.monotonic() < ends_at:
                time.sleep(0.01)
            with raise_execution_interrupts():
                time.sleep(10)
        assert time.monotonic() >= ends_at
    assert signal.getsignal(signal.SIGUSR2) == before
