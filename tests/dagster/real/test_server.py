"""What the tests on a live Dagster rely on: a run is launched, told of, terminated; nothing outlives an instance."""

from __future__ import annotations

from pathlib import Path

from tests.dagster.real.conftest import Live
from tests.servers.dagster import Dagster
from tests.servers.marked import is_alive


def test_a_job_without_a_lock_runs_in_two_processes(live: Live):
    run = live.dagster.launch("undecorated")
    assert live.dagster.finished(run) == "SUCCESS", live.dagster.story(run)
    worker, step = live.dagster.run_worker(run), live.dagster.step_worker(run, "plain")
    assert worker != step
    (said,) = [event.message for event in live.dagster.events(run, step="plain") if "plain runs in" in event.message]
    assert said == f"plain runs in {step}"


def test_a_run_that_is_terminated_is_canceled(live: Live):
    run = live.dagster.launch("undecorated_sleep")
    live.dagster.until(lambda: live.dagster.events(run, "STEP_START"), "it does not sleep")
    live.dagster.terminate(run)
    assert live.dagster.finished(run) == "CANCELED"


def test_no_process_outlives_the_instance(tmp_path: Path):
    with Dagster(tmp_path / "instance", "tests.dagster.locked_jobs") as dagster:
        run = dagster.launch("undecorated_sleep")
        dagster.until(lambda: dagster.events(run, "STEP_START"), "it does not sleep")
        pids = dagster.pids()
        assert {dagster.run_worker(run), *(part.process.pid for part in dagster.parts if part.process)} <= set(pids)
        assert len(pids) >= 4
    assert dagster.pids() == []
    assert not any(map(is_alive, pids))
