"""How a step comes to its lease: at once, as a member of its run's, or by waiting; and whether it may work.

An unclean end of the holder before is warned of, or refuses the body and stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dagster_lockstead import names
from dagster_lockstead.errors import PreviousLeaseUnclean
from dagster_lockstead.frames import bears_interrupts
from lockstead import LeaseTicket, nesting
from lockstead.wrapping import aio_acquiring
from lockstead.wrapping.acquiring import give_back, look, try_at_once, unclean_before
from lockstead.wrapping.locks import store_of
from lockstead.wrapping.messages import repair_first

if TYPE_CHECKING:
    from dagster_lockstead.spec import LockSpec
    from dagster_lockstead.telling import Teller
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo
    from lockstead.unclean import Unclean

LOG: Final = logging.getLogger("dagster_lockstead")


@bears_interrupts
def acquire(lock: Lock, timeout: float | None, step: Any, teller: Teller, *, beside: str | None = None) -> Lease:
    """Return the lease; NotAcquired after `timeout` seconds, forever by default.

    beside: what is held already, on another key, in words: the step's log is warned of the wait.
    """
    lease = try_at_once(lock, LOG)
    if lease is not None:
        return lease
    seen = look(lock, LOG)
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
    _judge(unclean_before(lock, lease, LOG), spec, LOG.warning if teller is None else teller.warn)
    return lease


async def ajudged(lock: AsyncLock, lease: AsyncLease, spec: LockSpec) -> AsyncLease:
    """Do as `judged` does, awaiting."""
    _judge(await aio_acquiring.unclean_before(lock, lease, LOG), spec, LOG.warning)
    return lease


def _judge(found: Unclean | None, spec: LockSpec, warn: Callable[[str], object]) -> None:
    if found is None:
        return
    if spec.on_unclean == "fail":
        raise PreviousLeaseUnclean(
            repair_first(found),
            {names.KEY: found.key, names.PREDECESSOR: found.owner or "unknown", names.REASON: found.ending.value},
        )
    warn(f"{found}: what it left may need repair")


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
            give_back(lease, LOG)
        raise


def _ticket(lock: Lock, seen: LockInfo) -> LeaseTicket:
    return LeaseTicket(store_of(lock), seen.key, seen.holder, seen.incarnation, seen.ttl or 0.0)
