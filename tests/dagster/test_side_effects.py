"""Side effects: a locked step leaves Dagster's database, handlers and schedules alone."""

import gc
import logging
import os
import signal
import threading
from pathlib import Path

import dagster as dg
import pytest

from dagster_lockstead import LockResource, held_leases, locked, watching
from tests.dagster import bodies
from tests.dagster.runs import failure_of, in_process, job_with, metadata_of
from tests.dagster.taking import LIMIT, Beside, Place, taken_away, until

LONGER = 600.0
"""Seconds: more than any test may take."""


def test_a_hanging_database_does_not_delay_a_lost_bodys_end(
    place: Place, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    free: list[bool] = []

    def contend() -> None:
        taken_away(place)()
        with place.lock().hold(timeout=LIMIT):
            free.append(True)

    real = instance.get_run_by_id

    def asked(run_id: str) -> object:
        # the watch asks from a thread of its own
        if threading.current_thread().name == "lockstead-run":
            hangs.wait(LONGER)
        return real(run_id)

    monkeypatch.setattr(instance, "report_engine_event", lambda *_, **__: hangs.wait(LONGER))
    monkeypatch.setattr(instance, "get_run_by_id", asked)
    try:
        with Beside(contend):
            result = in_process(bodies.job_of(bodies.sleeps), instance=instance)
    finally:
        hangs.set()
    assert metadata_of(failure_of(result, "sleeps"))["lockstead/reason"] == "REVOKED"
    # the database hangs longer than any test may take, so that it held up nobody who came here
    assert free == [True]
    assert place.count("undisturbed") == 0


def test_a_users_signal_handler_works_within_and_after_a_body(place: Place) -> None:
    heard: list[int] = []

    def handler(number: int, _frame: object) -> None:
        heard.append(number)

    @dg.op
    @locked("k")
    def signals() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        until(lambda: heard, "the author's handler is called", 5)

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        assert in_process(job_with(signals, {"lock": LockResource(store=place.url)})).success
        with Beside(taken_away(place)):
            failure_of(in_process(bodies.job_of(bodies.sleeps)), "sleeps")
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2], "the interrupt of a body is not the author's"


def test_a_hold_in_a_schedule_holds_and_leaves_no_handler(place: Place) -> None:
    seen: list[object] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)}

    @dg.schedule(job_name="j", cron_schedule="* * * * *")
    def ticks(context: dg.ScheduleEvaluationContext, lock: LockResource) -> dg.SkipReason:
        with lock.hold(context, "k") as lease:
            held = lock.inspect("k")
            seen.append(held is not None and held.holder == lease.holder)
            seen.append({number: signal.getsignal(number) for number in before} == before)
        return dg.SkipReason("never")

    lock = LockResource(store=place.url)
    ticks(dg.build_schedule_context(resources={"lock": lock}))
    assert seen == [True, True]
    assert place.lock().inspect() is None
    assert held_leases.count() == 0


def test_a_run_leaves_no_file_process_or_log_handler(place: Place) -> None:
    job = job_with(bodies.returns, bodies.RESOURCES)

    def counted() -> tuple[int, int, int]:
        gc.collect()  # a store is closed with its last user
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        handlers = sum(len(getattr(one, "handlers", ())) for one in [*logging.root.manager.loggerDict.values()])
        return len(list(Path("/proc/self/fd").iterdir())), len(children), handlers

    for _ in range(2):
        assert in_process(job).success
    until(lambda: not watching._WATCHED, "nobody watches", 20)
    before = counted()
    for _ in range(5):
        assert in_process(job).success
    until(lambda: all(now <= then for now, then in zip(counted(), before, strict=True)), f"no more than {before}", 20)
