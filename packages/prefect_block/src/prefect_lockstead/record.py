# Generated from aio_record.py by `make blocking`: edit that file instead.
"""Acquiring the lock of a transaction record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lockstead import Lease, Lock, NotAcquired, OutcomeUnknown, StoreUnavailable
from prefect_lockstead.blocking import find_store
from prefect_lockstead.places import lock_key

if TYPE_CHECKING:
    from prefect_lockstead.manager import LocksteadLockManager

RECLAIM_LIMIT: Final = 1.0
"""Maximum seconds of one attempt to reclaim the lease of an earlier process of the same holder."""


def lock_of(manager: LocksteadLockManager, key: str, holder: str | None = None) -> Lock:
    """Return the lock of a record in the manager's store, for a holder, or for inspection only."""
    manager._open()
    if manager._place is None:
        manager._place = find_store(str(manager._store))
    place = manager._place.of_key(lock_key(key))
    return Lock(place.url, client=place.client, **manager._settings(place, holder))


def acquire(
    manager: LocksteadLockManager, key: str, holder: str, acquire_timeout: float | None, hold_timeout: float | None
) -> bool:
    """Acquire the lock of a record and register its lease; as `LocksteadLockManager.acquire_lock`."""
    records, record = manager._open(), (key, holder)
    if records.extend_hold(record, hold_timeout):
        return True
    ends_at = None if acquire_timeout is None else time.monotonic() + acquire_timeout
    lock = lock_of(manager, key, holder)
    # first without waiting: an earlier process of the same holder may hold it
    answer = _try(lock, acquire_timeout)
    while not isinstance(answer, Lease):
        left = _left(ends_at)
        if left is not None and left <= 0:
            return False
        if records.extend_hold(record, hold_timeout):
            return True
        if answer is not None and answer.holder == lock.settings.owner:
            limit = RECLAIM_LIMIT if left is None else min(RECLAIM_LIMIT, left)
            answer = _ask(lock, limit, reclaim=True)
            continue
        answer = _ask(lock, left)
        left = _left(ends_at)
        if isinstance(answer, Lease) or (left is not None and left <= 0):
            continue
        # refused before the timeout: this thread or task already holds it under another name
        if left is None and not records.has_timer(key):
            raise RuntimeError(f"{answer}: a transaction inside another one of the same key would wait forever")
        lock.wait_until_free(left)
        answer = _try(lock, acquire_timeout)
    records.keep_open(lock)
    records.keep(record, answer, hold_timeout)
    return True


def _try(lock: Lock, acquire_timeout: float | None) -> Lease | NotAcquired | None:
    """Try once; None if the store does not answer and the timeout allows another try."""
    try:
        return _ask(lock, 0.0)
    except (StoreUnavailable, OutcomeUnknown):
        if acquire_timeout == 0:
            raise
        return None


def _ask(lock: Lock, limit: float | None, *, reclaim: bool = False) -> Lease | NotAcquired:
    try:
        return lock.acquire(limit, reclaim=reclaim)
    except NotAcquired as error:
        return error


def _left(ends_at: float | None) -> float | None:
    return None if ends_at is None else ends_at - time.monotonic()
