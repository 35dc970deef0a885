# Generated from aio_record.py by `make blocking`: edit that file instead.
"""How a lock manager takes the lock of a record, and which lock that is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lockstead import Lease, Lock, NotAcquired, OutcomeUnknown, StoreUnavailable
from prefect_lockstead.blocking import find_store
from prefect_lockstead.places import lock_key

if TYPE_CHECKING:
    from prefect_lockstead.manager import LocksteadLockManager

RECLAIM_LIMIT: Final = 1.0
"""Seconds for which what the same holder left behind is asked for, before looking again who keeps it."""


def lock_of(manager: LocksteadLockManager, key: str, holder: str | None = None) -> Lock:
    """Return the lock of a record in the manager's store, for a holder or only to look at."""
    manager._open()
    if manager._place is None:
        manager._place = find_store(str(manager._store))
    place = manager._place.of_key(lock_key(key))
    return Lock(place.url, client=place.client, **manager._settings(place, holder))


def acquire(
    manager: LocksteadLockManager, key: str, holder: str, acquire_timeout: float | None, hold_timeout: float | None
) -> bool:
    """Take the lock of a record and keep its lease; as `LocksteadLockManager.acquire_lock`."""
    records, record = manager._open(), (key, holder)
    if records.keeps_on(record, hold_timeout):
        return True
    ends_at = None if acquire_timeout is None else time.monotonic() + acquire_timeout
    lock = lock_of(manager, key, holder)
    # once without waiting: the one who holds it may be an earlier process of the same holder
    answer = _try(lock, acquire_timeout)
    while not isinstance(answer, Lease):
        left = _left(ends_at)
        if left is not None and left <= 0:
            return False
        if records.keeps_on(record, hold_timeout):
            return True
        if answer is not None and answer.holder == lock.settings.owner:
            limit = RECLAIM_LIMIT if left is None else min(RECLAIM_LIMIT, left)
            answer = _ask(lock, limit, reclaim=True)
            continue
        answer = _ask(lock, left)
        left = _left(ends_at)
        if isinstance(answer, Lease) or (left is not None and left <= 0):
            continue
        # refused before its time: this very thread or task holds it by another name
        if left is None and not records.ends_by_itself(key):
            raise RuntimeError(f"{answer}: a transaction inside another one of the same key would wait forever")
        lock.wait_until_free(left)
        answer = _try(lock, acquire_timeout)
    records.stay_open(lock)
    records.keep(record, answer, hold_timeout)
    return True


def _try(lock: Lock, acquire_timeout: float | None) -> Lease | NotAcquired | None:
    """Ask once; None if the store does not answer and there is time to wait until it does."""
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
