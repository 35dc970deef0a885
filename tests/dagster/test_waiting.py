"""A step that waits for its lock says for whom, waits no longer than it was told, and gets nothing once it is ended."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, held_leases, locked, watching
from lockstead import nesting
from tests.dagster import bodies
from tests.dagster.runs import in_leased_run, in_process, job_with
from tests.dagster.taking import LIMIT, Beside, Place, held_by_another, taken_away, until

LONGER = 600.0
"""Seconds: more than any test may take."""


def engine_events(instance: dg.DagsterInstance, run_id: str) -> list[Any]:
    return [
        one.dagster_event
        for one in instance.all_logs(run_id)
        if one.dagster_event is not None
        and one.dagster_event.event_type_value == "ENGINE_EVENT"
        and one.dagster_event.message.partition(":")[0] in ("waiting", "acquired", "lost")
    ]


def interrupted_once(is_so: Callable[[], object]) -> Callable[[], None]:
    """Do as a run launcher does on `terminate`: SIGINT to the process that runs the step."""

    def interrupt() -> None:
        until(is_so, "the time to interrupt")
        os.kill(os.getpid(), signal.SIGINT)

    return interrupt


def test_a_wait_and_its_grant_are_reported_with_the_holder(place: Place) -> None:
    holding = lockstead.Lock(f"{place.url}#k", owner="somebody/else", purpose="publish")

    def release() -> None:
        with holding.hold():
            started.set()
            waits.wait(60)
            time.sleep(0.2)

    started, waits = threading.Event(), threading.Event()

    @dg.op
    @locked(lambda context: waits.set() or "k")
    def waiter() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance, Beside(release):
        started.wait(60)
        result = in_process(job_with(waiter, {"lock": LockResource(store=place.url)}), instance=instance)
        assert result.success
        waiting, acquired = engine_events(instance, result.run_id)
    assert waiting.message.startswith("waiting: 'k' is held by 'somebody/else' since ")
    assert "(purpose: publish)" in waiting.message
    said = {name: value.value for name, value in waiting.event_specific_data.metadata.items()}
    assert said["lockstead/held_by"] == "somebody/else"
    assert acquired.message.startswith("acquired: 'k' with token ")
    assert acquired.event_specific_data.metadata["lockstead/waited"].value > 0.1
    assert acquired.step_key == "waiter"


def test_an_immediate_grant_is_reported_for_a_whole_body_only(place: Place) -> None:
    @dg.op
    @locked("k")
    def whole() -> None: ...

    @dg.op
    def part(context: dg.OpExecutionContext, lock: LockResource) -> None:
        with lock.hold(context, "k"):
            pass

    told = {}
    for op in (whole, part):
        with dg.DagsterInstance.ephemeral() as instance:
            result = in_process(job_with(op, {"lock": LockResource(store=place.url)}), instance=instance)
            told[op.name] = [event.message.partition(":")[0] for event in engine_events(instance, result.run_id)]
            run = instance.get_run_by_id(result.run_id)
            assert run is not None
            assert not [tag for tag in run.tags if "lockstead" in tag]
    assert told == {"whole": ["acquired"], "part": []}


def test_a_loss_is_told_with_its_reason(place: Place) -> None:
    with dg.DagsterInstance.ephemeral() as instance, Beside(taken_away(place)):
        result = in_process(bodies.job_of(bodies.sleeps), instance=instance)
        events = engine_events(instance, result.run_id)
    assert [event.message.partition(":")[0] for event in events] == ["acquired", "lost"]
    assert events[1].event_specific_data.metadata["lockstead/reason"].value == "REVOKED"


def test_a_wait_ends_after_the_timeout_and_names_who_holds(place: Place) -> None:
    @dg.op
    @locked("k", timeout=0.3)
    def waiter() -> None: ...

    with held_by_another(place):
        result = in_process(job_with(waiter, {"lock": LockResource(store=place.url, timeout="1h")}))
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "somebody/else" in failed.step_failure_data.error.to_string()
    assert "NotAcquired" in failed.step_failure_data.error.to_string()


def test_a_step_terminated_while_it_waits_ends_at_once(place: Place) -> None:
    waits = threading.Event()

    @dg.op
    @locked(lambda context: waits.set() or "k")
    def waiter() -> None:
        raise AssertionError("it ran")

    def interrupt() -> None:
        waits.wait(60)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    with held_by_another(place):
        with Beside(interrupt), pytest.raises(dg.DagsterExecutionInterruptedError):
            job_with(waiter, {"lock": LockResource(store=place.url)}).execute_in_process()
        # it did not wait for the other one's end
        held = place.lock().inspect()
        assert held is not None
        assert held.owner == "somebody/else"
    assert place.lock().inspect() is None
    time.sleep(0.3)
    assert place.lock().inspect() is None


@pytest.mark.parametrize("op", [bodies.sleeps, bodies.awaits, bodies.shells, bodies.holds], ids=lambda op: op.name)
def test_a_terminated_step_leaves_no_process_and_frees_the_lock(place: Place, op: Any) -> None:
    def is_in() -> bool:
        return place.has("in") and (op is not bodies.shells or len(place.sleepers()) > 1)

    seen: list[tuple[list[int], lockstead.LeaseOutcome]] = []

    def interrupt() -> None:
        interrupted_once(is_in)()
        ends_at = time.monotonic() + LIMIT
        # one that comes just before a system call that waits does not end that call
        while not place.has("finally") and time.monotonic() < ends_at:
            time.sleep(2)
            if not place.has("finally"):
                os.kill(os.getpid(), signal.SIGINT)
        with place.lock().hold(timeout=LIMIT) as lease:
            seen.append((place.sleepers(), lease.previous_lease.ending))

    with Beside(interrupt), pytest.raises(dg.DagsterExecutionInterruptedError):
        bodies.job_of(op).execute_in_process()
    assert seen == [([], lockstead.LeaseOutcome.CLEAN)]
    assert place.lock().inspect() is None
    assert (place.count("finally"), place.count("undisturbed")) == (1, 0)


def test_a_step_terminated_while_it_writes_frees_the_lock(place: Place) -> None:
    with (
        Beside(interrupted_once(lambda: place.has("in"))),
        pytest.raises(dg.DagsterExecutionInterruptedError) as kept,
    ):
        bodies.job_of(bodies.writes).execute_in_process()
    assert place.lock().inspect() is None
    del kept


def test_a_step_whose_run_is_over_ends_and_gives_the_lock_back(place: Place, instance: dg.DagsterInstance) -> None:
    def finish() -> None:
        until(lambda: place.has("in"), "the body runs")
        (run,) = instance.get_runs()
        instance.report_run_canceled(run)

    with Beside(finish):
        result = in_process(bodies.job_of(bodies.sleeps), instance=instance)
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "has ended: CANCELED" in failed.step_failure_data.user_failure_data.metadata["lockstead/reason"].value
    assert place.count("finally") == 1
    assert place.lock().inspect() is None


def test_a_waiting_step_of_an_ended_run_never_gets_the_lock(place: Place, instance: dg.DagsterInstance) -> None:
    @dg.op
    @locked("k")
    def waiter() -> None:
        (place.folder / "in").write_text("here\n")

    with held_by_another(place):

        def finish() -> None:
            until(lambda: engine_events_of_all(instance), "it waits")
            (run,) = instance.get_runs()
            instance.report_run_canceled(run)

        with Beside(finish):
            result = in_process(job_with(waiter, {"lock": LockResource(store=place.url)}), instance=instance)
    assert not result.success
    assert not place.has("in")


def test_a_wait_within_a_leased_run_for_another_key_is_bounded(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "LIMIT", 0.5)
    with held_by_another(place, "other"):
        result = in_leased_run(instance, "wants_another")
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "NotAcquired" in failed.step_failure_data.error.to_string()
    lines = [one.user_message for one in instance.all_logs(result.run_id)]
    assert [line for line in lines if line.startswith("waiting for 'other' while 'k' is held by this run")]
    assert place.lock().inspect() is None


def engine_events_of_all(instance: dg.DagsterInstance) -> list[Any]:
    return [event for run in instance.get_runs() for event in engine_events(instance, run.run_id)]


def test_a_database_that_hangs_delays_no_release(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    @dg.op
    @locked("k")
    def works() -> int:
        (place.folder / "in").write_text("here\n")
        return 1

    def contend() -> None:
        until(lambda: place.has("in"), "the body runs")
        assert place.lock().wait_until_free(LIMIT)

    monkeypatch.setattr(instance, "report_engine_event", lambda *_, **__: hangs.wait(LONGER))
    with Beside(contend):
        assert in_process(job_with(works, {"lock": LockResource(store=place.url)}), instance=instance).success
    assert place.lock().inspect() is None
    hangs.set()


def test_nothing_grows_with_each_run(place: Place) -> None:
    job = job_with(bodies.returns, bodies.RESOURCES)
    handler = signal.getsignal(signal.SIGUSR2)

    def threads() -> int:
        gc.collect()  # a store is closed with its last user
        return len([one for one in threading.enumerate() if one.name.startswith("lockstead")])

    before = threads()
    for _ in range(3):
        assert in_process(job).success
    until(lambda: threads() <= before, "the threads have ended")
    until(lambda: not watching._WATCHED, "nobody watches")
    assert held_leases.count() == 0
    assert signal.getsignal(signal.SIGUSR2) == handler
