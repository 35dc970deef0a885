"""What ten thousand awaiting waiters of a thousand keys cost in one process: threads, memory, and the time to wake one.

As a program (`python -m tests.benchmarks.awaiting STORE WAITERS KEYS`) it waits in a process that does nothing else.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lockstead import AsyncClient, Client
from lockstead.stores.memory import MemoryStore
from lockstead.stores.memory.store import Memory
from lockstead.stores.sqlite.store import SqliteStore
from tests.benchmarks.cycles import silent
from tests.benchmarks.figures import Row, Size
from tests.benchmarks.memory import resident_bytes

WAKE_UPS: Final = 200
"""Keys that are released one after the other, at most."""

SETTINGS: Final[dict[str, Any]] = {"ttl": 300, "backoff_max": 60}
WITHIN: Final = 300.0


@dataclass(frozen=True, slots=True)
class Waited:
    """What waiting took. threads: without those that carry out requests; subscriptions: records of the store."""

    threads: int
    subscriptions: int
    bytes_each: float
    wake_ups: list[float]


def awaiting(size: Size) -> Iterator[Row]:
    """Measure waiters in a process of their own, on each store that notifies."""
    keys = max(1, size.awaiting // 10)
    for store in ("memory", "SQLite"):
        command = [sys.executable, "-m", "tests.benchmarks.awaiting", store, str(size.awaiting), str(keys)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * WITHIN)
        waited = Waited(**json.loads(said.stdout))
        what = f"{store}: {size.awaiting:,} awaiting waiters of {keys:,} keys"
        yield Row(f"{what}: threads that wait", waited.threads, "threads", 1)
        yield Row(f"{what}: subscriptions", waited.subscriptions, "subscriptions", keys)
        yield Row(f"{what}: resident memory each", waited.bytes_each / 1024, "KiB", None)
        times = sorted(waited.wake_ups)
        yield Row(f"{what}: hand-over, p50", 1e3 * statistics.median(times), "ms", None)
        yield Row(f"{what}: hand-over, p99", 1e3 * times[len(times) * 99 // 100], "ms", None)


async def wait(kind: str, waiters: int, keys: int, folder: Path) -> Waited:
    """Wait for keys that another client holds, and release some of them."""
    memory, path = Memory(), folder / "locks.db"
    ours: Any = MemoryStore(memory) if kind == "memory" else SqliteStore(path)
    theirs: Any = MemoryStore(memory) if kind == "memory" else SqliteStore(path)
    granted: dict[int, asyncio.Future[float]] = {}
    loop = asyncio.get_running_loop()
    with Client(theirs, listener=silent) as holding:
        held = {number: holding.lock(f"key-{number}", **SETTINGS).acquire() for number in range(keys)}
        async with AsyncClient(ours, listener=silent) as client:
            await (await client.lock("warm").acquire()).release()
            granted = {number: loop.create_future() for number in held}
            before, others = resident_bytes(), set(threading.enumerate())

            async def waits(number: int) -> None:
                lease = await client.lock(f"key-{number}", **SETTINGS).acquire()
                if not granted[number].done():
                    granted[number].set_result(time.monotonic())
                await asyncio.Event().wait()  # keeps it until the end
                await lease.release()

            tasks = [asyncio.create_task(waits(number % keys)) for number in range(waiters)]
            subscriptions = ours._memory.subscriptions if kind == "memory" else ours._changes.subscriptions
            ends_at = time.monotonic() + WITHIN
            while len(subscriptions) < keys:
                if time.monotonic() > ends_at:
                    raise RuntimeError(f"{len(subscriptions)} of {keys} keys are subscribed to")
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)
            each = (resident_bytes() - before) / waiters
            count = len(subscriptions)
            added = set(threading.enumerate()) - others
            threads = sum(not one.name.startswith("lockstead-call") for one in added)
            wake_ups: list[float] = []
            for number in range(min(keys, WAKE_UPS)):
                began = time.monotonic()
                await asyncio.to_thread(held[number].release)
                wake_ups.append(await asyncio.wait_for(granted[number], WITHIN) - began)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return Waited(threads, count, each, wake_ups)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asdict(asyncio.run(wait(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(place))))))
