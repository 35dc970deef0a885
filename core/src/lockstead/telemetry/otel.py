"""Traces and metrics of this process through the API of OpenTelemetry: `install()` once, at start.

The spans and instruments go to the providers that the user's SDK has set; without an SDK nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lockstead.listeners import add_listener, remove_listener
from lockstead.monitor.names import LockNames
from lockstead.telemetry.counts import HOLD_BUCKETS, REQUEST_BUCKETS, WAIT_BUCKETS
from lockstead.telemetry.measures import Meter

try:
    from opentelemetry import metrics, trace

    from lockstead.telemetry.spans import Tracing
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("traces need: pip install 'lockstead[otel]'") from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

SCOPE: Final = "lockstead"


class InstrumentSink:
    """A sink that records measures with instruments of OpenTelemetry, named as for Prometheus."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._wait = _histogram(meter, "wait", "Time that acquisitions waited.", WAIT_BUCKETS)
        self._hold = _histogram(meter, "hold", "Time that leases were held.", HOLD_BUCKETS)
        self._requests = _histogram(meter, "store_request", "Time that requests to a store took.", REQUEST_BUCKETS)
        self._acquired = meter.create_counter("lockstead.acquired", "{acquisition}", "Acquisitions that ended.")
        self._renewals = meter.create_counter("lockstead.renewals", "{renewal}", "Renewals that ended.")
        self._lost = meter.create_counter("lockstead.lost", "{lease}", "Leases that were lost.")
        self._leases = meter.create_up_down_counter("lockstead.leases", "{lease}", "Leases that are held.")

    def acquired(self, store: str, lock: str, result: str, waited: float) -> None:
        """Record the end of an acquisition."""
        self._wait.record(waited, {"store": store, "lock": lock})
        self._acquired.add(1, {"store": store, "lock": lock, "result": result})

    def began(self, store: str, lock: str) -> None:
        """Record that this process holds one lease more."""
        self._leases.add(1, {"store": store, "lock": lock})

    def ended(self, store: str, lock: str, held: float) -> None:
        """Record that it holds one lease less."""
        self._hold.record(held, {"store": store, "lock": lock})
        self._leases.add(-1, {"store": store, "lock": lock})

    def renewal(self, store: str, lock: str, result: str) -> None:
        """Record a renewal."""
        self._renewals.add(1, {"store": store, "lock": lock, "result": result})

    def lost(self, store: str, lock: str, reason: str) -> None:
        """Record a lost lease."""
        self._lost.add(1, {"store": store, "lock": lock, "reason": reason})

    def request(self, store: str, command: str, result: str, seconds: float) -> None:
        """Record a request to the store."""
        self._requests.record(seconds, {"store": store, "command": command, "result": result})

    def forked(self) -> None:
        """Do nothing: what the child exports is told apart by its process."""


def _histogram(meter: metrics.Meter, name: str, about: str, bounds: Sequence[float]) -> metrics.Histogram:
    name = f"{SCOPE}.{name}"
    try:
        return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=bounds)
    except TypeError:  # the API before 1.30 cannot say it; the default boundaries are for milliseconds
        return meter.create_histogram(name, "s", about)


@dataclass(slots=True)
class _Installed:
    """What `install` has added to this process."""

    tracing: Tracing | None = None
    meter: Meter | None = None


_INSTALLED: Final = _Installed()


def install(
    *,
    locks: Sequence[str] = (),
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Trace and measure all clients of this process from now on, by the providers given, or the global ones.

    locks: what the attribute `lock` of metrics says, as `PATTERN=NAME` or `PATTERN`, at most 100 names; other keys are
    `other`. Spans have the keys. A second call changes nothing. ValueError for an invalid pattern.
    """
    if _INSTALLED.tracing is not None:
        return
    names = LockNames.parse(locks)
    meter = Meter(InstrumentSink(metrics.get_meter(SCOPE, meter_provider=meter_provider)), names)
    tracing = Tracing(trace.get_tracer(SCOPE, tracer_provider=tracer_provider))
    _INSTALLED.tracing, _INSTALLED.meter = tracing, meter
    add_listener(tracing, traceparent=tracing.begin)
    add_listener(meter)


def uninstall() -> None:
    """Record nothing more."""
    for listener in (_INSTALLED.tracing, _INSTALLED.meter):
        if listener is not None:
            remove_listener(listener)
    _INSTALLED.tracing = _INSTALLED.meter = None


class Instrumentor:
    """The entry point for `opentelemetry-instrument`, which sets up the SDK."""

    def instrument(self, **_: Any) -> None:
        """Install."""
        install()

    def uninstrument(self, **_: Any) -> None:
        """Uninstall."""
        uninstall()
