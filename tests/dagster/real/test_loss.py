"""What becomes of a body whose lease is taken away, on a live Dagster: it fails once, and nothing of it lives on."""

from __future__ import annotations

import pytest

from lockstead import LockInfo
from tests.dagster.real.conftest import Live, see_all_freed, soon

BODIES = ["sync_body", "shell_body", "async_body", "pipes_body", "swallowing_body"]


@pytest.mark.parametrize(
    ("ops", "in_process"), [(BODIES, True), ([*BODIES, "busy_body"], False)], ids=["run worker", "step process"]
)
def test_revoked_bodies_fail_once_before_the_lock_is_free(live: Live, name: str, ops: list[str], in_process: bool):
    # side by side: most of the time each of them waits for the next renewal
    named = {f"{name}-{op}": op for op in ops}
    runs = {own: live.launch(f"{op}_retries", own, in_process=in_process) for own, op in named.items()}
    was: dict[str, LockInfo] = {}
    for own, run in runs.items():
        live.enters(own, run)
        if named[own] in ("shell_body", "pipes_body"):
            live.dagster.until(lambda own=own: len(live.processes(own)) >= 2, "its processes do not start")
        held = live.lock(own).inspect()
        assert held is not None
        assert held.owner == f"dagster:{run}:{named[own]}:0"
        was[own] = held
    for own in runs:
        assert live.lock(own).break_lease(reason="a test wants it", by="test") is not None
    see_all_freed(live, runs)
    for own, run in runs.items():
        assert live.dagster.finished(run) == "FAILURE"
        (failed,) = live.dagster.events(run, "STEP_FAILURE")
        assert failed.said["lockstead/key"] == own
        assert failed.said["lockstead/holder"] == was[own].holder
        assert failed.said["lockstead/reason"] == "REVOKED"
        assert failed.said["lockstead/token"] == str(was[own].token)
        # each of them has a RetryPolicy
        assert live.spans(run, "STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED") == [1, 0, 0], own
        assert len(live.noted(own, "enters", run)) == 1
        (told,) = [event for event in live.dagster.events(run, "ENGINE_EVENT") if event.message.startswith("lost:")]
        assert own in told.message


def test_a_step_that_blocks_the_interpreter_too_long_fails_once(live: Live, name: str):
    run = live.launch("silent_body_retries", name)
    live.enters(name, run)
    assert live.dagster.finished(run) == "FAILURE"
    (failed,) = live.dagster.events(run, "STEP_FAILURE")
    assert failed.said["lockstead/key"] == name
    assert failed.said["lockstead/reason"] in ("EXPIRED", "UNREACHABLE")
    assert live.spans(run, "STEP_START", "STEP_UP_FOR_RETRY") == [1, 0]
    assert len(live.noted(name, "enters", run)) == 1
    assert live.noted(name, "cleans up", run)


def test_an_asset_is_written_under_its_lock_and_fails_on_a_loss(live: Live):
    name = "slow_asset"
    run = live.dagster.launch(assets=[name], tags={"test/name": name})
    (writes,) = live.dagster.until(lambda: live.noted(name, "writes", run), "it is not written")
    assert writes["obj"] == 7
    lock = live.lock(name)
    was = lock.inspect()
    assert was is not None
    assert was.owner == f"dagster:{run}:{name}:0"
    assert lock.break_lease(reason="a test wants it", by="test") is not None
    soon(lambda: lock.inspect() is None, lambda: live.dagster.story(run))
    assert live.dagster.finished(run) == "FAILURE", live.dagster.story(run)
    (failed,) = live.dagster.events(run, "STEP_FAILURE")
    assert failed.said["lockstead/key"] == name
    assert failed.said["lockstead/holder"] == was.holder
    assert failed.said["lockstead/token"] == str(was.token)
    assert failed.said["lockstead/reason"] == "REVOKED"
    # it has a RetryPolicy
    assert live.spans(run, "STEP_START", "STEP_UP_FOR_RETRY", "ASSET_MATERIALIZATION") == [1, 0, 0]
    assert len(live.noted(name, "gives", run)) == 1
    assert not live.noted(name, "has written", run)
