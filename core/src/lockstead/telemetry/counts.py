"""Measures of this process as numbers in memory, until a scrape reads them.

An observation of prometheus_client takes microseconds, which a cycle of a lock notices. So events are only collected
as they happen, and counted at a scrape, or some hundreds at a time.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lockstead.events import ProcessEvent
from lockstead.monitor.names import LockNames
from lockstead.runtime import fork
from lockstead.telemetry.measures import Meter

EVENTS_MAX: Final = 256
"""Number of events at which they are counted."""

EVENTS_KEPT: Final = 65_536
"""Number of events that are kept at most, should counting never succeed."""

REQUEST_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAIT_BUCKETS: Final = (0.005, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
HOLD_BUCKETS: Final = (0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

Labels: TypeAlias = tuple[str, ...]


class Series:
    """One histogram: the sum, and how many observations were at most each bound and above the one before."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0


class Histograms(dict[Labels, Series]):
    """Histograms by the values of their labels."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self.bounds = bounds

    def __missing__(self, labels: Labels) -> Series:
        made = self[labels] = Series(self.bounds)
        return made

    def observe(self, labels: Labels, value: float) -> None:
        """Add an observation."""
        series = self[labels]
        series.counts[bisect_left(self.bounds, value)] += 1
        series.total += value


@dataclass(slots=True)
class Counts:
    """A sink of measures. The labels have a bounded number of values."""

    wait: Histograms = field(default_factory=lambda: Histograms(WAIT_BUCKETS))
    hold: Histograms = field(default_factory=lambda: Histograms(HOLD_BUCKETS))
    requests: Histograms = field(default_factory=lambda: Histograms(REQUEST_BUCKETS))
    acquired_total: Counter[Labels] = field(default_factory=Counter)
    renewals_total: Counter[Labels] = field(default_factory=Counter)
    lost_total: Counter[Labels] = field(default_factory=Counter)
    leases: Counter[Labels] = field(default_factory=Counter)

    def acquired(self, store: str, lock: str, result: str, waited: float) -> None:
        """Record the end of an acquisition."""
        self.wait.observe((store, lock), waited)
        self.acquired_total[store, lock, result] += 1

    def began(self, store: str, lock: str) -> None:
        """Record that this process holds one lease more."""
        self.leases[store, lock] += 1

    def ended(self, store: str, lock: str, held: float) -> None:
        """Record that it holds one lease less."""
        self.hold.observe((store, lock), held)
        self.leases[store, lock] -= 1

    def renewal(self, store: str, lock: str, result: str) -> None:
        """Record a renewal."""
        self.renewals_total[store, lock, result] += 1

    def lost(self, store: str, lock: str, reason: str) -> None:
        """Record a lost lease."""
        self.lost_total[store, lock, reason] += 1

    def request(self, store: str, command: str, result: str, seconds: float) -> None:
        """Record a request to the store."""
        self.requests.observe((store, command, result), seconds)

    def forked(self) -> None:
        """Forget the leases of the parent."""
        self.leases = Counter(dict.fromkeys(self.leases, 0))


class Counting:
    """A listener of the process that collects events, and counts them later."""

    def __init__(self, names: LockNames) -> None:
        self.counts = Counts()
        self._meter = Meter(self.counts, names)
        self._events: deque[tuple[ProcessEvent, str, float]] = deque(maxlen=EVENTS_KEPT)
        self._make_lock()
        fork.watch(self)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, event: ProcessEvent, store: str) -> None:
        """Collect an event."""
        self._events.append((event, store, time.monotonic()))
        # whoever counts already counts this one, too: the caller need not wait
        if len(self._events) >= EVENTS_MAX and self._lock.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._lock.release()

    def counted(self) -> Counts:
        """Count what was collected, and return all counts."""
        with self._lock:
            self._count()
        return self.counts

    def _count(self) -> None:
        events, record = self._events, self._meter.record
        while events:
            record(*events.popleft())

    def after_fork(self) -> None:
        """Leave to the parent what it has not counted, and replace the lock, which another thread may have held."""
        self._events.clear()
        self._make_lock()
