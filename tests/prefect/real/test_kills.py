"""What becomes of the lock of a flow run that a worker started, and that is killed or cancelled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lockstead
from tests.prefect.real.seen import deployed, held, put, run_of, started_run, states, until
from tests.servers.prefect import PrefectServer, Worker
from tests.servers.redis import RedisServer

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


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def run_id(server: PrefectServer, worker: Worker, url: str, tmp_path: Path) -> str:
    """Ask for a run that works under the lock until it is told that it is enough."""
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    return started_run(server, deployed(server, "kills", "works", settings))


def noted(tmp_path: Path) -> list[list[str]]:
    """Return what the bodies wrote: word, time, process, token."""
    notes = tmp_path / "notes"
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def inherits(url: str) -> tuple[float, int, lockstead.LeaseOutcome]:
    """Wait for the lock; give when it was had, its token, and how the lease before ended."""
    with lockstead.Lock(url, owner="next").acquire(120) as lease:
        had_at = time.monotonic()
        return had_at, lease.sequencer().token, lease.previous_lease.ending


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_waiter_follows_a_killed_holder_with_a_larger_token(
    server: PrefectServer, worker: Worker, redis: RedisServer, url: str, tmp_path: Path, kind: str
):
    if kind == "redis":
        url = f"redis://127.0.0.1:{redis.port}/0#apt?ttl={TTL:g}s"
    settings = {"TEST_LOCK": url, "TEST_NOTES": str(tmp_path)}
    run_id = started_run(server, deployed(server, "kills", "works", settings))
    [[_, _, pid, token]] = until(lambda: noted(tmp_path), "the body did not begin")
    with ThreadPoolExecutor(1) as elsewhere:
        waiting = elsewhere.submit(inherits, url)
        until(waiting.running, "nobody waits")
        assert not waiting.done()
        os.kill(int(pid), signal.SIGKILL)
        killed_at = time.monotonic()
        had_at, larger, ending = waiting.result()
    assert larger > int(token)
    assert ending is lockstead.LeaseOutcome.EXPIRED
    # one lease from the last renewal, and not a pause of the waiter more; the rest is for a busy machine
    assert had_at - killed_at < TTL * 1.01 + 2.0
    until(lambda: run_of(server, run_id)["state_name"] == "Crashed", "the run did not crash")


def test_a_cancelled_holder_frees_the_lock_within_a_second(
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


def test_a_run_cancelled_while_it_waits_holds_nothing(server: PrefectServer, worker: Worker, url: str, tmp_path: Path):
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
