"""What is told of a lock is told once, holds up no section, and is written before the step's own end."""

import logging
import threading
import time
from typing import Any

import dagster as dg
import pytest

import lockstead
from dagster_lockstead import LockResource, locked, reporting
from tests.dagster.runs import apart, in_process, job_with
from tests.dagster.taking import Beside, Place, held_by_another, taken_away, until

LATE = 0.5
"""Seconds that a write takes here: the step's own events take some milliseconds."""


def told(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Return the types of a run's events in the order in which they were written; of the lock's its first word."""
    events = [one.dagster_event for one in instance.all_logs(run_id) if one.dagster_event is not None]
    return [
        (one.message or "").partition(":")[0] if one.event_type_value == "ENGINE_EVENT" else one.event_type_value
        for one in events
    ]


def slowly(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, begins: threading.Event) -> None:
    """Have the events of locks take their time, once this begins."""
    report = instance.report_engine_event

    def late(*given: Any, **more: Any) -> Any:
        begins.wait(20)
        time.sleep(LATE)
        return report(*given, **more)

    monkeypatch.setattr(instance, "report_engine_event", late)


def test_a_wait_is_told_once(place: Place, instance: dg.DagsterInstance) -> None:
    @dg.op
    @locked("k", timeout=0.5)
    def waiter() -> None: ...

    with held_by_another(place):
        result = in_process(job_with(waiter, {"lock": LockResource(store=place.url)}), instance=instance)
    lines = [
        one.user_message or (one.dagster_event.message if one.dagster_event else "")
        for one in instance.all_logs(result.run_id)
        if one.dagster_event is None or one.dagster_event.event_type_value == "ENGINE_EVENT"
    ]
    (line,) = [line for line in lines if "somebody/else" in line]
    assert line.startswith("waiting: 'k' is held by 'somebody/else' since ")


def test_a_wait_reports_since_when_token_deadline_and_run(
    place: Place, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    @dg.op
    @locked("k", timeout=0.5)
    def waiter() -> None: ...

    run_id = "0a1b2c3d-0000-4000-8000-000000000001"
    leases: list[lockstead.Lease] = []

    def hold() -> None:
        owner = f"dagster:{run_id}:publish:0"
        leases.append(lockstead.Lock(f"{place.url}#k", owner=owner, purpose="publish", expected="1h").acquire())
        leases[0].sequencer()

    with Beside(hold):
        pass
    result = in_process(job_with(waiter, {"lock": LockResource(store=place.url)}), instance=instance)
    (event,) = [
        one.dagster_event
        for one in instance.all_logs(result.run_id)
        if one.dagster_event is not None and (one.dagster_event.message or "").startswith("waiting:")
    ]
    said = event.event_specific_data.metadata
    assert said["lockstead/held_by_run"] == dg.MetadataValue.dagster_run(run_id)
    assert said["lockstead/held_with_token"].value == leases[0].token
    since, until_when = (said[f"lockstead/{name}"].value for name in ("held_since", "expected_until"))
    assert since.endswith(" UTC")
    assert since < until_when
    assert f"since {since} (purpose: publish), token {leases[0].token}" in (event.message or "")
    (told,) = [one.getMessage() for one in caplog.records if "waiting: 'k'" in one.getMessage()]
    assert told.startswith(time.strftime("%Y-%m-%d "))
    assert f" run {result.run_id}: waiting: " in told
    leases[0].release()


def test_events_are_written_after_a_section_and_before_its_step(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    seen: list[list[str]] = []
    monkeypatch.setattr(reporting, "JOIN", 60.0)
    slowly(instance, monkeypatch, is_over)

    @locked("k")
    def section() -> None: ...

    @dg.op
    def works(context: dg.OpExecutionContext, lock: LockResource) -> None:
        for _event in section(context, lock=lock):  # type: ignore[call-arg, attr-defined]
            pass
        seen.append([one for one in told(instance, context.run_id) if one == "acquired"])
        is_over.set()

    result = in_process(job_with(works, {"lock": LockResource(store=place.url)}), instance=instance)
    assert result.success
    assert seen == [[]]
    order = told(instance, result.run_id)
    assert order.index("acquired") < order.index("STEP_SUCCESS")


def test_events_of_a_failing_step_are_written_before_its_failure(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            raise OSError("the disk is full")

        def load_input(self, context: dg.InputContext) -> None: ...

    @dg.op
    @locked("k")
    def yields() -> Any:
        yield dg.Output(1)

    begins = threading.Event()
    begins.set()
    slowly(instance, monkeypatch, begins)
    resources = {"lock": LockResource(store=place.url), "io_manager": Fails()}
    result = in_process(job_with(yields, resources), instance=instance)
    assert not result.success
    order = told(instance, result.run_id)
    assert order.index("acquired") < order.index("STEP_FAILURE")


def test_a_step_process_that_ends_has_told_all(place: Place, instance: dg.DagsterInstance) -> None:
    result = apart(instance, "returns")
    assert result.success
    order = told(instance, result.run_id)
    assert order.index("acquired") < order.index("STEP_SUCCESS")


def test_sections_in_several_threads_share_one_wait_for_events(place: Place, instance: dg.DagsterInstance) -> None:
    seen: list[int] = []
    crossing = threading.Barrier(4, timeout=60)

    @dg.op
    def shares(context: dg.OpExecutionContext, lock: LockResource) -> None:
        step = context.get_step_execution_context()

        def tell(number: int) -> None:
            reporter = reporting.Reporter(step)
            reporter.waiting(f"k{number}", None)
            crossing.wait()
            reporter.close()

        with Beside(lambda: tell(1)), Beside(lambda: tell(2)), Beside(lambda: tell(3)):
            tell(0)
        seen.append(sum(isinstance(one, reporting._EndOfStep) for one in step.log.handlers))

    result = in_process(job_with(shares, {"lock": LockResource(store=place.url)}), instance=instance)
    assert result.success
    assert seen == [1]
    order = told(instance, result.run_id)
    assert [one for one in order if one in ("waiting", "STEP_SUCCESS")] == ["waiting"] * 4 + ["STEP_SUCCESS"]
    until(lambda: not [one for one in threading.enumerate() if one.name == "lockstead-reporting"], "all is told", 10)


def test_a_warning_is_written_while_somebody_configures_logging(place: Place, instance: dg.DagsterInstance) -> None:
    """logging.config.dictConfig takes the lock of `logging`, then that of each handler."""

    @dg.op
    def warns(context: dg.OpExecutionContext) -> None:
        reporter = reporting.Reporter(context.get_step_execution_context())
        handlers = [found for one in logging._handlerList if (found := one()) is not None and found.lock is not None]
        for handler in handlers:
            handler.acquire()
        try:
            reporter.warn("mind the gap")
            until(lambda: "mind the gap" in [one.user_message for one in instance.all_logs(context.run_id)], "told", 20)
        finally:
            for handler in handlers:
                handler.release()
            reporter.close()

    result = in_process(job_with(warns, {}), instance=instance)
    assert result.success
    (line,) = [one for one in instance.all_logs(result.run_id) if one.user_message == "mind the gap"]
    assert (line.level, line.step_key) == (logging.WARNING, "warns")


def test_an_ephemeral_instance_is_written_by_the_step_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads that write to it at once one fails, and that may be the step."""

    @dg.op
    @locked("k", ttl="2s")
    def loses() -> None:
        (place.folder / "in").write_text("here\n")
        time.sleep(600)

    with dg.DagsterInstance.ephemeral() as instance:
        storage, writers = instance.event_log_storage, set[int]()
        store = storage.store_event

        def noted(event: Any) -> None:
            writers.add(threading.get_ident())
            store(event)

        monkeypatch.setattr(storage, "store_event", noted)
        with Beside(taken_away(place)):
            result = in_process(job_with(loses, {"lock": LockResource(store=place.url)}), instance=instance)
        assert not result.success
        order = told(instance, result.run_id)
    assert [one for one in order if one in ("acquired", "lost", "STEP_FAILURE")] == ["acquired", "lost", "STEP_FAILURE"]
    assert writers == {threading.get_ident()}
