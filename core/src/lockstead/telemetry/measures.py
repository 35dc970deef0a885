"""Events as measures, the same for every way to record them.

A lease is counted from the event that begins it to the first that ends it, whichever that is. A forked child begins
with no lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

from lockstead.errors import LossReason
from lockstead.events import (
    Acquired,
    Attached,
    Detached,
    LeaseDropped,
    Lost,
    NotGranted,
    ProcessEvent,
    Released,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    StoreRequest,
)
from lockstead.monitor.names import OTHER, LockNames
from lockstead.runtime import fork

STORES_MAX: Final = 100
"""Number of stores with a name of their own in metrics; the others are `other`."""

GRANTED: Final = "granted"
"""The result of an acquisition that got its lease; the others are those of `NotGranted`."""

LeaseKey: TypeAlias = tuple[str, str, str, str]
"""What identifies a lease in this process: store, key, holder and member."""


class Sink(Protocol):
    """What records measures. Durations are seconds; store and lock are names of a bounded number."""

    def acquired(self, store: str, lock: str, result: str, waited: float) -> None:
        """Record the end of an acquisition."""
        ...

    def began(self, store: str, lock: str) -> None:
        """Record that this process holds one lease more."""
        ...

    def ended(self, store: str, lock: str, held: float) -> None:
        """Record that it holds one lease less."""
        ...

    def renewal(self, store: str, lock: str, result: str) -> None:
        """Record a renewal: "ok" or "failed"."""
        ...

    def lost(self, store: str, lock: str, reason: str) -> None:
        """Record a lost lease."""
        ...

    def request(self, store: str, command: str, result: str, seconds: float) -> None:
        """Record a request to the store."""
        ...

    def forked(self) -> None:
        """Forget the leases of the parent, in a forked child."""
        ...


class Meter:
    """A listener of the process that turns events into measures.

    names: the names of locks in metrics; without them all are `other`.
    """

    def __init__(self, sink: Sink, names: LockNames | None = None) -> None:
        self._sink = sink
        self._name = lru_cache(maxsize=4096)((LockNames() if names is None else names).name)
        self._stores: dict[str, str] = {}
        self._held: dict[LeaseKey, float] = {}
        # by type: trying one class after the other takes longer than the rest, and this runs with every request
        self._by_type: dict[type, Callable[[Any, str, str, float], None]] = {
            StoreRequest: self._requested,
            Acquired: self._acquired,
            Attached: self._attached,
            NotGranted: self._not_granted,
            Renewed: self._renewed,
            RenewalFailed: self._renewal_failed,
            Lost: self._lost,
            Released: self._released,
            Detached: self._ended,
            ReleaseFailed: self._ended,
            LeaseDropped: self._ended,
        }
        fork.watch(self)

    def __call__(self, event: ProcessEvent, store: str) -> None:
        """Record one event."""
        self.record(event, store, time.monotonic())

    def record(self, event: ProcessEvent, store: str, at: float) -> None:
        """Record one event of the instant `at`, by the monotonic clock."""
        record = self._by_type.get(type(event))
        if record is not None:
            record(event, self._stores.get(store) or self._store(store), store, at)

    def _requested(self, event: StoreRequest, store: str, _url: str, _at: float) -> None:
        self._sink.request(store, event.command, event.result, event.took)

    def _acquired(self, event: Acquired, store: str, url: str, at: float) -> None:
        lock = self._name(event.key)
        self._sink.acquired(store, lock, GRANTED, event.waited)
        self._begin((url, event.key, event.holder, ""), store, lock, at)

    def _attached(self, event: Attached, store: str, url: str, at: float) -> None:
        self._begin((url, event.key, event.holder, event.member), store, self._name(event.key), at)

    def _not_granted(self, event: NotGranted, store: str, _url: str, _at: float) -> None:
        self._sink.acquired(store, self._name(event.key), event.result, event.waited)

    def _renewed(self, event: Renewed, store: str, _url: str, _at: float) -> None:
        self._sink.renewal(store, self._name(event.key), "ok")

    def _renewal_failed(self, event: RenewalFailed, store: str, _url: str, _at: float) -> None:
        self._sink.renewal(store, self._name(event.key), "failed")

    def _lost(self, event: Lost, store: str, url: str, at: float) -> None:
        if event.reason is not LossReason.ENDED:
            self._sink.lost(store, self._name(event.key), event.reason.name.lower())
        self._ended(event, store, url, at)

    def _released(self, event: Released, store: str, url: str, at: float) -> None:
        self._end((url, event.key, event.holder, ""), store, at)

    def _ended(self, event: Lost | Detached | ReleaseFailed | LeaseDropped, store: str, url: str, at: float) -> None:
        self._end((url, event.key, event.holder, event.member), store, at)

    def _begin(self, lease: LeaseKey, store: str, lock: str, at: float) -> None:
        self._held[lease] = at
        self._sink.began(store, lock)

    def _end(self, lease: LeaseKey, store: str, at: float) -> None:
        began_at = self._held.pop(lease, None)
        if began_at is not None:
            self._sink.ended(store, self._name(lease[1]), max(0.0, at - began_at))

    def _store(self, url: str) -> str:
        if url not in self._stores and len(self._stores) >= STORES_MAX:
            return OTHER
        return self._stores.setdefault(url, url)

    def after_fork(self) -> None:
        """Forget the leases of the parent."""
        self._held.clear()
        self._sink.forked()
