"""What of the records that are held this process keeps: their leases, and when each is given back by itself.

All managers of one store in a process share it, so that a copy of a manager releases what the original took. Must not
know Prefect, nor who holds a record: that is asked in the store.
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
"""How many records are remembered as given back; whoever gives one back twice does so soon."""


@dataclass(frozen=True, slots=True)
class _Kept:
    lease: Lease | AsyncLease = field(repr=False)
    timer: threading.Timer | None = None


class Records:
    """What the managers of one store keep in this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Record, _Kept] = {}
        self._given_back: OrderedDict[Record, None] = OrderedDict()
        self._open: Lock | AsyncLock | None = None
        weakref.finalize(self, _forget, self._kept).atexit = False

    def forget(self) -> None:
        """Forget all that is kept, without giving anything back."""
        self._lock = threading.Lock()
        self._kept.clear()
        self._given_back.clear()
        self._open = None

    def stay_open(self, lock: Lock | AsyncLock) -> None:
        """Hold on to the store that this lock has opened, for whoever asks next."""
        self._open = lock

    def keep(self, record: Record, lease: Lease | AsyncLease, hold_timeout: float | None) -> None:
        """Keep a lease until it is given back, or for hold_timeout seconds."""
        timer = self._timer(record, hold_timeout)
        with self._lock:
            self._kept[record] = _Kept(lease, timer)
            self._given_back.pop(record, None)
        if timer is not None:
            timer.start()

    def keeps_on(self, record: Record, hold_timeout: float | None) -> bool:
        """Return whether this holder holds it, from now on for hold_timeout seconds; one that was lost is not held."""
        timer = self._timer(record, hold_timeout)
        with self._lock:
            kept = self._kept.get(record)
            is_held = kept is not None and kept.lease.is_held
            if kept is not None:
                _cancel(kept)
            if kept is not None and is_held:
                self._kept[record] = _Kept(kept.lease, timer)
            else:
                self._kept.pop(record, None)
        if is_held and timer is not None:
            timer.start()
        return is_held

    def lease(self, record: Record) -> Lease | AsyncLease | None:
        """Return the lease that is kept of it."""
        kept = self._kept.get(record)
        return None if kept is None else kept.lease

    def ends_by_itself(self, key: str) -> bool:
        """Return whether what this process keeps of a key is given back without anybody's doing."""
        with self._lock:
            return any(kept.timer is not None for (of, _holder), kept in self._kept.items() if of == key)

    def give_back(self, record: Record, only: threading.Timer | None = None) -> bool:
        """Release the lease; False if none is kept. only: if it is still this timer's. A silent store warns."""
        with self._lock:
            kept = self._kept.get(record)
            if kept is None or (only is not None and kept.timer is not only):
                return False
            del self._kept[record]
            self._given_back[record] = None
            while len(self._given_back) > GIVEN_BACK_MAX:
                self._given_back.popitem(last=False)
        _cancel(kept)
        try:
            released(kept.lease)
        except LocksteadError as error:
            warn(record, error)
        return True

    def was_given_back(self, record: Record) -> bool:
        """Return whether this process gave it back lately."""
        return record in self._given_back

    def _timer(self, record: Record, hold_timeout: float | None) -> threading.Timer | None:
        if hold_timeout is None:
            return None
        ours = weakref.ref(self)

        def end() -> None:
            records = ours()
            if records is not None:
                records.give_back(record, timer)

        timer = threading.Timer(hold_timeout, end)
        timer.name, timer.daemon = "lockstead-hold", True
        return timer


def released(lease: Lease | AsyncLease) -> bool:
    """Release a lease, blocking, even one that was awaited: Prefect releases without awaiting."""
    ended = lease.release()
    if isinstance(ended, bool):
        return ended
    # in a loop of its own: the caller's may be the one that stands still meanwhile
    with ThreadPoolExecutor(1, "lockstead-release") as aside:
        return aside.submit(asyncio.run, ended).result()


def warn(record: Record, error: Exception) -> None:
    """Log that a record was not given back: finished work does not fail for it, and the ttl frees the key."""
    logging.getLogger("lockstead").warning("the lock of %r was not given back and expires: %s", record[0], error)


def _cancel(kept: _Kept) -> None:
    if kept.timer is not None:
        kept.timer.cancel()


def _forget(kept: dict[Record, _Kept]) -> None:
    for one in kept.values():
        _cancel(one)
    kept.clear()


class Shared:
    """The records of this process by store, for as long as a manager of that store is there."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, Records] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, store: str) -> Records:
        """Return those of a store."""
        with self._lock:
            found = self._known.get(store)
            if found is None:
                found = self._known[store] = Records()
            return found

    def forget(self) -> None:
        """Forget in a forked child what its parent holds: who holds a record is read in the store, as elsewhere."""
        self._lock = threading.Lock()
        for one in list(self._known.values()):
            one.forget()


SHARED: Final = Shared()
"""Those of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARED.forget)
