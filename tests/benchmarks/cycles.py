"""What one uncontended acquire and release costs, store by store, against the nearest thing that does without us."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import filelock
import httpx

import lockstead
from lockstead.stores.memory import MemoryStore
from tests.benchmarks.figures import Row, Size, Work, alone, compared, in_turn


def silent(_event: object) -> None:
    """Ignore all events: the lock is measured, not the log."""


def cycle(lock: lockstead.Lock) -> Callable[[], None]:
    """Return one uncontended acquire and release."""

    def once() -> None:
        lease = lock.try_acquire()
        if lease is None:
            raise RuntimeError("the lock of the benchmark is held by somebody else")
        lease.release()

    return once


# --- in memory ------------------------------------------------------------------------------------------------------


def memory(size: Size) -> Iterator[Row]:
    """Measure the engine without a store worth the name, and what a look at a lease costs."""
    with lockstead.Client(MemoryStore(), listener=silent) as client:
        took = alone(cycle(client.lock("bench")), size)
        yield Row("memory: cycle, p50 (the engine's own cost)", took * 1e6, "µs", 60)
        with client.lock("held").hold() as lease:
            checked = alone(lambda: [lease.check() for _ in range(100)], size) / 100
        yield Row("`lease.check()`", checked * 1e6, "µs", 1)


# --- SQLite ---------------------------------------------------------------------------------------------------------


def sqlite(size: Size) -> Iterator[Row]:
    """Measure a cycle against the file lock most in use, and against two transactions with nothing around them."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = filelock.FileLock(f"{folder}/theirs.lock", thread_local=False)

        def file_lock() -> None:
            theirs.acquire()
            theirs.release()

        with (
            lockstead.connect(f"sqlite:///{folder}/locks.db", listener=silent) as client,
            two_transactions(Path(folder, "floor.db")) as floor,
        ):
            ours = cycle(client.lock("bench"))
            what = "SQLite: cycle, p50"
            yield compared(what, in_turn(ours, file_lock, size), "filelock", 2)
            yield compared(what, in_turn(ours, floor, size), "two bare transactions, same settings", None)


@contextmanager
def two_transactions(path: Path) -> Iterator[Work]:
    """Return the two transactions of a cycle: one that inserts, one that deletes."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=NORMAL")
    raw.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")

    def once() -> None:
        for statement in ("INSERT INTO t VALUES ('k', 'v')", "DELETE FROM t"):
            raw.execute("BEGIN IMMEDIATE")
            raw.execute(statement)
            raw.execute("COMMIT")

    yield once
    raw.close()


# --- Cloud Storage --------------------------------------------------------------------------------------------------


@contextmanager
def emulator() -> Iterator[str]:
    """Run our emulator in a process of its own, so that it costs this one nothing; return its address."""
    command = [sys.executable, "-m", "gcs_emulator", "--bucket", "bench"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": url}):
                yield url
        finally:
            server.terminate()


def gcs(size: Size) -> Iterator[Row]:
    """Count the requests of a cycle, and measure it against the very same requests without us."""
    with emulator() as url, httpx.Client() as http:
        with lockstead.connect("gs://bench/locks", listener=silent) as client:
            ours = cycle(client.lock("bench"))
            ours()
            http.delete(f"{url}/_requests")
            ours()
            asked = http.get(f"{url}/_requests").json()["requests"]
            cycle_requests = [line for line in asked if line["bucket"] == "bench"]
            yield Row("GCS: requests of a cycle", len(cycle_requests), "requests", 2)
            what = "GCS (our emulator): cycle, p50"
            pair = in_turn(ours, two_requests(http, url), size)
            yield compared(what, pair, "the same two requests by `httpx.Client`", 1.15)
            with httpx.HTTPTransport() as transport:
                pair = in_turn(ours, two_sendings(transport, url), size)
            yield compared(what, pair, "the same requests by our own transport", None)


RECORD = {
    "v": "1",
    "identity": "machine/4711/0123456789abcdef",
    "ttl": "300",
    "owner": "machine/4711",
    "host": "machine",
    "where": "/srv/pipeline/publish.py:33",
    "pid": "4711",
    "acquired_at": "1795245562.475979",
    "expires_at": "1795245862.475979",
}


def two_requests(http: httpx.Client, url: str) -> Work:
    """Return the two requests of a cycle as anybody would send them: insert a record of that size, delete it."""

    def once() -> None:
        made = http.post(url + INSERT, headers=INSERT_HEADERS, content=INSERT_BODY).raise_for_status()
        http.delete(url + REMOVE + made.json()["generation"]).raise_for_status()

    return once


def two_sendings(transport: httpx.HTTPTransport, url: str) -> Work:
    """Return the same two requests with the least that can be around them, as the `gs:` store sends them."""
    base = httpx.URL(url)

    def send(method: str, target: str, headers: dict[str, str], content: bytes) -> bytes:
        extensions = {"target": target.encode()}
        answer = transport.handle_request(
            httpx.Request(method, base, headers=headers, content=content, extensions=extensions)
        )
        try:
            return answer.read()
        finally:
            answer.close()

    def once() -> None:
        made = json.loads(send("POST", INSERT, INSERT_HEADERS, INSERT_BODY))
        send("DELETE", REMOVE + made["generation"], {}, b"")

    return once


_METADATA = json.dumps({"name": "raw/bench", "metadata": RECORD, "cacheControl": "no-store"})
_PARTS = (f"json; charset=UTF-8\r\n\r\n{_METADATA}", "octet-stream\r\n\r\n")
INSERT = "/upload/storage/v1/b/bench/o?uploadType=multipart&ifGenerationMatch=0&prettyPrint=false"
INSERT_HEADERS = {"Content-Type": "multipart/related; boundary=b"}
INSERT_BODY = "".join(f"--b\r\nContent-Type: application/{part}\r\n" for part in _PARTS).encode() + b"--b--\r\n"
REMOVE = "/storage/v1/b/bench/o/raw%2Fbench?prettyPrint=false&ifGenerationMatch="
