"""What holds at the edges of a run's lease: its end, its loss in a thread, a database that hangs, who lives on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.reconstruct import build_reconstructable_job
from dagster._core.events import EngineEventData
from dagster._core.execution.api import execute_run
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor

from dagster_lockstead import LockResource, ending, leased, locked, run_lease, sensors, watching
from dagster_lockstead.aborting import Abort
from lockstead import LeaseOutcome, StoreUnavailable
from tests.dagster.taking import LIMIT, Beside, Place, until

ROOT = Path(__file__).parents[2]

LONGER = 600.0
"""Seconds: more than any test may take."""


@dg.op
def nothing() -> None:
    """Do nothing."""


def job_of(op: dg.OpDefinition, executor: dg.ExecutorDefinition, **resources: Any) -> dg.JobDefinition:
    """Return a job of one op."""

    @dg.job(name="j", executor_def=executor, resource_defs=resources)
    def made() -> None:
        op()

    return made


def executed(job: dg.JobDefinition, instance: dg.DagsterInstance) -> Any:
    """Run a job in this process by its own executor; what fails is in the result."""
    run = instance.create_run_for_job(job)
    return execute_run(InMemoryJob(job), run, instance, raise_on_error=False)


def lost_to(place: Place, has_begun: list[int]) -> Beside:
    """Take the lease away, beside, once a body has begun."""

    def take() -> None:
        until(lambda: has_begun, "the body runs")
        place.lock().break_lease(reason="taken away by a test")

    return Beside(take)


class Twice(InProcessExecutor):
    """Gives an event of its own, and two more at its end, as one does whose resources end with errors."""

    def __init__(self, said: list[str], begun: list[int]) -> None:
        super().__init__(RetryMode.DISABLED)
        self._said, self._begun = said, begun

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        """Work until the lease is lost."""
        event = dg.DagsterEvent.engine_event(plan_context, "an event", EngineEventData())
        try:
            self._begun.append(1)
            ends_at = time.monotonic() + LIMIT
            while time.monotonic() < ends_at:
                time.sleep(0.05)
                yield event
            self._said.append("never lost")
        finally:
            self._said.append("first")
            yield event
            self._said.append("second")
            yield event
            self._said.append("third")


def test_the_end_of_an_executor_is_not_cut_short_by_a_loss(place: Place, instance: dg.DagsterInstance) -> None:
    said: list[str] = []
    begun: list[int] = []
    inner = dg.ExecutorDefinition("twice", executor_creation_fn=lambda _: Twice(said, begun))
    job = job_of(nothing, leased(inner, key="k"), lock=LockResource(store=place.url, ttl="2s"))
    with lost_to(place, begun):
        assert not executed(job, instance).success
    assert said == ["first", "second", "third"]


def test_a_step_process_of_a_run_in_a_thread_is_not_retried(
    place: Place, home: Path, instance: dg.DagsterInstance
) -> None:
    job = build_reconstructable_job(
        "tests.dagster.leased_jobs",
        "job_named",
        reconstructable_args=("sleeps", "apart", "retries then"),
        reconstructor_working_directory=str(ROOT),
    )
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(dg.execute_job(job, instance=instance)), daemon=True)
    thread.start()
    until(lambda: place.has("in"), "the body runs")
    place.lock().break_lease(reason="taken away by a test")
    thread.join(LIMIT)
    assert not results[0].success
    assert (place.count("in"), place.count("after")) == (1, 0)
    assert "LeaseLost" in str([one.event_specific_data for one in results[0].all_events if one.is_failure][-1])


class Deathless:
    """ChildProcesses of which one cannot be ended."""

    def end(self, *, grace: float) -> list[int]:
        """Return who lives on."""
        return [1]


def test_a_lock_is_left_to_its_ttl_if_a_process_cannot_be_ended(place: Place) -> None:
    with pytest.raises(ValueError, match="by itself"), place.lock().hold() as lease:
        with ending.ended(Deathless(), Abort(), lease):  # type: ignore[arg-type]
            raise ValueError("by itself")
    assert place.lock().inspect() is not None
    with place.lock().hold(timeout=LIMIT) as lease:
        assert lease.previous_lease.ending is LeaseOutcome.EXPIRED


def test_a_silent_store_does_not_prove_that_all_steps_ended(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_lease.RunLease(_Plan(instance), place.lock(), None, None, is_apart=True)  # type: ignore[arg-type]

    def silent(_lock: object) -> None:
        raise StoreUnavailable("silent")

    with place.lock().hold() as lease:
        assert run._is_alone(lease)
        monkeypatch.setattr(type(place.lock()), "inspect", silent)
        assert not run._is_alone(lease)


class _Plan:
    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.run_id = instance, "run"


def test_an_interrupt_at_the_start_of_the_end_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    interrupts = [KeyboardInterrupt("first"), KeyboardInterrupt("second")]

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            if interrupts:
                raise interrupts.pop(0)

    def sweep() -> None:
        time.sleep(0.3)
        did.append("all")

    monkeypatch.setattr(ending.threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt, match="first"):
        ending.undisturbed(sweep)
    assert did == ["all"]


def test_a_hanging_database_delays_no_runs_lease_and_no_end(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()
    begun: list[float] = []
    told: list[str] = []
    tell = dg.DagsterInstance.report_engine_event
    written = instance.event_log_storage.store_event

    def hangs(self: Any, message: str, *given: Any, **more: Any) -> Any:
        told.append(message)
        back.wait(LONGER)
        return tell(self, message, *given, **more)

    def hangs_for_ours(event: Any) -> None:
        message = (event.dagster_event.message or "") if event.is_dagster_event else ""
        if message.startswith(("acquired: ", "released: ")):
            back.wait(LONGER)
        written(event)

    @dg.op
    def works() -> None:
        begun.append(time.monotonic())

    monkeypatch.setattr(dg.DagsterInstance, "report_engine_event", hangs)
    monkeypatch.setattr(instance.event_log_storage, "store_event", hangs_for_ours)
    job = job_of(works, leased(dg.in_process_executor, key="k"), lock=LockResource(store=place.url, ttl="30s"))
    try:
        assert executed(job, instance).success
        assert place.lock().inspect() is None
    finally:
        back.set()
    assert begun
    assert [one.partition(":")[0] for one in told][:1] == ["acquired"]


def test_an_op_with_the_same_key_in_another_store_is_refused(place: Place, instance: dg.DagsterInstance) -> None:
    @dg.op
    @locked("k", resource="other")
    def asks(context) -> None:
        """Never run."""

    executor = leased(dg.in_process_executor, key="k")
    other = LockResource(store=f"sqlite:///{place.folder}/others.db")
    job = job_of(asks, executor, lock=LockResource(store=place.url), other=other)
    [failure] = [event for event in executed(job, instance).all_events if event.is_failure]
    said = failure.job_failure_data.error.message
    assert "the run holds 'k' of the resource 'lock', and its op 'asks' asks for 'k' of 'other', another store" in said
    # the same store by another name is the same lock
    job = job_of(asks, executor, lock=LockResource(store=place.url), other=LockResource(store=place.url))
    assert executed(job, instance).success


def test_an_instance_in_memory_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(watching, "ASK_EVERY", 0.05)
    monkeypatch.setattr(dg.DagsterInstance, "get_run_by_id", lambda _self, run_id: asked.append(run_id))
    with dg.DagsterInstance.ephemeral() as store:
        watch = watching.Watch(store, "run", gone=lambda _why: None)
        watch.start()
        time.sleep(0.5)
        watch.stop()
    assert asked == []


def test_a_watch_that_stopped_asks_nothing_more(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(watching, "ASK_EVERY", 1.0)
    monkeypatch.setattr(dg.DagsterInstance, "get_run_by_id", lambda _self, run_id: asked.append(run_id))
    for _ in range(20):
        watch = watching.Watch(instance, "run", gone=lambda _why: None)
        watch.start()
        watch.stop()
    assert len(watching._WATCHED["run"]._threads) == 1
    until(lambda: "run" not in watching._WATCHED, "it is forgotten")
    assert asked == []


def test_the_janitor_frees_also_what_comes_late_in_the_alphabet(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "AT_ONCE", 2)
    job = job_of(nothing, dg.in_process_executor)
    runs = [instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED).run_id for _ in range(4)]
    # the last one of those that are asked for, two at once
    *alive, ended = sorted(runs)
    resource = LockResource(store=place.url, ttl="60s")
    for key, run_id in zip("abc", alive, strict=True):
        resource.lock(key, owner=f"dagster:{run_id}").acquire()
    resource.lock("z", owner=f"dagster:{ended}").acquire()
    instance.report_run_failed(instance.get_run_by_id(ended))
    janitor = sensors.stale_lock_sensor(grace=0.0)
    definitions = dg.Definitions(sensors=[janitor], resources={"lock": resource})
    time.sleep(0.1)
    with dg.build_sensor_context(instance=instance, resources={"lock": resource}, definitions=definitions) as context:
        said = janitor.evaluate_tick(context)
    assert said.skip_message is not None
    assert said.skip_message.startswith("revoked the lease of")
    assert "'z'" in said.skip_message
    assert resource.inspect("a").revoked_by is None
