"""Operations of a wrapper on a lock other than acquire and release."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from lockstead.values import EXCLUSIVE, SHARED, LeaseTicket, Name, Space

if TYPE_CHECKING:
    from lockstead.aio_lock import AsyncLock
    from lockstead.lock import Lock
    from lockstead.views import LockInfo

L = TypeVar("L", "Lock", "AsyncLock")


def store_of(lock: Lock | AsyncLock) -> str:
    """Return the URL of a lock's store, without credentials. Opens the store; raises StoreRefused if that fails."""
    url: str = lock._open_now().store.url
    return url


def leases_of(held: LockInfo | None) -> tuple[LockInfo, ...]:
    """Return the leases on a lock: that of its holder, or those of its readers or of its permits."""
    if held is None:
        return ()
    return held.readers or (held,) if held.permits is None else held.permits.held


def keeps_out(lock: Lock | AsyncLock, held: LockInfo | None) -> bool:
    """Return whether the holder of a lock, as it was seen, prevents an acquisition of the lock in its mode."""
    if held is None or held.is_expired:
        return False
    if held.permits is not None:
        return held.permits.free <= 0
    is_closed = held.closing or held.revoked_by is not None or held.wanted_by is not None
    return is_closed or not lock.settings.mode == held.mode == SHARED


def ticket_of(lock: Lock | AsyncLock, held: LockInfo, lease: LockInfo) -> LeaseTicket:
    """Return the ticket of one of the leases on a lock (`leases_of`). Opens the store, as `store_of`."""
    if lease.slot is not None:
        return LeaseTicket(store_of(lock), held.key, lease.holder, lease.incarnation, lease.ttl or 0.0, slot=lease.slot)
    said = (store_of(lock), held.key, lease.holder, held.incarnation, held.ttl or 0.0)
    if held.mode == EXCLUSIVE:
        return LeaseTicket(*said)
    return LeaseTicket(*said, held.mode, held.holder, lease.incarnation)


def labelled(lock: L, labels: Mapping[str, str]) -> L:
    """Return a copy of a lock, on the same client, with more labels."""
    copied = copy.copy(lock)
    copied._settings = dataclasses.replace(lock.settings, labels={**lock.settings.labels, **labels})
    return copied


def take_back(lock: Lock | AsyncLock, holder: str, slot: int | None = None) -> None:
    """Release the lease that an interrupted acquisition was granted, in this thread; blocks for one or two requests.

    holder is the full name in the record. Does nothing if another holder has the lock. The next holder gets the same
    previous lease as this one. slot: that of a permit. Raises StoreError if the store fails: then the ttl frees it.
    """
    name = Name(lock.key) if slot is None else Name(lock.key, Space.PERMIT, str(slot))
    lock._open_now().sweep_once(name, holder, lock.settings)
