"""What a run does when somebody terminates it, holding or waiting: nothing of it lives on, and the lock is free."""

from __future__ import annotations

import time

import pytest

from lockstead import LeaseOutcome, Lock
from tests.dagster.real.conftest import Live, see_all_freed, soon
from tests.servers.marked import is_alive

EXECUTORS = pytest.mark.parametrize("in_process", [True, False], ids=["run worker", "step process"])


def assert_given_back(lock: Lock) -> None:
    """See that a lock is free because its holder gave it back, and not by the end of its lease."""
    lease = lock.try_acquire()
    assert lease is not None
    assert lease.previous_lease.ending is LeaseOutcome.CLEAN
    lease.release()


@EXECUTORS
def test_terminated_runs_free_their_locks_after_their_processes(live: Live, name: str, in_process: bool):
    ops = {f"{name}-{op}": op for op in ("sync_body", "shell_body", "async_body", "pipes_body")}
    runs = {own: live.launch(op, own, in_process=in_process) for own, op in ops.items()}
    for own, run in runs.items():
        live.enters(own, run)
        if ops[own] in ("shell_body", "pipes_body"):
            live.dagster.until(lambda own=own: len(live.processes(own)) >= 2, "its processes do not start")
    for run in runs.values():
        live.dagster.terminate(run)
    see_all_freed(live, runs)
    for own, run in runs.items():
        assert_given_back(live.lock(own))
        assert live.dagster.finished(run) == "CANCELED", live.dagster.story(run)
        assert len(live.noted(own, "enters", run)) == 1


def test_a_force_terminated_run_frees_its_lock_at_the_end(live: Live, name: str):
    run = live.launch("shell_body", name)
    step = live.enters(name, run)["pid"]
    live.dagster.until(lambda: len(live.processes(name)) >= 2, "its processes do not start")
    lock = live.lock(name)
    live.dagster.terminate(run, "MARK_AS_CANCELED_IMMEDIATELY")
    assert live.dagster.status(run) == "CANCELED"
    soon(lambda: lock.inspect() is None, lambda: live.dagster.story(run))
    assert live.processes(name) == []
    assert_given_back(lock)
    soon(lambda: not is_alive(step), lambda: live.dagster.story(run))
    assert live.dagster.status(run) == "CANCELED", live.dagster.story(run)
    assert len(live.noted(name, "enters", run)) == 1


@EXECUTORS
def test_a_waiting_run_can_be_canceled_and_gets_no_lock(live: Live, name: str, in_process: bool):
    lock = live.lock(name, ttl=60)
    with lock.hold() as lease:
        run = live.launch("sync_body", name, in_process=in_process)
        live.waits(run)
        live.dagster.terminate(run)
        assert live.dagster.finished(run) == "CANCELED", live.dagster.story(run)
        assert lease.is_held
    # who would come now is nobody: it is free, and stays so
    ends_at = time.monotonic() + 1.0
    while time.monotonic() < ends_at:
        assert lock.inspect() is None
        time.sleep(0.05)
    assert live.noted(name) == []


def test_the_next_run_enters_when_the_one_before_was_terminated(live: Live, name: str):
    first = live.launch("shell_body", name, in_process=True)
    live.enters(name, first)
    second = live.launch("quick", name, in_process=True)
    live.waits(second)
    live.dagster.terminate(first)
    assert live.dagster.finished(second) == "SUCCESS", live.dagster.story(second)
    (left,) = live.noted(name, "cleans up", first)
    assert live.enters(name, second)["at"] > left["at"]
    assert live.dagster.finished(first) == "CANCELED"
