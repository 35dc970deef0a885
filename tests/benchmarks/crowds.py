"""What many cost in one process: a thousand who wait for one key, ten thousand leases that are kept.

As a program (`python -m tests.benchmarks.crowds LEASES SECONDS`) it keeps leases in a process that does nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

import httpx

import lockstead
from lockstead.events import LockEvent, Renewed
from lockstead.stores.memory import MemoryStore
from tests.benchmarks.cycles import emulator, silent
from tests.benchmarks.figures import Row, Size
from tests.benchmarks.memory import resident_bytes

POLL = 0.5
"""Seconds between two looks of a waiter, here without the jitter, so that they can be counted."""


def waiters(size: Size) -> Iterator[Row]:
    """Count the requests of one process's waiters while another client holds the lock."""
    what = f"{size.waiters:,} waiters of one process"
    with emulator() as url, httpx.Client() as http:
        holding = lockstead.connect("gs://bench/locks", listener=silent)
        waiting = lockstead.connect("gs://bench/locks", listener=silent)
        lease = holding.lock("crowd").acquire()
        lock = waiting.lock("crowd", backoff_min=POLL, backoff_max=POLL)
        threads = [threading.Thread(target=_wait, args=(lock,)) for _ in range(size.waiters)]
        for thread in threads:
            thread.start()
        while len(waiting._engine.local_queue._queues.get("crowd", ())) < size.waiters or not asked(http, url, "get"):
            time.sleep(0.05)
        http.delete(f"{url}/_requests")  # the first one tried to write, once, before the others waited
        ends_at = time.monotonic() + size.waiting
        while len(reads := asked(http, url, "get")) < 3 or time.monotonic() < ends_at:
            time.sleep(0.1)
        writes = asked(http, url, "insert") + asked(http, url, "patch") + asked(http, url, "delete")
        waiting.close()
        for thread in threads:
            thread.join()
        lease.release()
        holding.close()
    per_interval = POLL * (len(reads) - 1) / (reads[-1] - reads[0])
    yield Row(f"{what}: reads per poll interval", per_interval, "reads", 1)
    yield Row(f"{what}: writes", len(writes), "writes", 0)


def asked(http: httpx.Client, url: str, kind: str) -> list[float]:
    """Return when a request of this kind was sent, in seconds."""
    return [line["at"] for line in http.get(f"{url}/_requests").json()["requests"] if line["kind"] == kind]


def _wait(lock: lockstead.Lock) -> None:
    with suppress(lockstead.StoreRefused):
        lock.acquire()


# --- leases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptLease:
    """What keeping leases took. seconds is how long they were kept, cpu_seconds what the process worked meanwhile."""

    leases: int
    bytes_each: float
    bytes_each_after: float
    seconds: float
    cpu_seconds: float
    renewals: int


def leases(size: Size) -> Iterator[Row]:
    """Keep leases in a process of their own, for two whole rounds of renewals."""
    command = [sys.executable, "-m", "tests.benchmarks.crowds", str(size.leases), str(size.keeping)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=size.keeping + 300)
    kept = KeptLease(**json.loads(said.stdout))
    what = f"{kept.leases:,} leases in memory, ttl 300 s"
    share = 100 * kept.cpu_seconds / kept.seconds
    yield Row(f"{what}: {kept.renewals:,} renewals in {kept.seconds:.0f} s", share, "% of a core", 5)
    memory = max(kept.bytes_each, kept.bytes_each_after) / 1024
    yield Row(f"{what}: resident memory each", memory, "KiB", 6)


def keep(count: int, seconds: float) -> KeptLease:
    """Keep so many leases for so many seconds."""
    renewals = 0

    def count_renewals(event: LockEvent) -> None:
        nonlocal renewals
        renewals += isinstance(event, Renewed)

    with lockstead.Client(MemoryStore(), listener=count_renewals) as client:
        client.lock("warm").acquire().release()
        before = resident_bytes()
        kept = [client.lock(f"key-{number}", ttl=300).acquire() for number in range(count)]
        each = (resident_bytes() - before) / count
        began, worked = time.monotonic(), time.process_time()
        time.sleep(seconds)
        worked = time.process_time() - worked
        lasted = time.monotonic() - began
        if not all(lease.is_held for lease in kept):
            raise RuntimeError("a lease was lost")
        return KeptLease(count, each, (resident_bytes() - before) / count, lasted, worked, renewals)


if __name__ == "__main__":
    print(json.dumps(asdict(keep(int(sys.argv[1]), float(sys.argv[2])))))
