"""A body is ended from without, at the worst instants: by who terminates the run, or in a process that must live on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import build_reconstructable_job

import lockstead
from dagster_lockstead import LockResource, ending, locked
from tests.dagster import bodies
from tests.dagster.runs import failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import Beside, Place, held_by_another, taken_away, until


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note who would leave this process, after a grace that is short."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(ending, "GRACE", 0.8)
    return codes


def test_a_process_that_runs_more_than_one_step_is_never_left(place: Place, exits: list[int]) -> None:
    @dg.op
    @locked("k")
    def stubborn() -> int:
        bodies.note("in")
        ends_at = None
        while ends_at is None or time.monotonic() < ends_at:
            try:
                time.sleep(60 if ends_at is None else 0.1)
            except BaseException:
                ends_at = time.monotonic() + 3
        return 1

    with Beside(taken_away(place)):
        result = in_process(job_with(stubborn, {"lock": LockResource(store=place.url, ttl=2)}))
    assert metadata_of(failure_of(result, "stubborn"))["lockstead/reason"] == "REVOKED"
    assert exits == []
    assert place.is_free()


def test_a_run_worker_never_exits_for_steps_that_do_not_stop(
    place: Place, instance: dg.DagsterInstance, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = instance.handle_new_event

    def slow(entry: Any, **given: Any) -> Any:
        # whoever would leave it does so after its steps have ended, and before it is over
        if entry.is_dagster_event and entry.dagster_event.is_step_failure:
            time.sleep(3)
        return real(entry, **given)

    monkeypatch.setattr(instance, "handle_new_event", slow)
    job = build_reconstructable_job(
        "tests.dagster.leased_jobs",
        "job_named",
        reconstructable_args=("deaf", "apart", ""),
        reconstructor_working_directory=str(Path(__file__).parents[2]),
    )
    with Beside(taken_away(place, started=2)):
        result = dg.execute_job(job, instance=instance)
    assert not result.success
    assert exits == []
    assert place.sleepers() == []
    assert place.is_free()


def interrupted_within(real: Callable[..., Any], granted: list[Any]) -> Callable[..., Any]:
    """Interrupt who asks, once it has been granted the lock and has not been told."""

    def acquire(lock: lockstead.Lock, *given: Any) -> Any:
        lease = real(lock, *given)
        if lease is not None:
            granted.append(lease.holder)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        return lease

    return acquire


@pytest.mark.parametrize("waits", [False, True], ids=["at_once", "after_a_wait"])
def test_a_grant_to_a_step_that_ends_meanwhile_is_released(
    place: Place, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    granted: list[Any] = []
    name = "acquire" if waits else "try_acquire"
    job = bodies.job_of(bodies.returns)
    with monkeypatch.context() as patched:
        if waits:
            # whoever holds it at first is gone at the second look
            patched.setattr(lockstead.Lock, "try_acquire", lambda *_: None)
        patched.setattr(lockstead.Lock, name, interrupted_within(getattr(lockstead.Lock, name), granted))
        with pytest.raises(dg.DagsterExecutionInterruptedError) as kept:
            job.execute_in_process()
        assert place.lock().inspect() is None
    assert len(granted) == 1
    assert not place.has("in")
    with place.lock().hold(timeout=0) as lease:
        assert lease.previous_lease.ending is lockstead.LeaseOutcome.CLEAN
    del kept


def test_a_terminated_run_that_lost_its_lease_is_canceled(place: Place) -> None:
    with dg.DagsterInstance.ephemeral() as instance:

        def end() -> None:
            taken_away(place)()
            [run] = instance.get_runs()
            instance.report_run_canceling(run)
            os.kill(os.getpid(), signal.SIGINT)

        # of the interrupt or of the loss, whichever the step leaves with
        with Beside(end), suppress(dg.DagsterExecutionInterruptedError, dg.Failure):
            bodies.job_of(bodies.sleeps).execute_in_process(instance=instance)
        [run] = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.CANCELED
    assert place.count("finally") == 1
    until(place.is_free, "the lock is free", 5)


def test_a_wait_that_is_ended_leaves_the_lock_to_who_holds_it(place: Place) -> None:
    waits: list[int] = []

    @dg.op
    @locked(lambda context: waits.append(1) or "k")
    def waiter() -> None:
        raise AssertionError("it ran")

    def end() -> None:
        until(lambda: waits, "it asks")
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    with held_by_another(place):
        with Beside(end), pytest.raises(dg.DagsterExecutionInterruptedError):
            job_with(waiter, {"lock": LockResource(store=place.url)}).execute_in_process()
        held = place.lock().inspect()
        assert held is not None
        assert held.owner == "somebody/else"
