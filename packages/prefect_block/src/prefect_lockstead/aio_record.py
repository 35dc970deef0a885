"""Acquiring the lock of a transaction record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lockstead import AsyncLease, AsyncLock, NotAcquired, OutcomeUnknown, StoreUnavailable
from prefect_lockstead.awaiting import find_store
from prefect_lockstead.places import lock_key

if TYPE_CHECKING:
    from prefect_lockstead.manager import LocksteadLockManager

RECLAIM_LIMIT: Final = 1.0
"""Maximum seconds of one attempt to reclaim the lease of an earlier process of the same holder."""


async def lock_of(manager: LocksteadLockManager, key: str, holder: str | None = None) -> AsyncLock:
    """Return the lock of a record in the manager's store, for a holder, or for inspection only."""
    manager._open()
    if manager._place is None:
        manager._place = await find_store(str(manager._store))
    place = manager._place.of_key(lock_key(key))
    return AsyncLock(place.url, client=place.client, **manager._settings(place, holder))


async def acquire(
    manager: LocksteadLockManager, key: str, holder: str, acquire_timeout: float | None, hold_timeout: float | None
) -> bool:
    """Acquire the lock of a record and register its lease; as `LocksteadLockManager.acquire_lock`."""
    records, record = manager._open(), (key, holder)
    if records.extend_hold(record, hold_timeout):
        return True
    ends_at = None if acquire_timeout is None else time.monotonic() + acquire_timeout
    lock = await lock_of(manager, key, holder)
    # first without waiting: an earlier process of the same holder may hold it
    answer = await _try(lock, acquire_timeout)
    while not isinstance(answer, AsyncLease):
        left = _left(ends_at)
        if left is not None and left <= 0:
            return False
        if records.extend_hold(record, hold_timeout):
            return True
        if answer is not None and answer.holder == lock.settings.owner:
            limit = RECLAIM_LIMIT if left is None else min(RECLAIM_LIMIT, left)
            answer = await _ask(lock, limit, reclaim=True)
            continue
        answer = await _ask(lock, left)
        left = _left(ends_at)
        if isinstance(answer, AsyncLease) or (left is not None and left <= 0):
            continue
        # refused before the timeout: this thread or task already holds it under another name
        if left is None and not records.has_timer(key):
            raise RuntimeError(f"{answer}: a transaction inside another one of the same key would wait forever")
        await lock.wait_until_free(left)
        answer = await _try(lock, acquire_timeout)
    records.keep_open(lock)
    records.keep(record, answer, hold_timeout)
    return True


async def _try(lock: AsyncLock, acquire_timeout: float | None) -> AsyncLease | NotAcquired | None:
    """Try once; None if the store does not answer and the timeout allows another try."""
    try:
        return await _ask(lock, 0.0)
    except (StoreUnavailable, OutcomeUnknown):
        if acquire_timeout == 0:
            raise
        return None


async def _ask(lock: AsyncLock, limit: float | None, *, reclaim: bool = False) -> AsyncLease | NotAcquired:
    try:
        return await lock.acquire(limit, reclaim=reclaim)
    except NotAcquired as error:
        return error


def _left(ends_at: float | None) -> float | None:
    return None if ends_at is None else ends_at - time.monotonic()
