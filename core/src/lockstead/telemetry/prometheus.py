"""Metrics of this process for prometheus_client: `install()` once, at start.

In the multiprocess mode of prometheus_client they are summed over all processes, and `lockstead_leases` over those that
live. Outside of it a forked child begins with a copy of its parent's numbers, as with any metric of prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from lockstead.listeners import ProcessListener, add_listener, remove_listener
from lockstead.monitor.names import LockNames
from lockstead.telemetry.counts import HOLD_BUCKETS, REQUEST_BUCKETS, WAIT_BUCKETS, Counting, Histograms
from lockstead.telemetry.measures import Meter

try:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram, values
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("metrics for Prometheus need: pip install 'lockstead[prometheus]'") from error

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OF_LOCK: Final = ("store", "lock")
OF_RESULT: Final = (*OF_LOCK, "result")
OF_REASON: Final = (*OF_LOCK, "reason")
OF_REQUEST: Final = ("store", "command", "result")

WAIT: Final = ("lockstead_wait_seconds", "Seconds that acquisitions waited, whether they got a lease or not.")
HOLD: Final = ("lockstead_hold_seconds", "Seconds that this process held a lease or was attached to it.")
REQUESTS: Final = ("lockstead_store_request_seconds", "Seconds that requests to a store took.")
ACQUIRED: Final = ("lockstead_acquired_total", "Acquisitions that ended, by result.")
RENEWALS: Final = ("lockstead_renewals_total", "Renewals that ended, by result.")
LOST: Final = ("lockstead_lost_total", "Leases that were lost, by reason.")
LEASES: Final = ("lockstead_leases", "Leases that this process holds or is attached to.")


class CountsCollector(Collector):
    """What `Counting` has counted, for a registry."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counts = self._counting.counted()
        yield _histogram(WAIT, OF_LOCK, counts.wait)
        yield _histogram(HOLD, OF_LOCK, counts.hold)
        yield _histogram(REQUESTS, OF_REQUEST, counts.requests)
        for (name, text), labels, counted in (
            (ACQUIRED, OF_RESULT, counts.acquired_total),
            (RENEWALS, OF_RESULT, counts.renewals_total),
            (LOST, OF_REASON, counts.lost_total),
        ):
            family = CounterMetricFamily(name, text, labels=labels)
            for said, number in list(counted.items()):
                family.add_metric(said, number)
            yield family
        gauge = GaugeMetricFamily(*LEASES, labels=OF_LOCK)
        for said, number in list(counts.leases.items()):
            gauge.add_metric(said, number)
        yield gauge


def _histogram(about: tuple[str, str], labels: tuple[str, ...], found: Histograms) -> HistogramMetricFamily:
    family = HistogramMetricFamily(*about, labels=labels)
    bounds = [*map(floatToGoString, found.bounds), "+Inf"]
    for said, series in list(found.items()):
        family.add_metric(said, list(zip(bounds, accumulate(series.counts), strict=True)), series.total)
    return family


class SharedSink:
    """A sink that records measures in files which several processes share: the multiprocess mode."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._wait = Histogram(*WAIT, OF_LOCK, buckets=WAIT_BUCKETS, registry=registry)
        self._hold = Histogram(*HOLD, OF_LOCK, buckets=HOLD_BUCKETS, registry=registry)
        self._requests = Histogram(*REQUESTS, OF_REQUEST, buckets=REQUEST_BUCKETS, registry=registry)
        self._acquired = Counter(*ACQUIRED, OF_RESULT, registry=registry)
        self._renewals = Counter(*RENEWALS, OF_RESULT, registry=registry)
        self._lost = Counter(*LOST, OF_REASON, registry=registry)
        self._leases = Gauge(*LEASES, OF_LOCK, registry=registry, multiprocess_mode="livesum")
        counters = (self._acquired, self._renewals, self._lost)
        self.collectors: tuple[Collector, ...] = (self._wait, self._hold, self._requests, *counters, self._leases)

    def acquired(self, store: str, lock: str, result: str, waited: float) -> None:
        """Record the end of an acquisition."""
        self._wait.labels(store, lock).observe(waited)
        self._acquired.labels(store, lock, result).inc()

    def began(self, store: str, lock: str) -> None:
        """Record that this process holds one lease more."""
        self._leases.labels(store, lock).inc()

    def ended(self, store: str, lock: str, held: float) -> None:
        """Record that it holds one lease less."""
        self._hold.labels(store, lock).observe(held)
        self._leases.labels(store, lock).dec()

    def renewal(self, store: str, lock: str, result: str) -> None:
        """Record a renewal."""
        self._renewals.labels(store, lock, result).inc()

    def lost(self, store: str, lock: str, reason: str) -> None:
        """Record a lost lease."""
        self._lost.labels(store, lock, reason).inc()

    def request(self, store: str, command: str, result: str, seconds: float) -> None:
        """Record a request to the store."""
        self._requests.labels(store, command, result).observe(seconds)

    def forked(self) -> None:
        """Do nothing: prometheus_client gives a forked child files of its own."""


class _Installed:
    """What `install` has added to this process."""

    def __init__(self) -> None:
        self.listener: ProcessListener | None = None
        self.registry: CollectorRegistry = REGISTRY
        self.collectors: tuple[Collector, ...] = ()


_INSTALLED: Final = _Installed()


def install(*, locks: Sequence[str] = (), registry: CollectorRegistry = REGISTRY) -> None:
    """Record the metrics of all clients of this process in a registry of prometheus_client, from now on.

    locks: what the label `lock` says, as `PATTERN=NAME` or `PATTERN`, at most 100 names; other keys are `other`. A
    second call changes nothing. ValueError for an invalid pattern.
    """
    if _INSTALLED.listener is not None:
        return
    names = LockNames.parse(locks)
    listener: ProcessListener
    if values.ValueClass._multiprocess:
        sink = SharedSink(registry)
        listener, collectors = Meter(sink, names), sink.collectors
    else:
        counting = Counting(names)
        listener, collectors = counting, (CountsCollector(counting),)
        registry.register(collectors[0])
    _INSTALLED.listener, _INSTALLED.registry, _INSTALLED.collectors = listener, registry, collectors
    add_listener(listener)


def uninstall() -> None:
    """Record nothing more, and remove the metrics from their registry."""
    if _INSTALLED.listener is not None:
        remove_listener(_INSTALLED.listener)
        for collector in _INSTALLED.collectors:
            _INSTALLED.registry.unregister(collector)
        _INSTALLED.listener = None
