"""What metrics cost: a cycle on Redis with and without them, and a scrape when 10,000 locks were used."""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server

import lockstead
from lockstead.events import Acquired, Released, StoreRequest
from lockstead.listeners import add_listener, remove_listener
from lockstead.monitor.names import LockNames
from lockstead.telemetry.counts import EVENTS_MAX, Counting
from lockstead.telemetry.prometheus import CountsCollector
from tests.benchmarks import running
from tests.benchmarks.cycles import cycle, silent
from tests.benchmarks.figures import Row, Size, compared, middle, paired

NAMES = LockNames.parse(["*"])


def telemetry(size: Size) -> Iterator[Row]:
    """Measure what metrics cost."""
    counting = Counting(NAMES)
    with running.redis() as server, lockstead.connect(server.url, listener=silent) as client:
        once = cycle(client.lock("bench"))
        taken: dict[bool, list[float]] = {True: [], False: []}
        middle(once, size.times)
        for number in range(size.rounds):
            for is_on in (True, False) if number % 2 else (False, True):
                if is_on:
                    add_listener(counting)
                taken[is_on].append(middle(once, size.times))
                remove_listener(counting)
    yield compared("Redis: cycle with metrics, p50", paired(taken[True], taken[False]), "without", 1.05)
    yield Row("counting the events of a cycle, later", _counted(size) * 1e6, "µs", None)
    yield Row(f"scrape after {size.keys_scraped:,} locks", _scraped(size.keys_scraped) * 1e3, "ms", 1000)


def _counted(size: Size) -> float:
    """Return the seconds that it takes to count what a cycle has collected."""
    counting, cycles = Counting(NAMES), EVENTS_MAX // 8

    def collect() -> None:
        for _ in range(cycles):
            _use(counting, "apt")

    def count() -> float:
        collect()
        began = time.perf_counter()
        counting.counted()
        return (time.perf_counter() - began) / cycles

    return statistics.median(count() for _ in range(size.rounds))


def _use(counting: Counting, key: str) -> None:
    """Collect the events of one cycle."""
    counting(StoreRequest("create", "ok", 0.001), "redis://h/0")
    counting(Acquired(key, "a", 1, 0.0), "redis://h/0")
    counting(StoreRequest("remove", "ok", 0.001), "redis://h/0")
    counting(Released(key, "a", True, ""), "redis://h/0")


def _scraped(keys: int) -> float:
    """Return the seconds that a scrape of this process takes."""
    counting, registry = Counting(NAMES), CollectorRegistry()
    for number in range(keys):
        _use(counting, f"apt-{number}")
    registry.register(CountsCollector(counting))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        began = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as reply:
            reply.read()
        return time.perf_counter() - began
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
