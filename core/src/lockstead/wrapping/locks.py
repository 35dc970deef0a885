"""Operations of a wrapper on a lock other than acquire and release."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from lockstead.values import LeaseTicket, Name

if TYPE_CHECKING:
    from lockstead.aio_lock import AsyncLock
    from lockstead.lock import Lock
    from lockstead.views import LockInfo

L = TypeVar("L", "Lock", "AsyncLock")


def store_of(lock: Lock | AsyncLock) -> str:
    """Return the URL of a lock's store, without credentials. Opens the store; raises StoreRefused if that fails."""
    url: str = lock._open_now().store.url
    return url


def ticket_of(lock: Lock | AsyncLock, held: LockInfo) -> LeaseTicket:
    """Return the ticket of the lease that a lock's holder has. Opens the store, as `store_of`."""
    return LeaseTicket(store_of(lock), held.key, held.holder, held.incarnation, held.ttl or 0.0)


def labelled(lock: L, labels: Mapping[str, str]) -> L:
    """Return a copy of a lock, on the same client, with more labels."""
    copied = copy.copy(lock)
    copied._settings = dataclasses.replace(lock.settings, labels={**lock.settings.labels, **labels})
    return copied


def take_back(lock: Lock | AsyncLock, holder: str) -> None:
    """Release the lease that an interrupted acquisition was granted, in this thread; blocks for one or two requests.

    holder is the full name in the record. Does nothing if another holder has the lock. The next holder gets the same
    previous lease as this one. Raises StoreError if the store fails: then the ttl frees the key.
    """
    lock._open_now().sweep_once(Name(lock.key), holder, lock.settings)
