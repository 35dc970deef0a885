"""What becomes of a lock when processes of a run are killed: nobody enters while anything of the one before works."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.dagster.real.conftest import Live, soon
from tests.servers.marked import is_alive


def ends_of(live: Live, name: str, run: str = "") -> float:
    """Return the instant at which something under this name, or of a run, worked last."""
    return float(max(one["at"] for one in live.noted(name, "ticks", run)))


def told(live: Live, run: str, word: str) -> list[Any]:
    """Return the engine events of a run that begin with a word."""
    return [event for event in live.dagster.events(run, "ENGINE_EVENT") if event.message.startswith(word)]


def test_a_killed_run_workers_processes_end_before_the_next_run(live: Live, name: str):
    first = live.launch("ticking_body", name, in_process=True)
    entered = live.enters(name, first)
    live.dagster.until(lambda: live.noted(name, "ticks"), "it does not work")
    worker = live.dagster.run_worker(first)
    assert entered["pid"] == worker
    os.kill(worker, signal.SIGKILL)
    soon(lambda: not live.processes(name), lambda: live.dagster.story(first))
    # it was not the end of its lease that ended them
    held = live.lock(name).inspect()
    assert held is not None
    assert not held.is_expired
    assert held.owner == f"dagster:{first}:ticking_body:0"
    assert live.dagster.finished(first) == "FAILURE"


@pytest.mark.parametrize("op", ["counting_body", "deaf_body"])
def test_an_orphan_step_ends_itself_and_nobody_enters_before(live: Live, name: str, op: str):
    first = live.launch(op, name)
    orphan = live.enters(name, first)["pid"]
    second = live.launch("quick", name, in_process=True)
    live.waits(second)
    worker = live.dagster.run_worker(first)
    assert orphan != worker
    os.kill(worker, signal.SIGKILL)
    soon(lambda: not is_alive(orphan), lambda: live.dagster.story(first))
    assert live.dagster.finished(second) == "SUCCESS", live.dagster.story(second)
    entered_at = live.enters(name, second)["at"]
    assert entered_at > ends_of(live, name)
    if op == "deaf_body":
        # it is left after a while, and its lease runs out
        assert live.noted(name, "hears", first)
    else:
        # it gave the lock back: its lease would live longer than anything is waited for
        assert live.noted(name, "cleans up", first)
    assert live.dagster.finished(first) == "FAILURE"


def test_a_killed_step_is_retried_with_a_higher_token(live: Live, name: str):
    run = live.launch("retried_body", name)
    entered = live.enters(name, run)
    before = live.lock(name).inspect()
    assert before is not None
    os.kill(entered["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    again = live.enters(name, run, times=2)
    assert (entered["retry"], again["retry"]) == (0, 1)
    # nobody can tell a holder that is dead from one that is slow: its lease is waited for
    assert again["at"] - killed_at > 6.0 / 2
    first, second = (int(event.said["lockstead/token"]) for event in told(live, run, "acquired:"))
    assert second > first
    holders = [event.said["lockstead/holder"] for event in told(live, run, "acquired:")]
    assert holders[0] == before.holder
    assert holders[1].startswith(f"dagster:{run}:retried_body:1")


def test_a_reexecuted_run_waits_while_an_orphan_works(live: Live, name: str):
    first = live.launch("counting_body", name)
    orphan = live.enters(name, first)["pid"]
    # it stands still, so that it cannot end itself while the other one asks
    os.kill(orphan, signal.SIGSTOP)
    try:
        os.kill(live.dagster.run_worker(first), signal.SIGKILL)
        assert live.dagster.finished(first) == "FAILURE"
        again = live.dagster.execute_again(first)
        live.waits(again)
        ends_at = time.monotonic() + 2.0
        while time.monotonic() < ends_at:
            held = live.lock(name).inspect()
            assert held is not None
            assert held.owner == f"dagster:{first}:counting_body:0"
            assert live.noted(name, "enters", again) == []
            time.sleep(0.05)
    finally:
        os.kill(orphan, signal.SIGCONT)
    entered = live.enters(name, again)
    assert not is_alive(orphan) or ends_of(live, name, first) < entered["at"]
    live.dagster.terminate(again)
    assert live.dagster.finished(again) == "CANCELED"
    assert ends_of(live, name, first) < entered["at"]


@pytest.mark.parametrize("in_process", [True, False], ids=["run worker", "step process"])
def test_a_waiter_whose_run_worker_is_killed_never_gets_the_lock(live: Live, name: str, in_process: bool):
    lock = live.lock(name, ttl=60)
    with lock.hold():
        run = live.launch("quick", name, in_process=in_process)
        live.waits(run)
        waiter = live.dagster.run_worker(run) if in_process else live.dagster.step_worker(run, "quick")
        os.kill(live.dagster.run_worker(run), signal.SIGKILL)
        soon(lambda: not is_alive(waiter), lambda: live.dagster.story(run))
        assert live.dagster.finished(run) == "FAILURE"
    assert lock.inspect() is None
    assert live.noted(name) == []
