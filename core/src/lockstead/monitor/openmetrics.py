"""The metrics of stores, from their rounds, for Prometheus: at most 100 names of locks for each store.

A round that failed leaves the last values in place; `lockstead_scrape_timestamp_seconds` shows how old they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from lockstead.monitor.leases import leases
from lockstead.monitor.names import LockNames
from lockstead.monitor.rounds import Round
from lockstead.states import held_for, state_of, time_left
from lockstead.views import LockInfo

OPENMETRICS: Final = CONTENT_TYPE_LATEST
"""The content type of what `Metrics.text` returns."""

_GAUGES: Final = {
    "held_seconds": "Seconds since the oldest lease was acquired.",
    "ttl_left_seconds": "Seconds until the first lease expires unless it is renewed.",
    "overdue": "Leases that are held for longer than their holders expected.",
    "waiters": "Locks and semaphores whose record shows that somebody waits.",
}


@dataclass(slots=True)
class _Sums:
    """What one name of locks adds up to in a round."""

    held_seconds: float | None = None
    ttl_left_seconds: float | None = None
    overdue: float = 0.0
    waiters: float = 0.0

    def add(self, lease: LockInfo, now: float) -> None:
        """Add one lease."""
        held, left = held_for(lease, now), time_left(lease, now)
        if held is not None:
            self.held_seconds = max(self.held_seconds or 0.0, held)
        if left is not None:
            self.ttl_left_seconds = left if self.ttl_left_seconds is None else min(self.ttl_left_seconds, left)
        self.overdue += state_of(lease, now) == "overdue"


@dataclass(slots=True)
class StoreMetrics:
    """The metrics of one store: a watcher of its rounds. leads: whether this process is its acting reaper."""

    store: str
    names: LockNames
    at: float = 0.0
    done_at: float | None = None
    errors: int = 0
    leads: Callable[[], bool] | None = None
    reaped: dict[str, int] = field(default_factory=dict)
    shown: dict[str, _Sums] = field(default_factory=dict)
    _next: dict[str, _Sums] = field(default_factory=dict)

    def began(self, at: float) -> None:
        """Note that a round began."""
        self.at, self._next = at, {}

    def saw(self, info: LockInfo) -> None:
        """Add one entry of the listing."""
        sums = self._next.setdefault(self.names.name(info.key), _Sums())
        for lease in leases(info):
            if not lease.is_expired:
                sums.add(lease, self.at)
        is_awaited = info.wanted_by is not None or (info.permits is not None and info.permits.next_waiter is not None)
        sums.waiters += is_awaited

    def ended(self, done: Round) -> None:
        """Show what the round found; after an error the values of the one before."""
        if done.error is not None:
            self.errors += 1
        else:
            self.shown, self.done_at = self._next, done.began_at
        self._next = {}

    def reap(self, key: str) -> None:
        """Count a lease that the reaper revoked."""
        name = self.names.name(key)
        self.reaped[name] = self.reaped.get(name, 0) + 1


class Metrics(Collector):
    """The metrics of several stores."""

    def __init__(self, names: LockNames | None = None) -> None:
        self._names = LockNames() if names is None else names
        self._stores: dict[str, StoreMetrics] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def of(self, store: str) -> StoreMetrics:
        """Return the metrics of a store, which watch its rounds. store: the URL without credentials."""
        return self._stores.setdefault(store, StoreMetrics(store, self._names))

    def text(self) -> bytes:
        """Return the metrics in the text format of OpenMetrics."""
        text: bytes = generate_latest(self._registry)  # type: ignore[no-untyped-call]  # it has no annotations
        return text

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all stores, for prometheus_client."""
        stores = list(self._stores.values())
        labels = ("store", "lock")
        for what, help_text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"lockstead_{what}", help_text, labels=labels)
            for store in stores:
                for name, sums in sorted(store.shown.items()):
                    value = getattr(sums, what)
                    if value is not None:
                        gauge.add_metric((store.store, name), value)
            yield gauge
        reaped = CounterMetricFamily("lockstead_reaped", "Leases that this reaper revoked.", labels=labels)
        for store in stores:
            for name, count in sorted(store.reaped.items()):
                reaped.add_metric((store.store, name), count)
        yield reaped
        errors = CounterMetricFamily(
            "lockstead_scrape_errors", "Rounds that the store did not answer.", labels=("store",)
        )
        stamp = GaugeMetricFamily(
            "lockstead_scrape_timestamp_seconds", "When the last complete round began.", labels=("store",)
        )
        leads = GaugeMetricFamily(
            "lockstead_reaper_leads", "Whether this reaper acts for the store.", labels=("store",)
        )
        for store in stores:
            if store.leads is not None:
                leads.add_metric((store.store,), float(store.leads()))
            errors.add_metric((store.store,), store.errors)
            if store.done_at is not None:
                stamp.add_metric((store.store,), store.done_at)
        yield leads
        yield errors
        yield stamp
