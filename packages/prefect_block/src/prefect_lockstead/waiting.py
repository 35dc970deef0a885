"""Decides how a run comes to its lease: at once, waiting in its process, or by leaving it and coming back.

Who waits in its process keeps its place in the store's queue and its worker's slot. Who leaves it (`waiting=
"reschedule"`) frees the slot, is in no queue, and comes back by the clock: when the holder expects to be done, else
after UNKNOWN seconds, each time at least SOONEST and at most LATEST seconds later, plus up to a fifth at random. Who is
cancelled or terminated while it asks leaves nothing behind: a grant that came at that instant is given back.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import lockstead
from lockstead import LeaseTicket, NotAcquired
from lockstead.errors import StoreError
from lockstead.values import Duration, seconds
from prefect_lockstead import states, telling
from prefect_lockstead.showing import Showing
from prefect_lockstead.words import logger, waiting_for

if TYPE_CHECKING:
    from lockstead import AsyncLease, AsyncLock, Holding, Lease, Lock

RESCHEDULE: Final = "reschedule"

SOONEST: Final = 5.0
LATEST: Final = 300.0
UNKNOWN: Final = 15.0
"""Seconds until a run comes back: at least, at most, and where nobody knows when the lock will be free."""

SPREAD: Final = 0.2
"""So much later, at random, does a run come back: those that left together do not ask together."""


WISH: Final = "prefect-wish"
"""The label of a lock that says which wish was granted."""

L = TypeVar("L", "Lock", "AsyncLock")


class Wish(Protocol):
    """What is asked of `LockSpec` here. timeout is a duration, None for ever; over all of a run's comings back."""

    @property
    def timeout(self) -> Duration | None:
        """How long to wait."""
        ...

    @property
    def waiting(self) -> str:
        """Where to wait: "in_process" or "reschedule"."""
        ...


def acquire(lock: Lock, spec: Wish) -> Lease:
    """Give the lease, after waiting as the spec says.

    NotAcquired after its timeout; Prefect's Pause where the run has to leave its process; Prefect's Abort, and nothing
    is held, if the run was cancelled meanwhile.
    """
    began_at = time.monotonic()
    limit = _limit(spec)
    lock = _marked(lock)
    if spec.waiting == RESCHEDULE:
        states.check_can_come_back()
    lease: Lease | None = None
    shown: Showing | None = None
    try:
        lease = _at_once(lock) if limit != 0 else lock.acquire(0)
        if lease is not None:
            _draw(lease)
            return lease
        held = _look(lock)
        message = waiting_for(lock.key, held)
        telling.waiting(lock, held)
        if spec.waiting == RESCHEDULE:
            left = _left_of_all(limit)
            if left is None or left > 0:
                raise states.coming_back(message, due(held, time.time(), left))
            lease = lock.acquire(0)
            _draw(lease)
            return lease
        shown = Showing(message)
        lease = lock.acquire(_left(limit, began_at))
        shown.ask()
        _draw(lease)
        if not shown.is_wanted():
            raise _cancelled(lock.key)
    except BaseException as error:
        if lease is not None:
            _give_back(lease)
        elif not isinstance(error, Exception):
            _withdraw(lock)
        if shown is not None:
            shown.give_up()
        raise
    return lease


async def aacquire(lock: AsyncLock, spec: Wish) -> AsyncLease:
    """Give the lease, as `acquire` does, awaiting."""
    began_at = time.monotonic()
    limit = _limit(spec)
    lock = _marked(lock)
    if spec.waiting == RESCHEDULE:
        states.check_can_come_back()
    lease: AsyncLease | None = None
    shown: Showing | None = None
    try:
        lease = await _aat_once(lock) if limit != 0 else await lock.acquire(0)
        if lease is not None:
            await _adraw(lease)
            return lease
        held = await _alook(lock)
        message = waiting_for(lock.key, held)
        telling.waiting(lock, held)
        if spec.waiting == RESCHEDULE:
            left = await asyncio.to_thread(_left_of_all, limit)
            if left is None or left > 0:
                raise await asyncio.to_thread(states.coming_back, message, due(held, time.time(), left))
            lease = await lock.acquire(0)
            await _adraw(lease)
            return lease
        shown = Showing(message)
        lease = await lock.acquire(_left(limit, began_at))
        shown.ask()
        await _adraw(lease)
        if not await asyncio.to_thread(shown.is_wanted):
            raise _cancelled(lock.key)
    except BaseException as error:
        if lease is not None:
            await _agive_back(lease)
        elif not isinstance(error, Exception):
            await _awithdraw(lock)
        if shown is not None:
            await asyncio.to_thread(shown.give_up)
        raise
    return lease


def due(held: Holding | None, now: float, left: float | None = None) -> float:
    """Give the seconds until a run asks again.

    held: who holds the lock, None if nobody knows; now: seconds since the epoch; left: seconds until the run gives up,
    None for never.
    """
    after = UNKNOWN
    if held is not None and held.expected is not None and held.acquired_epoch is not None:
        until = held.acquired_epoch + held.expected - now
        # who is overdue may be done at any moment, or never
        after = until if until > 0 else UNKNOWN
    after = min(max(after, SOONEST), LATEST)
    if left is not None:
        after = min(after, left)
    return after * (1 + random.uniform(0, SPREAD))


def _limit(spec: Wish) -> float | None:
    return None if spec.timeout is None else seconds(spec.timeout, "timeout")


def _left(limit: float | None, began_at: float) -> float | None:
    return None if limit is None else max(0.0, limit - (time.monotonic() - began_at))


def _left_of_all(limit: float | None) -> float | None:
    """Give what is left of the time to wait, of which some may have gone by in earlier processes of this run."""
    since = None if limit is None else states.waiting_since()
    if limit is None or since is None:
        return limit
    return limit - (datetime.now(UTC) - since).total_seconds()


def _cancelled(key: str) -> BaseException:
    from prefect.exceptions import Abort

    abort: BaseException = Abort(f"the run was cancelled while it waited for {key!r}; the lock was given back")
    return abort


# --- asking the store -------------------------------------------------------------------------------------------------


def _at_once(lock: Lock) -> Lease | None:
    try:
        return lock.try_acquire()
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown) as error:
        logger().warning("%r was not taken at once: %s", lock.key, error)
        return None


async def _aat_once(lock: AsyncLock) -> AsyncLease | None:
    try:
        return await lock.try_acquire()
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown) as error:
        logger().warning("%r was not taken at once: %s", lock.key, error)
        return None


def _draw(lease: Lease) -> None:
    """Draw the fencing token, which the run's artifact and its events name; a store may have none."""
    try:
        lease.sequencer()
    except lockstead.StoreRefused:
        pass
    except StoreError as error:
        logger().warning("%r: no token could be drawn yet: %s", lease.key, error)


async def _adraw(lease: AsyncLease) -> None:
    try:
        await lease.sequencer()
    except lockstead.StoreRefused:
        pass
    except StoreError as error:
        logger().warning("%r: no token could be drawn yet: %s", lease.key, error)


def _look(lock: Lock) -> Holding | None:
    try:
        return lock.inspect()
    except StoreError:
        return None


async def _alook(lock: AsyncLock) -> Holding | None:
    try:
        return await lock.inspect()
    except StoreError:
        return None


# --- leaving nothing behind -------------------------------------------------------------------------------------------

# The core takes back, in the background, what an interrupted acquisition may have written. A process that was told to
# end may be gone before, and an interrupt may fall after the core gave the lease away and before anybody here had it.


def _give_back(lease: Lease) -> None:
    try:
        lease.release()
    except StoreError as error:
        logger().warning("%r was not given back, its ttl will free it: %s", lease.key, error)


async def _agive_back(lease: AsyncLease) -> None:
    try:
        await lease.release()
    except StoreError as error:
        logger().warning("%r was not given back, its ttl will free it: %s", lease.key, error)


def _withdraw(lock: Lock) -> None:
    try:
        orphan = _orphan(lock, lock.inspect())
        if orphan is not None:
            lock.release(orphan)
    except StoreError as error:
        logger().warning("%r: if it was granted as the run was ended, its ttl will free it: %s", lock.key, error)


async def _awithdraw(lock: AsyncLock) -> None:
    try:
        orphan = _orphan(lock, await lock.inspect())
        if orphan is not None:
            await lock.release(orphan)
    except StoreError as error:
        logger().warning("%r: if it was granted as the run was ended, its ttl will free it: %s", lock.key, error)


def _orphan(lock: Lock | AsyncLock, held: Holding | None) -> LeaseTicket | None:
    """Give the ticket of what this very wish was granted; None if it was granted nothing."""
    if held is None or held.ttl is None or held.labels.get(WISH) != lock.settings.labels[WISH]:
        return None
    return LeaseTicket(lock._open_now().store.url, held.key, held.holder, held.incarnation, held.ttl)


def _marked(lock: L) -> L:
    """Give the lock with a label by which this wish is known from all others, also of this process."""
    labels = {**lock.settings.labels, WISH: os.urandom(8).hex()}
    marked = copy.copy(lock)
    marked._settings = dataclasses.replace(lock.settings, labels=labels)
    return marked


__all__ = ["NotAcquired", "Wish", "aacquire", "acquire", "due"]
