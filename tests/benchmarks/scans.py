"""What it costs to read every lock of a store: in pages by `scan`, beside one listing that is kept as a whole.

As a program (`python -m tests.benchmarks.scans URL LOCKS`) it reads them both ways, in a process that does
nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import psycopg

import lockstead
from lockstead import operations, registry
from lockstead.errors import StoreError
from lockstead.protocol.commands import Create, List
from lockstead.stores.port import Store
from lockstead.values import Name, Space
from lockstead.views import listing
from tests.benchmarks import running
from tests.benchmarks.cycles import RECORD, emulator
from tests.benchmarks.figures import Row, Size
from tests.benchmarks.memory import resident_bytes
from tests.benchmarks.peers import silent
from tests.benchmarks.running import Running

FIELDS: Final = {**RECORD, "purpose": "publish the packages of the day", "where": "/srv/pipeline/publish.py:33" * 8}
"""A record of half a kilobyte."""

LIMIT: Final = 300.0
AT_ONCE: Final = 16


@contextmanager
def _sqlite() -> Iterator[Running]:
    with TemporaryDirectory() as folder:
        yield Running(f"sqlite:///{folder}/locks.db", "", dict)


@contextmanager
def _memory() -> Iterator[Running]:
    yield Running("memory:scanned", "", dict)


@contextmanager
def _gcs() -> Iterator[Running]:
    with emulator() as url:
        counted = 0

        def counts() -> dict[str, int]:
            nonlocal counted
            counted += len(httpx.get(f"{url}/_requests", timeout=LIMIT).json()["requests"])
            httpx.delete(f"{url}/_requests")  # it keeps the latest only
            return {"requests": counted}

        yield Running("gs://bench/locks", url, counts)


PLACES: Final[dict[str, Callable[[], AbstractContextManager[Running]]]] = {
    "memory": _memory,
    "SQLite": _sqlite,
    "Redis": running.redis,
    "PostgreSQL": running.postgres,
    "etcd": running.etcd,
    "ZooKeeper": partial(running.zookeeper, heap="1g"),
    "GCS (our emulator)": _gcs,
}


def scans(size: Size) -> Iterator[Row]:
    """Measure every store that runs here."""
    for name, run in PLACES.items():
        with run() as server:
            yield from scanned(name, server, size.scanned)


def scanned(name: str, server: Running, count: int) -> Iterator[Row]:
    """Fill a store with locks and measure both ways of reading them."""
    if not server.url.startswith("memory:"):
        fill(registry.open_store(server.url, None), count)
    if server.url.startswith("postgresql:"):
        # as autovacuum does within a minute, which is off here
        with psycopg.connect(server.where, autocommit=True) as asking:
            asking.execute("ANALYZE")
    with server.logged(), reading(server.url, count) as hear:
        hear()
        before = server.counts()
        ours = hear()
        after = server.counts()
        whole = hear()
    what = f"{name}: {count:,} locks"
    if "failed" in whole:
        against = f"one listing: {whole['failed']}"
        yield Row(f"{what}: scan", ours["seconds"], "s", None, against)
        yield Row(f"{what}: memory of the scan", ours["mib"], "MiB", None)
    else:
        for kind, unit in (("seconds", "s"), ("mib", "MiB")):
            of = "scan" if kind == "seconds" else "memory of the scan"
            ratio = ours[kind] / whole[kind] if whole[kind] else None
            yield Row(f"{what}: {of}", ours[kind], unit, None, "one listing", whole[kind], ratio)
    requests = sum(after[kind] - before.get(kind, 0) for kind in after if kind != "raft writes")
    yield Row(f"{what}: pages", ours["pages"], "pages", None, f"{requests} requests, by the server" if after else "")


def fill(store: Store, count: int) -> None:
    """Create the records of locks."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(lambda number: store.perform(Create(Name(f"lock-{number}"), FIELDS), LIMIT), range(count)):
            pass
    store.close()


@contextmanager
def reading(url: str, count: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the program; each call starts the next way of reading and returns what it measured."""
    command = [sys.executable, "-m", "tests.benchmarks.scans", url, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def hear() -> dict[str, Any]:
            print(file=process.stdin, flush=True)
            told: dict[str, Any] = json.loads(process.stdout.readline())
            return told

        yield hear


# --- the program ----------------------------------------------------------------------------------------------------


class Counting:
    """Counts the listings of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.listings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def perform(self, command: Any, limit: float) -> Any:
        """Count it and pass it on, with time enough for one long listing."""
        self.listings += isinstance(command, List)
        return self._store.perform(command, max(limit, LIMIT))


def read(url: str, count: int) -> Iterator[dict[str, Any]]:
    """Begin; read all locks each way and yield the seconds, the most memory above what it began with, and the pages."""
    store = Counting(registry.open_store(url, None))
    if url.startswith("memory:"):
        for number in range(count):
            store.perform(Create(Name(f"lock-{number}"), FIELDS), LIMIT)
    with lockstead.Client(store, listener=silent) as client:  # type: ignore[arg-type]  # the rest is passed on
        client.lock("none").inspect()  # connects, and imports what every use needs
        next(client.scan(1), None)
        yield {}
        for work in (lambda: sum(1 for _ in client.scan()), lambda: len(_whole(client))):
            store.listings = 0
            before = resident_bytes()
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
            began = time.perf_counter()
            try:
                found = work()
            except StoreError as error:
                yield {"failed": str(error).partition(": ")[2] or str(error)}
                continue
            taken = time.perf_counter() - began
            assert found == count, f"{found} of {count} were found"
            yield {"seconds": taken, "mib": max(0, _peak() - before) / (1 << 20), "pages": store.listings}


def _whole(client: lockstead.Client) -> list[object]:
    """Read all records by one command, and keep what is shown of each."""
    engine = client._engine
    context = engine.context(operations.PLAIN)
    entries = engine.store.perform(List(Space.LOCK), LIMIT).entries
    return sorted((listing(name, seen, context) for name, seen in entries), key=lambda one: one.key if one else "")


def _peak() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) << 10


if __name__ == "__main__":
    for _, measured in zip(sys.stdin, read(sys.argv[1], int(sys.argv[2])), strict=False):
        print(json.dumps(measured), flush=True)
