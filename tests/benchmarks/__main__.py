"""Measures what a lock costs against its floor, the fewest raw requests that could do the same. `make bench`.

Each row is the median of several rounds; a row and its floor are measured in turn, so that a drift of the machine's
speed falls on both. Loopback and one process: figures of the engine, not of a network.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

import lockstead
from lockstead.stores.memory import MemoryStore
from lockstead.testing.gcs_server import GcsServer

ROUNDS = 7


def silent(_event: object) -> None:
    """Hear nothing: what is measured is the lock, not the log."""


def seconds_each(work: Callable[[], Any], times: int) -> float:
    """Give seconds per call of `work`."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def against(ours: Callable[[], Any], floor: Callable[[], Any] | None, times: int) -> tuple[float, float | None]:
    """Give the medians of both, in microseconds, measured in turn."""
    mine, theirs = [], []
    for _ in range(ROUNDS):
        mine.append(seconds_each(ours, times))
        if floor is not None:
            theirs.append(seconds_each(floor, times))
    return statistics.median(mine) * 1e6, statistics.median(theirs) * 1e6 if theirs else None


def cycle(lock: lockstead.Lock) -> Callable[[], None]:
    """Give one uncontended acquire and release."""

    def once() -> None:
        lease = lock.try_acquire()
        if lease is None:
            raise RuntimeError("the lock of the benchmark is held by somebody else")
        lease.release()

    return once


def sqlite_floor(path: Path) -> tuple[sqlite3.Connection, Callable[[], None]]:
    """Give two bare transactions on a file of its own: one that inserts, one that deletes."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=NORMAL")
    raw.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")

    def once() -> None:
        for statement in ("INSERT INTO t VALUES ('k', 'v')", "DELETE FROM t"):
            raw.execute("BEGIN IMMEDIATE")
            raw.execute(statement)
            raw.execute("COMMIT")

    return raw, once


def gcs_floor(http: httpx.Client, server: GcsServer) -> Callable[[], None]:
    """Give the two raw requests of a cycle: one insert, one delete, with the same HTTP client."""
    upload = f"{server.url}/upload/storage/v1/b/bench/o"
    where = f"{server.url}/storage/v1/b/bench/o/floor"

    def once() -> None:
        http.post(upload, params={"uploadType": "media", "name": "floor", "ifGenerationMatch": "0"}, content=b"")
        http.delete(where)

    return once


def main() -> None:
    """Measure, and print one table."""
    table = Table(title=f"lockstead, median of {ROUNDS} rounds, {platform.machine()}, {os.cpu_count()} cores")
    for column in ("what", "µs", "floor µs", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")

    def row(what: str, figures: tuple[float, float | None]) -> None:
        mine, floor = figures
        shown = ("", "") if floor is None else (f"{floor:.1f}", f"{mine / floor:.2f}")
        table.add_row(what, f"{mine:.2f}", *shown)

    with lockstead.Client(MemoryStore(), listener=silent) as client:
        row("memory: acquire + release (the engine's own cost)", against(cycle(client.lock("bench")), None, 1000))
        with client.lock("held").hold() as lease:
            row("lease.check()", against(lease.check, None, 20_000))
    with tempfile.TemporaryDirectory() as folder:
        raw, floor = sqlite_floor(Path(folder, "floor.db"))
        with lockstead.connect(f"sqlite:///{folder}/locks.db", listener=silent) as client:
            row("sqlite: acquire + release / two bare transactions", against(cycle(client.lock("bench")), floor, 300))
        raw.close()
    with GcsServer() as server, httpx.Client() as http:
        server.create_bucket("bench")
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        with lockstead.connect("gs://bench/locks", listener=silent) as client:
            both = against(cycle(client.lock("bench")), gcs_floor(http, server), 100)
            row("gcs (emulator): acquire + release / two raw requests", both)
    Console().print(table)


if __name__ == "__main__":
    main()
