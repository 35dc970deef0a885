"""One lease for a whole run: held from its first step to its last, by whatever process works."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_lockstead import LockResource, leased
from lockstead import LeaseOutcome, LeaseTicket, LockInfo
from tests.dagster.executed import executed
from tests.dagster.program import program
from tests.dagster.runs import error_of, events_of, leased_run, told_by
from tests.dagster.taking import LIMIT, Beside, Place, held_by_another, taken_away, until

SUCCESS, FAILURE, CANCELED = (dg.DagsterRunStatus(name) for name in ("SUCCESS", "FAILURE", "CANCELED"))

WHERE = pytest.mark.parametrize("where", ["here", "apart"])
"""Where the steps run: in the run worker, or in processes of their own."""


@WHERE
def test_all_steps_of_a_run_share_one_lease_which_is_released(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    run = leased_run(instance, "looks", where, "guarded")
    assert run.status is SUCCESS
    seen = [line.split() for line in (place.folder / "seen").read_text().splitlines()]
    assert len(seen) == 3
    assert len({tuple(line) for line in seen}) == 1
    owner, holder, token = seen[0]
    assert owner == f"dagster:{run.run_id}"
    acquired = told_by(instance, run, "acquired")
    assert [(said["lockstead/holder"], said["lockstead/token"]) for said in acquired] == [(holder, int(token))]
    assert [said["lockstead/key"] for said in told_by(instance, run, "released")] == ["k"]
    assert place.lock().inspect() is None


@WHERE
def test_a_run_that_loses_its_lease_fails_and_leaves_no_process(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    with Beside(taken_away(place)):
        run = leased_run(instance, "sleeps", where, "retries then")
    assert run.status is FAILURE
    [lost] = told_by(instance, run, "lost")
    assert lost["lockstead/key"] == "k"
    assert lost["lockstead/reason"] == "REVOKED"
    assert lost["lockstead/holder"].startswith(f"dagster:{run.run_id}/")
    assert isinstance(lost["lockstead/token"], int)
    error = error_of(instance, run)
    assert "LeaseLost" in error
    assert str(lost["lockstead/token"]) in error
    assert (place.count("in"), place.count("finally"), place.count("after")) == (1, 1, 0)


@WHERE
@pytest.mark.parametrize("op", ["swallows", "raises_another"])
def test_a_body_that_swallows_the_interrupt_is_not_retried(
    place: Place, instance: dg.DagsterInstance, where: str, op: str
) -> None:
    with Beside(taken_away(place)):
        run = leased_run(instance, op, where, "retries then")
    assert "LeaseLost" in error_of(instance, run)
    assert (place.count("in"), place.count("after")) == (1, 0)


@WHERE
def test_after_a_loss_all_processes_end_before_the_lock_is_free(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    seen: list[list[int]] = []

    def contend() -> None:
        taken_away(place, started=2)()
        with place.lock().hold(timeout=LIMIT):
            seen.append(place.sleepers())

    with Beside(contend):
        run = leased_run(instance, "shells", where)
    assert seen == [[]], "the lock was free while a process of a step lived"
    assert "LeaseLost" in error_of(instance, run)


@WHERE
def test_a_guarded_step_of_a_lost_run_is_not_retried(place: Place, instance: dg.DagsterInstance, where: str) -> None:
    with Beside(taken_away(place)):
        run = leased_run(instance, "guarded_sleeps", where, "retries then")
    assert "LeaseLost" in error_of(instance, run)
    [failure] = [event for event in events_of(instance, run) if event.event_type_value == "STEP_FAILURE"]
    said = failure.step_failure_data.user_failure_data.metadata
    assert said["lockstead/key"].value == "k"
    assert said["lockstead/holder"].value.startswith(f"dagster:{run.run_id}/")
    # a step process may be ended before it could find out by itself
    assert said["lockstead/reason"].value in ("REVOKED", "the lease is lost")
    assert (place.count("in"), place.count("finally"), place.count("after")) == (1, 1, 0)


def test_a_run_in_another_thread_ends_without_a_retry(place: Place) -> None:
    turns: list[int] = []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=3))
    def body() -> None:
        turns.append(1)
        time.sleep(5)
        raise ValueError("by itself")

    @dg.job(
        executor_def=leased(dg.in_process_executor, key="k"),
        resource_defs={"lock": LockResource(store=place.url, ttl="2s")},
    )
    def made() -> None:
        body()

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(executed(made, fails=True)), daemon=True)
    thread.start()
    until(lambda: turns, "the body runs")
    place.lock().break_lease(reason="taken away by a test")
    # here the main thread is not the body's, and must go on
    ends_at = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < ends_at:
        thread.join(0.05)
    assert not results[0].success
    assert len(turns) == 1


@pytest.mark.slow
def test_a_step_process_that_does_not_stop_is_killed(place: Place, instance: dg.DagsterInstance) -> None:
    with Beside(taken_away(place)):
        run = leased_run(instance, "deaf", "apart")
    assert place.sleepers() == []
    assert "LeaseLost" in error_of(instance, run)
    assert place.count("deaf") >= 1


@pytest.mark.slow
def test_a_run_ends_though_a_dead_step_has_its_event_lock(place: Place, instance: dg.DagsterInstance) -> None:
    with Beside(taken_away(place)):
        run = leased_run(instance, "dies_with_the_lock_of_its_event", "apart")
    assert run.status is FAILURE
    assert "LeaseLost" in error_of(instance, run)
    assert place.count("in") == 1


@WHERE
def test_a_terminated_run_leaves_no_process_and_frees_the_lock(
    place: Place, home: Path, instance: dg.DagsterInstance, where: str
) -> None:
    with program(place, home, "one", "shells", where) as one:
        until(lambda: len(place.sleepers()) == 2, "its processes run")
        one.terminate(instance)
        with place.lock().hold(timeout=LIMIT) as lease:
            assert place.sleepers() == []
            assert lease.previous_lease.ending is LeaseOutcome.CLEAN
        one.ended()
    assert one.run(instance).status is CANCELED, one.log()


@WHERE
def test_a_run_canceled_while_it_waits_never_gets_the_lock(
    place: Place, home: Path, instance: dg.DagsterInstance, where: str
) -> None:
    with place.lock().hold() as other:
        with program(place, home, "one", "sleeps", where) as one:
            run = one.run(instance)
            until(lambda: told_by(instance, run, "waiting"), "the run waits")
            [said] = told_by(instance, run, "waiting")
            assert said["lockstead/key"] == "k"
            assert said["lockstead/held_by"] == other.holder.rpartition("/")[0]
            one.terminate(instance)
            until(lambda: one.run(instance).status is CANCELED, "the run is cancelled")
            one.ended()
            assert other.is_held
    with place.lock().hold(timeout=0) as lease:
        assert lease.previous_lease.ending is LeaseOutcome.CLEAN
    assert not told_by(instance, run, "acquired")
    assert not place.has("in")


def test_a_run_waits_only_as_long_as_it_was_told_to(place: Place, instance: dg.DagsterInstance) -> None:
    with held_by_another(place):
        run = leased_run(instance, "sleeps", "here", "impatient")
    assert "NotAcquired" in error_of(instance, run)
    assert not place.has("in")


@pytest.mark.slow
def test_four_parallel_steps_keep_one_lease_for_four_ttls(place: Place, instance: dg.DagsterInstance) -> None:
    seen: list[LockInfo | None] = []

    def look() -> None:
        until(lambda: len(members(place)) == 4, "all of them work under the run's lease")
        seen.append(place.lock().inspect())

    with Beside(look):
        run = leased_run(instance, "works", "apart", "many")
    assert run.status is SUCCESS
    assert place.count("worked") == 4
    [(holder, token)] = {
        (said["lockstead/holder"], said["lockstead/token"]) for said in told_by(instance, run, "acquired")
    }
    assert [held is not None and held.holder for held in seen] == [holder]
    assert not told_by(instance, run, "lost")
    said = (place.folder / "leases").read_text().splitlines()
    assert len(said) == 4 * 9
    assert set(said) == {f"{holder} {token}"}
    assert place.lock().inspect() is None


def members(place: Place) -> list[LockInfo]:
    """Return the step processes that work under the lease as it is held now."""
    lock = place.lock()
    held = lock.inspect()
    if held is None or held.ttl is None:
        return []
    ticket = LeaseTicket(place.url, held.key, held.holder, held.incarnation, held.ttl)
    return [one for one in lock.members(ticket) if not one.is_expired]


def test_a_run_keeps_its_lease_while_no_step_runs(place: Place, instance: dg.DagsterInstance) -> None:
    holders: set[str | None] = set()

    def look() -> None:
        until(lambda: place.has("in"), "the first attempt runs")
        ends_at = time.monotonic() + LIMIT
        while place.count("attempts") < 2 and time.monotonic() < ends_at:
            held = place.lock().inspect()
            holders.add(held.holder if held is not None and not held.is_expired else None)
            time.sleep(0.1)

    with Beside(look):
        run = leased_run(instance, "fails_once_and_waits", "apart")
    assert run.status is SUCCESS
    [(holder, token)] = {
        (said["lockstead/holder"], said["lockstead/token"]) for said in told_by(instance, run, "acquired")
    }
    assert holders == {holder}
    attempts = (place.folder / "attempts").read_text().splitlines()
    assert attempts == [f"{holder} {token}"] * 2
    logged = [entry for entry in instance.all_logs(run.run_id) if entry.is_dagster_event]
    at = {entry.dagster_event.event_type_value: entry.timestamp for entry in logged}
    assert at["STEP_RESTARTED"] - at["STEP_UP_FOR_RETRY"] > 2, "longer than the ttl of 2 s"


def test_a_gap_between_steps_may_be_longer_than_the_ttl(place: Place, instance: dg.DagsterInstance) -> None:
    # with steps in processes of their own the test above shows it
    assert leased_run(instance, "comes_again", "here", "then").status is SUCCESS
    seen = (place.folder / "seen").read_text().splitlines()
    assert len(seen) == 2
    assert seen[0] == seen[1]


@WHERE
def test_an_unclean_predecessor_refuses_the_run_if_it_is_told_to(
    place: Place, instance: dg.DagsterInstance, where: str
) -> None:
    place.lock().acquire()
    place.lock().break_lease(reason="taken away by a test", now=True)
    for _time in range(2):
        run = leased_run(instance, "sleeps", where, "fail retries")
        assert "PreviousLeaseUnclean" in error_of(instance, run)
    assert not place.has("in")
