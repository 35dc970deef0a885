"""The same key again, within a step: the inner exit keeps the lock. Two keys in opposite order: a bounded wait."""

import threading
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, held_leases, locked
from lockstead.wrapping.locks import store_of
from tests.dagster.runs import failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import Beside, Place, taken_away, until


def test_the_inner_exit_of_the_same_key_keeps_the_lock(place: Place) -> None:
    seen: list[object] = []

    @dg.op
    @locked("k")
    def nests(context: dg.OpExecutionContext, lock: LockResource) -> None:
        outer = lockstead.current_lease()
        with lock.hold(context, "k") as middle:
            with lock.hold(context, "k") as inner:
                seen.append(inner is middle is outer)
        seen.append(outer.is_held)
        found = lock.inspect("k")
        seen.append(found is not None and found.holder == outer.holder)

    assert in_process(job_with(nests, {"lock": LockResource(store=place.url)})).success
    assert seen == [True, True, True]
    assert place.lock().inspect() is None
    assert held_leases.count() == 0


def test_the_same_key_of_another_store_is_another_lock(place: Place) -> None:
    seen: list[bool] = []

    @dg.op
    @locked("k")
    def nests(context: dg.OpExecutionContext, other: LockResource) -> None:
        outer = lockstead.current_lease()
        with other.hold(context, "k") as inner:
            seen.append(inner is not outer and inner.is_held)

    resources = {"lock": LockResource(store=place.url), "other": LockResource(store=f"{place.url}.other")}
    assert in_process(job_with(nests, resources)).success
    assert seen == [True]


@pytest.mark.parametrize(("outer", "inner"), [("another", "k"), ("k", "another")], ids=["inner", "outer"])
def test_a_loss_in_nested_sections_fails_the_step_and_frees_both(place: Place, outer: str, inner: str) -> None:
    @dg.op
    @locked(outer)
    def nests(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.hold(context, inner):
            (place.folder / "in").write_text("here\n")
            threading.Event().wait(60)

    with Beside(taken_away(place)):
        result = in_process(job_with(nests, {"lock": LockResource(store=place.url, ttl=2)}))
    assert metadata_of(failure_of(result, "nests"))["lockstead/key"] == "k"
    assert place.lock("another").inspect() is None


def test_two_keys_in_opposite_order_wait_for_a_bounded_time(place: Place) -> None:
    here = threading.Barrier(2, timeout=60)
    results: list[Any] = []

    def op_of(first: str, second: str) -> dg.OpDefinition:
        @dg.op(name=f"{first}_{second}")
        @locked(first)
        def crosses(context: dg.OpExecutionContext, lock: LockResource) -> None:
            here.wait()
            with lock.hold(context, second, timeout=1):
                pass

        return crosses

    def run(first: str, second: str) -> None:
        results.append(in_process(job_with(op_of(first, second), {"lock": LockResource(store=place.url)})))

    with Beside(lambda: run("a", "b")):
        run("b", "a")
    assert len(results) == 2
    failures = [event for result in results for event in result.all_events if event.is_step_failure]
    assert failures
    assert all("NotAcquired" in event.step_failure_data.error.to_string() for event in failures)
    for key in ("a", "b"):
        assert place.lock(key).inspect() is None


def test_a_step_in_the_runs_process_uses_its_lease_unreleased(place: Place) -> None:
    seen: list[object] = []

    @dg.op
    @locked("k")
    def guest(context: dg.OpExecutionContext, lock: LockResource) -> None:
        seen.append(context.op_execution_context.run_id if hasattr(context, "op_execution_context") else context.run_id)
        found = lock.inspect("k")
        seen.append(None if found is None else found.owner)
        seen.append(lockstead.current_lease().is_member)

    run_id = "00000000-0000-0000-0000-000000000001"
    lock = lockstead.Lock(f"{place.url}#k", owner=f"dagster:{run_id}")
    with (
        lock.hold() as lease,
        held_leases.recorded(held_leases.RunKey(run_id, None, store_of(lock), "k"), lease),
    ):
        result = in_process(job_with(guest, {"lock": LockResource(store=place.url)}), run_id=run_id)
        assert result.success
        assert lease.is_held
    assert seen == [run_id, f"dagster:{run_id}", False]


def test_a_step_process_joins_and_leaves_its_runs_lease(place: Place) -> None:
    seen: list[object] = []

    @dg.op
    @locked("k")
    def joins(context: dg.OpExecutionContext) -> None:
        lease = lockstead.current_lease()
        seen.append((lease.is_member, lease.holder.partition("/")[0]))

    run_id = "00000000-0000-0000-0000-000000000002"
    lock = lockstead.Lock(f"{place.url}#k", owner=f"dagster:{run_id}")
    with lock.hold() as lease:
        result = in_process(job_with(joins, {"lock": LockResource(store=place.url)}), run_id=run_id)
        assert result.success
        assert lease.is_held
        assert lock.members(lease.share()) is not None
    assert seen == [(True, f"dagster:{run_id}")]
    until(lambda: lock.inspect() is None, "the lock is free", 5)
