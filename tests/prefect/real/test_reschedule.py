"""Who waits without a worker's slot frees it, is not lost, and spends no retry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow, task

from prefect_lockstead import locked
from tests.prefect.real.seen import deployed, held, run_of, started_run, states, until
from tests.servers.prefect import PrefectServer, Worker


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl=5s"


@pytest.fixture
def worker(server: PrefectServer, tmp_path: Path) -> Iterator[Worker]:
    working = Worker(tmp_path / "worker", server, "one-slot", limit=1)
    try:
        yield working.start()
    finally:
        working.stop()


@pytest.mark.timeout(1500)
def test_five_runs_wait_without_the_only_slot_and_none_is_lost(
    server: PrefectServer, worker: Worker, url: str, tmp_path: Path
):
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    waiting = deployed(server, "one-slot", "comes_back", settings)
    other = deployed(server, "one-slot", "passes_by", {})
    # all come back when the holder says that it will be done, not sooner
    with held(url, expected=45):
        ids = [started_run(server, waiting) for _ in range(5)]
        until(lambda: all("AwaitingLock" in states(server, one) for one in ids), "a run never waited", seconds=600)
        passing = started_run(server, other)
        until(lambda: run_of(server, passing)["state_name"] == "Completed", "the slot was not free", seconds=600)
        assert not (tmp_path / "notes").exists()
        for one in ids:
            assert "held by 'somebody'" in _message(server, one)
    until(lambda: all(run_of(server, one)["state_type"] == "COMPLETED" for one in ids), "a run was lost", seconds=600)
    assert [run_of(server, one)["run_count"] for one in ids] == [1] * 5
    assert len((tmp_path / "notes").read_text().splitlines()) == 5


def _message(server: PrefectServer, run_id: str) -> str:
    from tests.prefect.real.seen import asked

    found = asked(server, "GET", "/flow_run_states/", params={"flow_run_id": run_id})
    return " ".join(str(one["message"]) for one in found if one["name"] == "AwaitingLock")


def test_a_run_of_no_deployment_is_refused(server: PrefectServer, url: str):
    @flow
    @locked(url, waiting="reschedule")
    def undeployed() -> None:
        raise AssertionError("the body ran")

    with pytest.raises(ValueError, match="'reschedule' needs a run of a deployment: nothing would start this run"):
        undeployed()


def test_a_task_is_refused(server: PrefectServer, url: str):
    @task
    @locked(url, waiting="reschedule")
    def part() -> None:
        raise AssertionError("the body ran")

    with pytest.raises(ValueError, match="'reschedule' needs a run of a deployment: this is not the entry of a flow"):
        part()
