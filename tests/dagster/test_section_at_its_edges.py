"""A section ends with its step, and for all threads of it; nothing is written or tried again without its lease."""

import gc
import threading
import time
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, acquiring, compat, held_leases, locked, working
from dagster_lockstead.aborting import Abort
from lockstead import nesting
from lockstead.wrapping.locks import store_of
from tests.dagster import bodies
from tests.dagster.runs import apart, failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import LIMIT, Beside, Place, held_by_another, taken_away


class Notes(dg.IOManager):
    """Counts what is written; the first write takes as long as `waits` says."""

    def __init__(self, waits: float = 0.0) -> None:
        self.began: list[object] = []
        self.written: list[object] = []
        self._waits = waits

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        self.began.append(obj)
        if len(self.began) == 1:
            bodies.note("in")
            time.sleep(self._waits)
        self.written.append(obj)

    def load_input(self, context: dg.InputContext) -> object:
        return None


def with_lock(place: Place, **more: Any) -> dict[str, Any]:
    return {"lock": LockResource(store=place.url, ttl="2s"), **more}


@pytest.mark.parametrize("is_held", [False, True], ids=["locked", "hold"])
def test_the_acquired_where_is_the_bodys_own_line_or_empty(place: Place, is_held: bool) -> None:
    seen: list[str | None] = []

    def look() -> None:
        held = place.lock().inspect()
        assert held is not None
        seen.append(held.where and held.where.rpartition(":")[0])

    @dg.op
    def holds(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.hold(context, "k"):
            look()

    @dg.op
    @locked("k")
    def is_locked() -> None:
        look()

    assert in_process(job_with(holds if is_held else is_locked, with_lock(place))).success
    assert seen == [__file__ if is_held else None]


def test_a_result_after_a_swallowed_interrupt_is_not_written(place: Place) -> None:
    writes = Notes()
    with Beside(taken_away(place)):
        result = in_process(job_with(bodies.swallows, with_lock(place, io_manager=writes)))
    failure_of(result, "swallows")
    assert place.count("finally") == 1
    assert writes.began == []


@pytest.mark.parametrize("retries", [False, True], ids=["once", "retries"])
def test_a_loss_while_a_yield_within_a_hold_is_written_fails(place: Place, retries: bool) -> None:
    @dg.op
    def yields(context: dg.OpExecutionContext, lock: LockResource) -> Any:
        with lock.hold(context, "k"):
            yield dg.Output(1)

    op = yields.with_retry_policy(dg.RetryPolicy(max_retries=2)) if retries else yields
    writes = Notes(waits=60)
    with Beside(taken_away(place)):
        result = in_process(job_with(op, with_lock(place, io_manager=writes)))
    assert metadata_of(failure_of(result, "yields"))["lockstead/reason"] == "REVOKED"
    assert writes.written == []


def test_a_hold_in_a_generator_ends_with_its_step(place: Place) -> None:
    seen: list[object] = []

    class Fails(Notes):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            if context.step_context.previous_attempt_count == 0:
                raise OSError("the disk is full")

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
    def yields(context: dg.OpExecutionContext, lock: LockResource) -> Any:
        found = lock.inspect("k")
        with lock.hold(context, "k") as lease:
            seen.append((None if found is None else found.holder, lease.holder.partition("/")[0].rpartition(":")[2]))
            yield dg.Output(1)

    gc.disable()  # the frames of the first attempt live on in a cycle
    try:
        result = in_process(job_with(yields, with_lock(place, io_manager=Fails())))
    finally:
        gc.enable()
    assert result.success
    assert seen == [(None, "0"), (None, "1")]
    assert place.lock().inspect() is None
    assert held_leases.count() == 0


def test_the_failure_of_a_step_that_ends_its_section_is_written(place: Place, instance: dg.DagsterInstance) -> None:
    class Fails(Notes):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            raise OSError("the disk is full")

    @dg.op
    @locked("k")
    def yields() -> Any:
        try:
            yield dg.Output(1)
        finally:
            raise SystemExit("no clean end")

    result = in_process(job_with(yields, with_lock(place, io_manager=Fails())), instance=instance)
    assert not result.success
    written = [one.dagster_event for one in instance.all_logs(result.run_id) if one.dagster_event is not None]
    assert [event.step_key for event in written if event.is_step_failure] == ["yields"]
    assert place.lock().inspect() is None


def test_a_section_is_not_released_while_another_thread_uses_it(place: Place) -> None:
    seen: list[bool] = []
    joined, leaves = threading.Event(), threading.Event()

    @dg.op
    def shares(context: dg.OpExecutionContext, lock: LockResource) -> None:
        def work() -> None:
            with lock.hold(context, "k") as lease:
                joined.set()
                leaves.wait(LIMIT)
                time.sleep(0.3)
                found = place.lock().inspect()
                seen.append(lease.is_held and found is not None and found.holder == lease.holder)

        with lock.hold(context, "k"):
            thread = threading.Thread(target=work)
            thread.start()
            assert joined.wait(LIMIT)
            leaves.set()
        assert place.lock().inspect() is None
        thread.join()

    assert in_process(job_with(shares, with_lock(place))).success
    assert seen == [True]


def test_an_ended_section_leaves_its_lease_to_the_working_thread(place: Place) -> None:
    joined, over = threading.Event(), threading.Event()
    seen: list[object] = []

    @dg.op
    def shares(context: dg.OpExecutionContext, lock: LockResource) -> None:
        def work() -> None:
            with lock.hold(context, "k"):
                joined.set()
                over.wait(LIMIT)

        with lock.hold(context, "k"):
            threading.Thread(target=work, daemon=True).start()
            assert joined.wait(LIMIT)
            raise ValueError("of the body")

    try:
        result = in_process(job_with(shares, with_lock(place)))
        seen.append(place.lock().inspect())
    finally:
        over.set()
    assert not result.success
    assert seen[0] is not None, "it was given back while a thread worked"
    with place.lock().hold(timeout=30) as after:
        assert after.previous_lease.ending == lockstead.LeaseOutcome.EXPIRED


def test_a_runs_lease_lost_while_a_step_joins_fails_it_for_good(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = "00000000-0000-0000-0000-000000000003"
    asked: list[object] = []

    def attach(self: object, ticket: object) -> object:
        asked.append(ticket)
        raise lockstead.LeaseLost("lost", reason=lockstead.LossReason.GONE, key="k", holder="h", token=7)

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
    @locked("k")
    def joins() -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(lockstead.Lock, "attach", attach)
    with held_by_run(place, run_id):
        result = in_process(job_with(joins, with_lock(place)), run_id=run_id)
    assert metadata_of(failure_of(result, "joins"))["lockstead/token"] == 7
    assert len(asked) == 1


def test_a_guest_interrupted_before_the_loss_fails_by_the_loss(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = "00000000-0000-0000-0000-000000000004"
    # the run hears of the loss, and its step does not
    monkeypatch.setattr(working.Section, "_on_lost", lambda self: None)

    @dg.op
    @locked("k")
    def works() -> None:
        bodies.note("in")
        time.sleep(60)

    runs = Abort()
    lock = lockstead.Lock(f"{place.url}#k", owner=f"dagster:{run_id}", ttl="2s")
    with Beside(taken_away(place)), pytest.raises(lockstead.LeaseLost), lock.hold() as lease:
        noted = held_leases.recorded(held_leases.RunKey(run_id, None, store_of(lock), "k"), lease)
        with noted, runs:
            lease.on_lost(lambda: runs.now("the lease is lost"))
            result = in_process(job_with(works, with_lock(place)), run_id=run_id)
    assert metadata_of(failure_of(result, "works"))["lockstead/reason"] == "REVOKED"


def test_a_run_that_lives_on_keeps_no_section_that_is_over(place: Place) -> None:
    run_id = "00000000-0000-0000-0000-000000000005"
    lock = lockstead.Lock(f"{place.url}#k", owner=f"dagster:{run_id}")
    with lock.hold() as lease:
        with held_leases.recorded(held_leases.RunKey(run_id, None, store_of(lock), "k"), lease):
            assert in_process(job_with(bodies.returns, with_lock(place)), run_id=run_id).success
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, working.Section)]


class held_by_run:
    """Hold the lock as a run does, in another thread."""

    def __init__(self, place: Place, run_id: str) -> None:
        self._lock = lockstead.Lock(f"{place.url}#k", owner=f"dagster:{run_id}")
        self._holds, self._is_over = threading.Event(), threading.Event()
        self._beside = Beside(self._hold)

    def _hold(self) -> None:
        with self._lock.hold():
            self._holds.set()
            self._is_over.wait(LIMIT)

    def __enter__(self) -> None:
        self._beside.__enter__()
        assert self._holds.wait(LIMIT)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._beside.__exit__()


def test_an_interrupt_between_grant_and_body_frees_the_lock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = acquiring.acquire

    def interrupted(*given: Any, **named: Any) -> Any:
        acquire(*given, **named)
        raise dg.DagsterExecutionInterruptedError

    monkeypatch.setattr(acquiring, "acquire", interrupted)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        job_with(bodies.returns, with_lock(place)).execute_in_process()
    assert place.lock().inspect() is None


def test_a_lock_in_an_asset_check_is_held_as_in_a_step(place: Place) -> None:
    seen: list[object] = []

    @dg.asset
    def table() -> None: ...

    @dg.asset_check(asset=table)
    def looks(context: dg.AssetCheckExecutionContext, lock: LockResource) -> dg.AssetCheckResult:
        seen.append(compat.step_of(context) is not None)
        with lock.hold(context, "k"):
            found = lock.inspect("k")
            seen.append(None if found is None else found.owner.startswith("dagster:"))
        return dg.AssetCheckResult(passed=True)

    assert dg.materialize([table, looks], resources=with_lock(place)).success
    assert seen == [True, True]


def test_a_nested_wait_is_bounded_and_logged(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "LIMIT", 0.5)

    @dg.op
    @locked("k")
    def crosses(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.hold(context, "other"):
            pass

    with held_by_another(place, "other"):
        result = in_process(job_with(crosses, with_lock(place)), instance=instance)
    assert not result.success
    lines = [one.user_message for one in instance.all_logs(result.run_id)]
    assert [line for line in lines if line.startswith("waiting for 'other' while 'k' is held by this step")]


@pytest.mark.parametrize("name", ["deaf"])
def test_an_exiting_step_process_reports_its_loss_for_good(
    place: Place, instance: dg.DagsterInstance, name: str
) -> None:
    with Beside(taken_away(place)):
        result = apart(instance, name, retries=True)
    said = metadata_of(failure_of(result, name))
    assert said["lockstead/reason"] == "REVOKED"
    assert isinstance(said["lockstead/token"], int)
    assert place.count("in") == 1
