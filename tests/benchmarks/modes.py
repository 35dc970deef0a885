"""What readers and permits cost: a shared cycle, a thousand readers of one process, the wait of a writer, a semaphore.

As a program (`python -m tests.benchmarks.modes URL READERS SECONDS`) it keeps readers in a process that does nothing
else.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import lockstead
from tests.benchmarks import networked, running
from tests.benchmarks.figures import Row, Size, compared, in_turn, paired
from tests.benchmarks.handing import waiting
from tests.benchmarks.memory import resident_bytes
from tests.benchmarks.peers import opened, silent

TTL: Final = 30
LEAVING: Final = 100
"""Readers that leave while a writer waits."""

WITHIN: Final = 300.0

SEMAPHORES: Final = {
    "Redis": (running.redis, "sorted set"),
    "ZooKeeper": (running.zookeeper, "kazoo.Semaphore"),
}
"""For each store with a peer: its server, and the peer."""


def readers(size: Size) -> Iterator[Row]:
    """Measure shared leases."""
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("memory", "memory:"), ("SQLite", f"sqlite:///{folder}/locks.db")):
            yield from _cycles(name, url, size)
            yield from _writer_after_readers(name, url, size)
        said = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.modes", url, str(size.leases // 10), str(size.keeping)],
            capture_output=True,
            text=True,
            check=True,
            timeout=WITHIN,
        )
    kept = json.loads(said.stdout)
    what = f"SQLite: {size.leases // 10:,} readers of one group in one process"
    yield Row(f"{what}: processor time", 100 * kept["share"], "% of a core", None)
    yield Row(f"{what}: resident memory each", kept["bytes_each"] / 1024, "KiB", None)
    yield Row(f"{what}: lost", kept["lost"], "leases", 0)


def _cycles(name: str, url: str, size: Size) -> Iterator[Row]:
    with lockstead.connect(url, listener=silent) as client:
        shared, exclusive = client.lock("shared", ttl=TTL, mode="shared"), client.lock("exclusive", ttl=TTL)
        with shared.hold():  # the group lives, and is known

            def read() -> None:
                lease = shared.try_acquire()
                assert lease is not None
                lease.release()

            pair = in_turn(read, lambda: exclusive.acquire().release(), size)
    yield compared(f"{name}: shared cycle of a live group, p50", pair, "an exclusive cycle", None)


def _writer_after_readers(name: str, url: str, size: Size) -> Iterator[Row]:
    """Measure from the moment at which the last of many readers has left until the writer is in."""
    took: list[float] = []
    with lockstead.connect(url, listener=silent) as client:
        lock = client.lock("index", ttl=TTL)
        for _ in range(min(size.samples, 20)):
            held = [lock.try_acquire(mode="shared") for _ in range(LEAVING)]
            at: list[float] = []

            def write(at: list[float] = at) -> None:
                with lock.hold(timeout=WITHIN):
                    at.append(time.perf_counter())

            writer = threading.Thread(target=write)
            writer.start()
            while (seen := lock.inspect()) is None or seen.wanted_by is None:
                time.sleep(0.01)
            for lease in held:
                assert lease is not None
                lease.release()
            left_at = time.perf_counter()
            writer.join(WITHIN)
            took.append(max(0.0, at[0] - left_at))
    what = f"{name}: {LEAVING} readers leave, a writer waits: until it is in, p50"
    yield Row(what, 1e3 * statistics.median(took), "ms", None)


def semaphores(size: Size) -> Iterator[Row]:
    """Measure a semaphore of one permit, beside a peer: a cycle, and the hand-over between two processes."""
    for name, (run, peer) in SEMAPHORES.items():
        kinds = ("lockstead.Semaphore", peer)
        with run() as server, ExitStack() as stack:
            where = {kinds[0]: server.url, peer: server.where}
            acquires = {kind: stack.enter_context(opened(kind, where[kind])) for kind in kinds}
            works = {kind: (lambda acquire=acquire: acquire()()) for kind, acquire in acquires.items()}
            taken = networked.in_turn(works, size.rounds_networked, size.times_networked)
            pair = paired(list(taken[kinds[0]].values()), list(taken[peer].values()))
            yield compared(f"{name}: cycle of a semaphore, p50", pair, peer, None)
            others = {kind: stack.enter_context(waiting(kind, where[kind])) for kind in kinds}
            for other in others.values():
                other.handed_over(networked.PHASES)
            taken = networked.handed_over_in_turn(others, size.hand_overs)
            common = sorted(taken[kinds[0]].keys() & taken[peer].keys())
            pair = paired([taken[kinds[0]][number] for number in common], [taken[peer][number] for number in common])
            yield compared(f"{name}: hand-over of a semaphore, p50", pair, peer, None, "ms")


def keep(url: str, count: int, seconds: float) -> dict[str, float]:
    """Keep readers of one group for some seconds."""
    with lockstead.connect(url, listener=silent) as client:
        lock = client.lock("kept", ttl=TTL, mode="shared")
        lock.acquire().release()
        before = resident_bytes()
        held = [lock.try_acquire() for _ in range(count)]
        each = (resident_bytes() - before) / max(1, count)
        began, used = time.monotonic(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - used) / (time.monotonic() - began)
        lost = sum(lease is None or not lease.is_held for lease in held)
        for lease in held:
            if lease is not None:
                lease.release()
    return {"share": share, "bytes_each": each, "lost": lost}


if __name__ == "__main__":
    print(json.dumps(keep(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
