"""What becomes of the lock of a flow run that a worker started, and that is killed or cancelled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstead
from tests.prefect.real.seen import deployed, held, put, run_of, started_run, states, until
from tests.servers.prefect import PrefectServer, Worker

TTL = 5.0


@pytest.fixture(scope="module")
def worker(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    working = Worker(tmp_path_factory.mktemp("worker"), server, "kills")
    try:
        yield working.start()
    finally:
        working.stop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl={TTL:g}s"


@pytest.fixture
def run_id(server: PrefectServer, worker: Worker, url: str, tmp_path: Path) -> str:
    """Ask for a run that works under the lock until it is told that it is enough."""
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    return started_run(server, deployed(server, "kills", "works", settings))


def noted(tmp_path: Path) -> list[list[str]]:
    """Give what the bodies wrote: word, time, process, token."""
    notes = tmp_path / "notes"
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def test_who_is_killed_holds_for_a_ttl_more_and_the_next_has_a_larger_token(
    server: PrefectServer, url: str, tmp_path: Path, run_id: str
):
    [[_, _, pid, token]] = until(lambda: noted(tmp_path), "the body did not begin")
    os.kill(int(pid), signal.SIGKILL)
    killed_at = time.monotonic()
    with lockstead.Lock(url, owner="next").acquire(60) as lease:
        waited = time.monotonic() - killed_at
        assert lease.sequencer().token > int(token)
        assert lease.predecessor.ending is lockstead.Ending.EXPIRED
    # the renewal at the kill, and a look that comes late on a busy machine
    assert waited < 2 * TTL + 5
    until(lambda: run_of(server, run_id)["state_name"] == "Crashed", "the run did not crash")


def test_who_is_cancelled_while_it_holds_frees_the_lock_within_a_second_of_the_bodys_end(
    server: PrefectServer, url: str, tmp_path: Path, run_id: str
):
    until(lambda: noted(tmp_path), "the body did not begin")
    put(server, run_id, "CANCELLING")
    lockstead.Lock(url, owner="next").acquire(90).release()
    freed_at = time.time()
    [_, [word, ended_at, *_]] = noted(tmp_path)
    assert word == "ended"
    assert freed_at - float(ended_at) < 1.0
    until(lambda: run_of(server, run_id)["state_type"] == "CANCELLED", "the run was not cancelled")


def test_who_is_cancelled_while_it_waits_never_runs_again_and_holds_nothing(
    server: PrefectServer, worker: Worker, url: str, tmp_path: Path
):
    with held(url):
        settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
        run_id = started_run(server, deployed(server, "kills", "works", settings))
        until(lambda: run_of(server, run_id)["state_name"] == "AwaitingLock", "the run did not wait")
        put(server, run_id, "CANCELLING")
        until(lambda: run_of(server, run_id)["state_type"] == "CANCELLED", "the run was not cancelled")
    seen = states(server, run_id)
    assert "Running" not in seen[seen.index("Cancelling") :]
    assert lockstead.Lock(url).inspect() is None
    assert noted(tmp_path) == []
