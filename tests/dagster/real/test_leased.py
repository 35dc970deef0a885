"""What becomes of a run that holds one lease for all its steps, on a live Dagster: ended, killed, waiting."""

from __future__ import annotations

import os
import signal
import time

import pytest

from lockstead import LeaseOutcome
from tests.dagster.real.conftest import Live, soon
from tests.servers.marked import is_alive

WHERE = pytest.mark.parametrize("where", ["here", "apart"])


def last_tick(live: Live, name: str) -> float:
    """Return the instant at which anything under a name worked last."""
    return float(max(one["at"] for one in live.noted(name, "ticks")))


@WHERE
def test_a_killed_run_worker_leaves_no_process_and_no_lock(live: Live, name: str, where: str):
    first = live.launch_leased("unguarded", name, where)
    step = live.enters(name, first)["pid"]
    live.dagster.until(lambda: live.noted(name, "ticks"), "it does not work")
    second = live.launch_leased("quick_unguarded", name, where)
    live.waits(second)
    worker = live.dagster.run_worker(first)
    assert (step == worker) is (where == "here")
    os.kill(worker, signal.SIGKILL)
    soon(lambda: not live.processes(name) and not is_alive(step), lambda: live.dagster.story(first))
    assert live.dagster.finished(second) == "SUCCESS", live.dagster.story(second)
    assert live.enters(name, second)["at"] > last_tick(live, name)
    assert live.dagster.finished(first) == "FAILURE"


@WHERE
def test_a_terminated_run_frees_its_lock_after_its_steps_ended(live: Live, name: str, where: str):
    run = live.launch_leased("unguarded", name, where)
    step = live.enters(name, run)["pid"]
    live.dagster.until(lambda: live.processes(name), "its process does not start")
    lock = live.lock(name)
    live.dagster.terminate(run)
    soon(lambda: lock.inspect() is None, lambda: live.dagster.story(run))
    assert live.processes(name) == []
    assert where == "here" or not is_alive(step)
    with lock.hold(timeout=0) as lease:
        assert lease.previous_lease.ending is LeaseOutcome.CLEAN
    assert live.dagster.finished(run) == "CANCELED", live.dagster.story(run)


@WHERE
def test_a_waiting_run_is_one_process_and_can_be_canceled(live: Live, name: str, where: str):
    lock = live.lock(name, ttl=60)
    with lock.hold() as lease:
        run = live.launch_leased("quick_unguarded", name, where)
        live.waits(run)
        assert live.dagster.events(run, "STEP_WORKER_STARTING") == []
        live.dagster.terminate(run)
        assert live.dagster.finished(run) == "CANCELED", live.dagster.story(run)
        assert lease.is_held
    ends_at = time.monotonic() + 1.0
    while time.monotonic() < ends_at:
        assert lock.inspect() is None
        time.sleep(0.05)
    assert live.noted(name) == []


@WHERE
def test_a_revoked_runs_steps_end_before_the_lock_is_free(live: Live, name: str, where: str):
    run = live.launch_leased("unguarded_retries", name, where)
    live.enters(name, run)
    live.dagster.until(lambda: live.processes(name), "its process does not start")
    lock = live.lock(name)
    was = lock.inspect()
    assert was is not None
    assert was.owner == f"dagster:{run}"
    assert lock.break_lease(reason="a test wants it", by="test") is not None
    soon(lambda: lock.inspect() is None, lambda: live.dagster.story(run))
    assert live.processes(name) == []
    assert live.dagster.finished(run) == "FAILURE"
    (lost,) = [event for event in live.dagster.events(run, "ENGINE_EVENT") if event.message.startswith("lost:")]
    assert lost.said["lockstead/key"] == name
    assert lost.said["lockstead/reason"] == "REVOKED"
    assert lost.said["lockstead/token"] == str(was.token)
    assert lost.said["lockstead/holder"] == was.holder
    # it has a RetryPolicy
    assert live.spans(run, "STEP_START", "STEP_RESTARTED") == [1, 0]
    assert len(live.noted(name, "enters", run)) == 1
    (failed,) = live.dagster.events(run, "RUN_FAILURE")
    assert "LeaseLost" in failed.error
    assert str(was.token) in failed.error
