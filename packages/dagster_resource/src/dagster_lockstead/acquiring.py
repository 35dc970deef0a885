"""How a step comes to its lease: at once, as a member of its run's, or by waiting; and whether it may work.

Who is ended while it asks leaves nothing behind: a grant that came at that instant is given back. An unclean end of the
holder before is warned of, or refuses the body and stays as it is.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dagster_lockstead import holding_here, names
from dagster_lockstead.errors import PreviousLeaseUnclean
from dagster_lockstead.frames import bears_interrupts
from lockstead import LeaseTicket, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable, nesting, unclean
from lockstead.wrapping.locks import store_of, take_back

if TYPE_CHECKING:
    from dagster_lockstead.spec import LockSpec
    from dagster_lockstead.telling import Teller
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo


@bears_interrupts
def acquire(lock: Lock, timeout: float | None, step: Any, teller: Teller, *, beside: str | None = None) -> Lease:
    """Return the lease; NotAcquired after `timeout` seconds, forever by default.

    beside: what is held already, on another key, in words: the step's log is warned of the wait.
    """
    lease = at_once(lock)
    if lease is not None:
        return lease
    seen = look(lock)
    if seen is not None and seen.owner == names.run_owner(step.run_id) and seen.ttl is not None:
        return lock.attach(_ticket(lock, seen))
    teller.waiting(lock.key, seen)
    if beside is not None:
        teller.warn(nesting.warning(lock.key, beside, timeout))
    return lock.acquire(timeout)


def judged(lock: Lock, lease: Lease, spec: LockSpec, teller: Teller | None) -> Lease:
    """Warn of the holder before, or refuse the body, if it did not end cleanly; PreviousLeaseUnclean then.

    Whoever gives the lease back then says that nobody worked under it, so that the next one is told the same.
    """
    found = unclean.who(lock, lease)
    if found is None:
        return lease
    if spec.on_unclean == "warn":
        warn = _log().warning if teller is None else teller.warn
        warn(f"{found}: what it left may need repair")
        return lease
    raise _refusal(found)


async def ajudged(lock: AsyncLock, lease: AsyncLease, spec: LockSpec) -> AsyncLease:
    """Do as `judged` does, awaiting."""
    found = await unclean.awho(lock, lease)
    if found is None:
        return lease
    if spec.on_unclean == "warn":
        _log().warning("%s: what it left may need repair", found)
        return lease
    raise _refusal(found)


@contextmanager
def unused_until_begun(lease: Lease) -> Iterator[Callable[[], None]]:
    """Release the lease as unused if the block raises before it has called what it is given.

    Nobody has worked under it then, so the next holder has to be told of the same predecessor.
    """
    begun: list[bool] = []
    try:
        yield lambda: begun.append(True)
    except BaseException:
        if not begun:
            give_back(lease, unused=True)
        raise


def _refusal(found: unclean.Unclean) -> PreviousLeaseUnclean:
    return PreviousLeaseUnclean(
        f"{found}: repair what it left, then take the lock {found.key!r} and give it back once "
        "('lockstead run LOCK -- true'); until then on_unclean='fail' refuses every run",
        {names.KEY: found.key, names.PREDECESSOR: found.owner or "unknown", names.REASON: found.ending.value},
    )


def draw(lease: Lease) -> None:
    """Draw the fencing token, which the metadata names; a store may have none."""
    try:
        lease.sequencer()
    except StoreRefused:
        pass
    except StoreError as error:
        _log().warning("%r: no token could be drawn yet: %s", lease.key, error)


def give_back(lease: Lease, *, unused: bool) -> None:
    """Release what must not be held after all. unused: nobody has worked under it."""
    try:
        lease.release(unused=unused)
    except StoreError as error:
        _leave_to_ttl(lease.key, error)


@bears_interrupts
def at_once(lock: Lock) -> Lease | None:
    """Try once; None if somebody holds it, or if the store is silent for now."""
    try:
        return lock.try_acquire()
    except (StoreUnavailable, OutcomeUnknown) as error:
        _log().warning("%r was not taken at once: %s", lock.key, error)
        return None


@bears_interrupts
def look(lock: Lock) -> LockInfo | None:
    """Return who holds it, as far as that can be seen."""
    try:
        return lock.inspect()
    except StoreError:
        return None


def remove_member(lock: Lock) -> None:
    """Release what was granted to this very caller as it was ended.

    The core takes it back in the background, and a process that was told to end may be gone before. Nobody has worked
    under it, so the next holder is told of the same predecessor.
    """
    try:
        seen = lock.inspect()
        if seen is not None and seen.ttl is not None and _is_left_over(lock, seen):
            take_back(lock, seen.holder)
    except StoreError as error:
        _leave_to_ttl(lock.key, error)


def _is_left_over(lock: Lock, seen: LockInfo) -> bool:
    # an owner is not unique: a run that was resumed has the same, and so has another thread of the step
    is_here = seen.host == socket.gethostname() and seen.pid == os.getpid()
    return is_here and seen.owner == lock.settings.owner and not holding_here.is_kept(seen.holder)


def _ticket(lock: Lock, seen: LockInfo) -> LeaseTicket:
    return LeaseTicket(store_of(lock), seen.key, seen.holder, seen.incarnation, seen.ttl or 0.0)


def _leave_to_ttl(key: str, error: StoreError) -> None:
    _log().warning("%r was not given back, its ttl will free it: %s", key, error)


def _log() -> logging.Logger:
    return logging.getLogger("dagster_lockstead")
