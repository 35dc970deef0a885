"""A deployed run that is suspended works once, whether it waits for its lock or holds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import prefect
import pytest
from prefect import flow
from prefect.context import FlowRunContext
from prefect.flow_runs import pause_flow_run

import lockstead
from prefect_lockstead import locked
from tests.prefect.real.seen import asked, deployed, held, run_of, started_run, states, until
from tests.servers.prefect import PrefectServer, Worker


@pytest.fixture(scope="module")
def worker(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    working = Worker(tmp_path_factory.mktemp("worker"), server, "suspending")
    try:
        yield working.start()
    finally:
        working.stop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl=5s"


def suspend(server: PrefectServer, run_id: str) -> None:
    """Suspend a run, as a person does in the UI."""
    state = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_reschedule": True}}
    answer = asked(server, "POST", f"/flow_runs/{run_id}/set_state", json={"state": state})
    assert answer["status"] == "ACCEPT", answer


def resume(server: PrefectServer, run_id: str) -> None:
    """Resume a run, as a person does in the UI."""
    answer = asked(server, "POST", f"/flow_runs/{run_id}/resume")
    assert answer["status"] == "ACCEPT", (answer, states(server, run_id))


def noted(place: Path) -> list[list[str]]:
    notes = place / "notes"
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flow_name", ["works", "works_soon_awaiting"])
def test_a_run_suspended_while_it_waits_works_once_when_resumed(
    server: PrefectServer, worker: Worker, url: str, tmp_path: Path, flow_name: str
):
    (tmp_path / "enough").touch()
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    with held(url):
        run_id = started_run(server, deployed(server, "suspending", flow_name, settings))
        until(lambda: "AwaitingLock" in states(server, run_id), "it did not wait", 600)
        suspend(server, run_id)
        log = worker.directory / "log"
        # during the wait: its process ends while the lock is held by another
        until(lambda: f"flow run '{run_id}' is paused" in log.read_text(errors="replace"), "it did not leave", 120)
        resume(server, run_id)
        until(lambda: states(server, run_id).count("AwaitingLock") == 2, "it did not wait again", 600)
    until(lambda: run_of(server, run_id)["state_type"] == "COMPLETED", "it did not complete", 600)
    assert [one[0] for one in noted(tmp_path)] == ["began", "ended"]


@pytest.mark.timeout(1200)
def test_a_suspended_holder_works_to_its_next_task_and_releases(
    server: PrefectServer, worker: Worker, url: str, tmp_path: Path
):
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    run_id = started_run(server, deployed(server, "suspending", "works_with_task", settings))
    until(lambda: noted(tmp_path), "the body did not begin", 600)
    suspend(server, run_id)
    assert lockstead.Lock(url).inspect() is not None
    if prefect.__version__.startswith("3.1."):
        (tmp_path / "one").touch()
    (tmp_path / "enough").touch()
    until(lambda: lockstead.Lock(url).inspect() is None, "the lock was not given back", 120)
    assert [one[0] for one in noted(tmp_path)] == ["began", "ended"]
    if prefect.__version__.startswith("3.1."):
        # it refuses a suspended run no task: the run goes on to its end, once
        until(lambda: run_of(server, run_id)["state_type"] == "COMPLETED", "it did not complete", 600)
        assert len(noted(tmp_path)) == 2
        return
    (tmp_path / "one").touch()
    resume(server, run_id)
    until(lambda: run_of(server, run_id)["state_type"] == "COMPLETED", "it did not complete", 600)
    first, second = [one for one in noted(tmp_path) if one[0] == "began"]
    assert int(second[3]) > int(first[3]), "what it did before the suspension was done under an earlier token"


def test_a_paused_holder_keeps_the_lock_beyond_the_ttl(server: PrefectServer, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/locks.db#apt?ttl=2s"
    tokens: list[int | None] = []

    @flow(name="pausing")
    @locked(url)
    def pausing() -> None:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        resuming = threading.Thread(target=resume_later, args=(str(context.flow_run.id),))
        resuming.start()
        tokens.append(lockstead.current_lease().token)
        pause_flow_run(timeout=300, poll_interval=1)
        resuming.join()
        lockstead.current_lease().check()
        tokens.append(lockstead.current_lease().token)

    free: list[bool] = []

    def resume_later(run_id: str) -> None:
        until(lambda: run_of(server, run_id)["state_type"] == "PAUSED", "it was not paused", 120)
        free.append(lockstead.Lock(url).wait_until_free(5.0))
        resume(server, run_id)

    pausing()
    assert free == [False]
    assert tokens[0] == tokens[1]
