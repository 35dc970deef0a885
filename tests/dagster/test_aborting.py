"""An interrupt comes only where it can be borne, and only to whom it is for, however bodies lie within one another."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._utils.interrupts import capture_interrupts

from dagster_lockstead import LockResource, aborting, compat, driving, locked
from tests.dagster import bodies
from tests.dagster.runs import failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import LIMIT, Beside, Place, taken_away, until


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Return what an author's handler of the signal hears."""
    found: list[int] = []
    before = signal.signal(aborting.SIGNAL, lambda number, _frame: found.append(number))
    try:
        yield found
    finally:
        signal.signal(aborting.SIGNAL, before)


def deep(levels: int) -> None:
    """Take some time, this deep."""
    if levels:
        deep(levels - 1)
    else:
        time.sleep(15 * aborting.AGAIN)


def test_our_own_code_is_never_interrupted_at_any_depth() -> None:
    did: list[str] = []

    def listener() -> None:
        with compat.interruptible():
            deep(12)
        did.append("all of it")

    abort = aborting.Abort()
    with capture_interrupts(), pytest.raises(aborting.LeaseLostInterrupt), abort:
        abort.now("the test")
        abort.listen(listener)
        with compat.interruptible():
            time.sleep(LIMIT)
    assert did == ["all of it"]


def test_a_late_signal_has_no_effect_while_the_outer_body_runs(heard: list[int]) -> None:
    def is_on_its_way() -> bool:
        return aborting.SIGNAL in signal.sigpending()

    with capture_interrupts(), compat.interruptible(), aborting.Abort():
        with aborting.Abort() as inner:
            signal.pthread_sigmask(signal.SIG_BLOCK, [aborting.SIGNAL])
            try:
                inner.now("the test")
                until(is_on_its_way, "the signal is sent", 30)
            finally:
                inner.__exit__(None, None, None)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [aborting.SIGNAL])
        deep(0)
        assert heard == []
        # the author's own is heard still
        signal.raise_signal(aborting.SIGNAL)
        assert heard == [aborting.SIGNAL]


def test_a_body_closed_by_another_thread_leaves_nothing_behind(heard: list[int]) -> None:
    before = signal.getsignal(aborting.SIGNAL)
    one = aborting.Abort()
    one.__enter__()
    with Beside(lambda: one.__exit__(None, None, None)):
        pass
    with aborting.Abort():
        signal.raise_signal(aborting.SIGNAL)
    assert heard == [aborting.SIGNAL]
    assert signal.getsignal(aborting.SIGNAL) == before


def test_an_outer_body_cannot_stop_the_inner_ones_interrupt(place: Place, instance: dg.DagsterInstance) -> None:
    @dg.op
    @locked("k")
    def nests(context: dg.OpExecutionContext, lock: LockResource) -> None:
        try:
            with lock.hold(context, "inner"):
                bodies.note("in")
                time.sleep(LIMIT)
        except Exception:
            bodies.note("went on")

    def finish() -> None:
        until(lambda: place.has("in"), "the body runs")
        (run,) = instance.get_runs()
        instance.report_run_canceled(run)

    with Beside(finish):
        result = in_process(job_with(nests, {"lock": LockResource(store=place.url)}), instance=instance)
    assert "has ended: CANCELED" in metadata_of(failure_of(result, "nests"))["lockstead/reason"]
    assert not place.has("went on")
    assert place.is_free()
    assert place.is_free("inner")


@pytest.mark.parametrize("is_outer_first", [True, False], ids=["outer first", "inner first"])
def test_an_interrupted_body_cleans_up_while_another_has_to_end(is_outer_first: bool) -> None:
    did: list[str] = []
    outer, inner = aborting.Abort(), aborting.Abort()
    first, second = (outer, inner) if is_outer_first else (inner, outer)
    with capture_interrupts(), pytest.raises(aborting.LeaseLostInterrupt), outer, inner, compat.interruptible():
        try:
            first.now("the test")
            time.sleep(LIMIT)
        finally:
            second.now("the test")
            deep(0)
            did.append("all of it")
    assert did == ["all of it"]


def test_a_cancelled_body_cleans_up_while_another_has_to_end() -> None:
    did: list[str] = []
    outer, inner = aborting.Abort(), aborting.Abort()

    async def body() -> None:
        try:
            outer.now("the test")
            await asyncio.sleep(LIMIT)
        finally:
            inner.now("the test")
            await asyncio.sleep(15 * aborting.AGAIN)
            did.append("all of it")

    loop = asyncio.new_event_loop()
    try:
        with capture_interrupts(), pytest.raises(aborting.LeaseLostInterrupt), outer, inner, compat.interruptible():
            driving._awaited(loop, body(), inner)
    finally:
        loop.close()
    assert did == ["all of it"]


def test_what_is_begun_in_a_clean_up_is_interrupted_by_itself() -> None:
    outer, inner = aborting.Abort(), aborting.Abort()
    came: list[str] = []
    with capture_interrupts(), pytest.raises(aborting.LeaseLostInterrupt), outer, compat.interruptible():
        try:
            outer.now("the test")
            time.sleep(LIMIT)
        finally:
            with pytest.raises(aborting.LeaseLostInterrupt), inner:
                inner.now("the test")
                time.sleep(LIMIT)
            came.append("to its end")
    assert came == ["to its end"]


def test_who_takes_no_notice_is_interrupted_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborting, "LEAVES", 0.2)
    outer, inner = aborting.Abort(), aborting.Abort()
    heard_first: list[str] = []
    with capture_interrupts(), pytest.raises(aborting.LeaseLostInterrupt), outer, inner, compat.interruptible():
        try:
            inner.now("the test")
            time.sleep(LIMIT)
        except aborting.LeaseLostInterrupt:
            heard_first.append("and went on")
        outer.now("the test")
        time.sleep(LIMIT)
        heard_first.append("to the end")
    assert heard_first == ["and went on"]


def test_an_outer_body_cleans_up_after_the_inner_one(place: Place, instance: dg.DagsterInstance) -> None:
    @dg.op
    @locked("k")
    def nests(context: dg.OpExecutionContext, lock: LockResource) -> None:
        try:
            with lock.hold(context, "inner"):
                try:
                    bodies.note("in")
                    time.sleep(LIMIT)
                finally:
                    deep(0)
                    bodies.note("inner finally")
        finally:
            deep(0)
            bodies.note("finally")

    def finish() -> None:
        until(lambda: place.has("in"), "the body runs")
        (run,) = instance.get_runs()
        instance.report_run_canceled(run)

    with Beside(finish):
        result = in_process(job_with(nests, {"lock": LockResource(store=place.url)}), instance=instance)
    assert not result.success
    assert place.has("inner finally")
    assert place.has("finally")
    assert place.is_free()
    assert place.is_free("inner")


def test_a_cancellation_after_the_tasks_end_becomes_a_signal() -> None:
    abort = aborting.Abort()

    async def ends() -> int:
        # heard after this has returned, as it may be when another thread says so
        abort.now("the test")
        return 1

    loop = asyncio.new_event_loop()
    try:
        with capture_interrupts(), pytest.raises(aborting.LeaseLostInterrupt), abort:
            with_result = driving._awaited(loop, ends(), abort)
            assert with_result == 1
            with compat.interruptible():
                threading.Event().wait(10)
    finally:
        loop.close()


@pytest.mark.parametrize("retries", [False, True], ids=["once", "retries"])
def test_a_loss_in_try_many_fails_the_step_at_the_blocks_end(place: Place, retries: bool) -> None:
    @dg.op
    def takes(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.try_many(["k", "other"], context=context) as batch:
            (lease,) = [one for one in batch if one.key == "k"]
            bodies.note("in")
            until(lambda: not lease.is_held, "the lease is lost")
            bodies.note("goes on")

    op = takes.with_retry_policy(dg.RetryPolicy(max_retries=2)) if retries else takes
    resources: dict[str, Any] = {"lock": LockResource(store=place.url, ttl="2s")}
    with Beside(taken_away(place)):
        result = in_process(job_with(op, resources))
    said = metadata_of(failure_of(result, "takes"))
    assert (said["lockstead/key"], said["lockstead/reason"]) == ("k", "REVOKED")
    assert (place.count("in"), place.count("goes on")) == (1, 1)
    assert place.lock("other").inspect() is None
