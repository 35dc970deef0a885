"""How a run comes to its lease: at once, waiting in its process, or by leaving it and coming back.

Who waits in its process keeps its place in the store's queue and its worker's slot. Who leaves it (`waiting=
"reschedule"`) frees the slot, is in no queue, and comes back by the clock: when the holder expects to be done, else
after UNKNOWN seconds, each time at least SOONEST and at most LATEST seconds later, plus up to a fifth at random. Who is
cancelled or terminated while it asks leaves nothing behind: a grant that came at that instant is given back.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import lockstead
from lockstead import NotAcquired, nesting
from lockstead.errors import StoreError
from lockstead.values import Duration, seconds
from lockstead.wrapping.messages import waiting_for
from prefect_lockstead import states, telling
from prefect_lockstead.calling_off import TaskWait, ThreadWait, agive_back, awithdraw, give_back, marked, remove_member
from prefect_lockstead.showing import Showing
from prefect_lockstead.words import logger

if TYPE_CHECKING:
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo

RESCHEDULE: Final = "reschedule"

SOONEST: Final = 5.0
LATEST: Final = 300.0
UNKNOWN: Final = 15.0
"""Seconds until a run comes back: at least, at most, and where nobody knows when the lock will be free."""

SPREAD: Final = 0.2
"""So much later, at random, does a run come back: those that left together do not ask together."""


class Wish(Protocol):
    """What is asked of `LockSpec` here. timeout is a duration, None forever; over all of a run's comings back."""

    @property
    def timeout(self) -> Duration | None:
        """How long to wait."""
        ...

    @property
    def waiting(self) -> str:
        """Where to wait: "in_process" or "reschedule"."""
        ...


def acquire(lock: Lock, spec: Wish, beside: str | None = None) -> Lease:
    """Return the lease, after waiting as the spec says. beside: the key of a lock that is held already.

    NotAcquired after its timeout; Prefect's Pause where the run has to leave its process, or was suspended meanwhile;
    Prefect's Abort, and nothing is held, if the run was cancelled or ended.
    """
    began_at = time.monotonic()
    limit = _limit(spec)
    if spec.waiting == RESCHEDULE:
        states.check_can_come_back()
    while True:
        try:
            return _acquired(marked(lock), spec, limit, began_at, beside)
        except states.Stopped as stopped:
            states.leave(stopped, lock.key)


def _acquired(lock: Lock, spec: Wish, limit: float | None, began_at: float, beside: str | None) -> Lease:
    lease: Lease | None = None
    shown: Showing | None = None
    wait = ThreadWait()
    try:
        lease = _at_once(lock) if limit != 0 else lock.acquire(0)
        if lease is not None:
            _draw(lease)
            return lease
        held = _look(lock)
        message = _tell_waiting(lock, held, beside, limit)
        if spec.waiting == RESCHEDULE:
            left = _left_of_all(limit)
            if left is None or left > 0:
                raise states.coming_back(message, due(held, time.time(), left))
            lease = lock.acquire(0)
            _draw(lease)
            return lease
        with wait:
            shown = Showing(message, wait.call_off)
            lease = lock.acquire(_left(limit, began_at))
        shown.ask()
        _draw(lease)
        shown.raise_stopped()
    except BaseException as error:
        if lease is not None:
            give_back(lease)
        elif not isinstance(error, Exception):
            remove_member(lock)
        if shown is not None:
            shown.give_up()
            if wait.is_called_off and isinstance(error, KeyboardInterrupt):
                shown.raise_stopped()
        raise
    return lease


async def aacquire(lock: AsyncLock, spec: Wish, beside: str | None = None) -> AsyncLease:
    """Return the lease, as `acquire` does, awaiting."""
    began_at = time.monotonic()
    limit = _limit(spec)
    if spec.waiting == RESCHEDULE:
        states.check_can_come_back()
    while True:
        try:
            return await _aacquired(marked(lock), spec, limit, began_at, beside)
        except states.Stopped as stopped:
            await asyncio.to_thread(states.leave, stopped, lock.key)


async def _aacquired(
    lock: AsyncLock, spec: Wish, limit: float | None, began_at: float, beside: str | None
) -> AsyncLease:
    lease: AsyncLease | None = None
    shown: Showing | None = None
    wait = TaskWait()
    try:
        lease = await _aat_once(lock) if limit != 0 else await lock.acquire(0)
        if lease is not None:
            await _adraw(lease)
            return lease
        held = await _alook(lock)
        message = _tell_waiting(lock, held, beside, limit)
        if spec.waiting == RESCHEDULE:
            left = await asyncio.to_thread(_left_of_all, limit)
            if left is None or left > 0:
                raise await asyncio.to_thread(states.coming_back, message, due(held, time.time(), left))
            lease = await lock.acquire(0)
            await _adraw(lease)
            return lease
        async with wait:
            shown = Showing(message, wait.call_off)
            lease = await lock.acquire(_left(limit, began_at))
        shown.ask()
        await _adraw(lease)
        await asyncio.to_thread(shown.raise_stopped)
    except BaseException as error:
        if lease is not None:
            await agive_back(lease)
        elif not isinstance(error, Exception):
            await awithdraw(lock)
        if shown is not None:
            await asyncio.to_thread(shown.give_up)
            if wait.is_called_off and isinstance(error, asyncio.CancelledError):
                shown.raise_stopped()
        raise
    return lease


def _tell_waiting(lock: Lock | AsyncLock, held: LockInfo | None, beside: str | None, limit: float | None) -> str:
    """Tell that a wait begins; give it in words, for the run's state."""
    telling.waiting(lock, held)
    if beside is not None:
        logger().warning("%s", nesting.warning(lock.key, f"{beside!r} is held by this run", limit))
    return waiting_for(lock.key, held)


def due(held: LockInfo | None, now: float, left: float | None = None) -> float:
    """Return the seconds until a run asks again.

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
    """Return what is left of the time to wait, of which some may have gone by in earlier processes of this run."""
    since = None if limit is None else states.waiting_since()
    if limit is None or since is None:
        return limit
    return limit - (datetime.now(UTC) - since).total_seconds()


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


def _look(lock: Lock) -> LockInfo | None:
    try:
        return lock.inspect()
    except StoreError:
        return None


async def _alook(lock: AsyncLock) -> LockInfo | None:
    try:
        return await lock.inspect()
    except StoreError:
        return None


__all__ = ["NotAcquired", "Wish", "aacquire", "acquire", "due"]
