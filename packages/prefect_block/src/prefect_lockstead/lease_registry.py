"""The leases that this process holds on transaction records, with their release timers.

All managers of one store in a process share one registry, so a copy of a manager can release what the original
acquired. Must not import Prefect. Who holds a record is read from the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from lockstead import Lock, LocksteadError

if TYPE_CHECKING:
    from lockstead import AsyncLease, AsyncLock, Lease

Record: TypeAlias = tuple[str, str]
"""A key and the name of its holder."""

GIVEN_BACK_MAX: Final = 1000
"""How many released records are remembered, to accept a second release."""


@dataclass(frozen=True, slots=True)
class _Entry:
    lease: Lease | AsyncLease = field(repr=False)
    timer: threading.Timer | None = None


class LeaseRegistry:
    """The leases of the managers of one store in this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Record, _Entry] = {}
        self._given_back: OrderedDict[Record, None] = OrderedDict()
        self._open: Lock | AsyncLock | None = None
        weakref.finalize(self, _clear, self._entries).atexit = False

    def forget(self) -> None:
        """Drop all entries without releasing their leases."""
        self._lock = threading.Lock()
        self._entries.clear()
        self._given_back.clear()
        self._open = None

    def keep_open(self, lock: Lock | AsyncLock) -> None:
        """Keep the store that this lock has opened open for later calls."""
        self._open = lock

    def keep(self, record: Record, lease: Lease | AsyncLease, hold_timeout: float | None) -> None:
        """Add a lease, which is released by `give_back` or after hold_timeout seconds."""
        timer = self._timer(record, hold_timeout)
        with self._lock:
            self._entries[record] = _Entry(lease, timer)
            self._given_back.pop(record, None)
        if timer is not None:
            timer.start()

    def extend_hold(self, record: Record, hold_timeout: float | None) -> bool:
        """Return whether this holder has a lease that is not lost; if so, restart its timer at hold_timeout seconds."""
        timer = self._timer(record, hold_timeout)
        with self._lock:
            entry = self._entries.get(record)
            is_held = entry is not None and entry.lease.is_held
            if entry is not None:
                _cancel(entry)
            if entry is not None and is_held:
                self._entries[record] = _Entry(entry.lease, timer)
            else:
                self._entries.pop(record, None)
        if is_held and timer is not None:
            timer.start()
        return is_held

    def lease(self, record: Record) -> Lease | AsyncLease | None:
        """Return the lease on a record; None if this process has none."""
        entry = self._entries.get(record)
        return None if entry is None else entry.lease

    def has_timer(self, key: str) -> bool:
        """Return whether a timer will release a lease of this process on the key."""
        with self._lock:
            return any(entry.timer is not None for (of, _holder), entry in self._entries.items() if of == key)

    def give_back(self, record: Record, only: threading.Timer | None = None) -> bool:
        """Release the lease; False if there is none. only: act only for this timer. A store that fails is logged."""
        with self._lock:
            entry = self._entries.get(record)
            if entry is None or (only is not None and entry.timer is not only):
                return False
            del self._entries[record]
            self._given_back[record] = None
            while len(self._given_back) > GIVEN_BACK_MAX:
                self._given_back.popitem(last=False)
        _cancel(entry)
        try:
            released(entry.lease)
        except LocksteadError as error:
            warn(record, error)
        return True

    def was_given_back(self, record: Record) -> bool:
        """Return whether this process released the record recently."""
        return record in self._given_back

    def _timer(self, record: Record, hold_timeout: float | None) -> threading.Timer | None:
        if hold_timeout is None:
            return None
        registry_ref = weakref.ref(self)

        def end() -> None:
            registry = registry_ref()
            if registry is not None:
                registry.give_back(record, timer)

        timer = threading.Timer(hold_timeout, end)
        timer.name, timer.daemon = "lockstead-hold", True
        return timer


def released(lease: Lease | AsyncLease) -> bool:
    """Release a lease, blocking, also an AsyncLease: Prefect releases without awaiting."""
    ended = lease.release()
    if isinstance(ended, bool):
        return ended
    # in another event loop: this call may block the loop of the lease
    with ThreadPoolExecutor(1, "lockstead-release") as executor:
        return executor.submit(asyncio.run, ended).result()


def warn(record: Record, error: Exception) -> None:
    """Log that a release failed: the lease expires after its ttl, so finished work does not fail."""
    logging.getLogger("lockstead").warning("the lock of %r was not released and expires: %s", record[0], error)


def _cancel(entry: _Entry) -> None:
    if entry.timer is not None:
        entry.timer.cancel()


def _clear(entries: dict[Record, _Entry]) -> None:
    for entry in entries.values():
        _cancel(entry)
    entries.clear()


class Registries:
    """The registries of this process by store, each as long as a manager of that store exists."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, LeaseRegistry] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, store: str) -> LeaseRegistry:
        """Return the registry of a store."""
        with self._lock:
            found = self._known.get(store)
            if found is None:
                found = self._known[store] = LeaseRegistry()
            return found

    def forget(self) -> None:
        """Drop in a forked child the leases of its parent."""
        self._lock = threading.Lock()
        for one in list(self._known.values()):
            one.forget()


REGISTRIES: Final = Registries()
"""The registries of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REGISTRIES.forget)
