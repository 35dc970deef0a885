"""The dashboard: how soon a page begins, what 50 open pages cost the store, and what an open page costs in memory."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

import lockstead
from lockstead import AsyncClient
from lockstead.dashboard import create_app
from lockstead.dashboard.filters import Filter
from lockstead.dashboard.pages import list_events
from lockstead.protocol.commands import Command, List
from lockstead.stores.memory import MemoryStore
from tests.benchmarks.figures import Row, Size

TABS = 50
SERVED = "import sys; from lockstead.cli.main import call; sys.exit(call(sys.argv[1:]))"


class Counting(MemoryStore):
    """A store that counts its listings."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0

    def perform(self, command: Command[Any], limit: float) -> Any:
        self.listings += isinstance(command, List) and command.cursor is None
        return super().perform(command, limit)


def dashboard(size: Size) -> Iterator[Row]:
    """Measure a page of 1,000 and of 100,000 locks on SQLite, and 50 open pages."""
    with tempfile.TemporaryDirectory() as folder:
        for locks in (1_000, 100_000) if size.rounds > 10 else (10, 100):
            path = Path(folder) / f"{locks}.db"
            fill(path, locks)
            yield from first_byte(path, locks, size)
    listings, rounds = asyncio.run(open_pages(max(3, min(size.rounds, 20))))
    yield Row(f"dashboard, {TABS} open pages: listings per round", listings / rounds, "listings", 1)
    grown = asyncio.run(memory_of_a_page(max(20, 18 * min(size.rounds, 101))))
    yield Row("dashboard, a page open for 1,800 rounds: growth of memory", grown / 1024, "KiB", 64)


def fill(path: Path, count: int) -> None:
    """Make a store of held locks, by copies of one record."""
    url = f"sqlite:///{path}"
    lock = lockstead.Lock(f"{url}#lock-0", ttl="1h", purpose="publish APT packages", labels={"team": "deb"})
    lock.acquire(0).detach()
    with sqlite3.connect(path) as database:
        (row,) = database.execute("SELECT * FROM record WHERE space = 'lock'").fetchall()
        copies = ((row[0], f"lock-{number}", *row[2:]) for number in range(1, count))
        database.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", copies)
    database.close()


def first_byte(path: Path, locks: int, size: Size) -> Iterator[Row]:
    """Measure the time to the first byte of the page while the dashboard lists the store in rounds."""
    command = [sys.executable, "-c", SERVED, "dashboard", f"sqlite:///{path}", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            url = server.stderr.readline().split()[-1]
            with httpx.Client(timeout=60) as client:
                end = time.monotonic() + 120
                while f"<strong>{locks}</strong>" not in (page := client.get(url).text) and f"{locks:,}" not in page:
                    assert time.monotonic() < end, page[:2000]
                taken = sorted(_first_byte(client, url) for _ in range(max(2, min(size.rounds, 101) * 2)))
            highest = _highest(server.pid)
        finally:
            server.terminate()
        cuts = quantiles(taken, n=100, method="inclusive")
        name = f"dashboard, {locks:,} locks on SQLite"
        yield Row(f"{name}: first byte, p50", cuts[49] * 1e3, "ms", 100 if locks <= 1_000 else None)
        yield Row(f"{name}: first byte, p99", cuts[98] * 1e3, "ms", None)
        yield Row(f"{name}: most memory of the process", highest / 2**20, "MiB", None)


def _highest(pid: int) -> int:
    """Return the most bytes that a process had in memory."""
    (said,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(said)


def _first_byte(client: httpx.Client, url: str) -> float:
    time.sleep(0.02)
    began = time.perf_counter()
    with client.stream("GET", url) as answer:
        parts = answer.iter_raw()
        next(parts)
        taken = time.perf_counter() - began
        for _ in parts:
            pass
    return taken


async def open_pages(rounds: int) -> tuple[int, int]:
    """Return how many listings and rounds there were while 50 pages were open."""
    store = Counting()
    async with AsyncClient(store, listener=lambda _event: None) as client, client.lock("apt").hold():
        app = create_app([client], every=0.2)
        dash = app.state.dashboard
        dash.start()
        pages = [list_events(dash, Filter(q=str(number % 3 or ""))) for number in range(TABS)]
        await asyncio.gather(*(anext(page) for page in pages))
        (listing,) = dash.board.listings
        listings, began = store.listings, listing.rounds
        while listing.rounds < began + rounds:
            await asyncio.gather(*(anext(page) for page in pages))
        counted = store.listings - listings, listing.rounds - began
        await asyncio.gather(*(page.aclose() for page in pages))
        await dash.stop()
    return counted


async def memory_of_a_page(rounds: int) -> int:
    """Return the bytes by which the process grew while one page was open, and its lock was renewed in every round."""
    store = MemoryStore()
    async with AsyncClient(store, listener=lambda _event: None) as client, client.lock("apt", ttl="1h").hold() as lease:
        dash = create_app([client], every=3600).state.dashboard
        dash.start()
        page = list_events(dash, Filter())
        await anext(page)
        (watch,) = dash.watches.values()

        async def pass_by(count: int) -> int:
            for number in range(count):
                lease.progress(f"{number} of {count}")
                watch.wake()
                await anext(page)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        before = await pass_by(max(10, rounds // 10))
        after = await pass_by(rounds)
        tracemalloc.stop()
        await page.aclose()
        await dash.stop()
    return max(0, after - before)
