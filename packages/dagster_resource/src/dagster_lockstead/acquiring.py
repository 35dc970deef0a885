"""Acquiring the lease of a step: at once, by attaching to its run's lease, or by waiting.

An unclean end of the previous lease is logged or refuses the body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dagster_lockstead import names
from dagster_lockstead.errors import InvalidLockConfig, PreviousLeaseUnclean
from dagster_lockstead.frames import bears_interrupts
from lockstead import nesting
from lockstead.values import EXCLUSIVE, SHARED
from lockstead.wrapping import aio_acquiring
from lockstead.wrapping.acquiring import give_back, look, try_at_once, unclean_before
from lockstead.wrapping.locks import leases_of, ticket_of
from lockstead.wrapping.messages import may_need_repair, repair_first
from lockstead.wrapping.permits import PermitLock

if TYPE_CHECKING:
    from dagster_lockstead.reporting import Reporter
    from dagster_lockstead.spec import LockSpec
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo
    from lockstead.unclean import Unclean

LOG: Final = logging.getLogger("dagster_lockstead")


@bears_interrupts
def acquire(
    lock: Lock, timeout: float | None, step: Any, reporter: Reporter, *, other_lock: str | None = None
) -> Lease:
    """Return the lease; NotAcquired after `timeout` seconds, forever by default.

    other_lock: names another lock that is already held; the wait is then logged as a warning.
    """
    # a permit that is free must not be taken beside the one that the run holds
    seen = look(lock, LOG) if isinstance(lock, PermitLock) else None
    lease = _of_run(lock, seen, step) or try_at_once(lock, LOG)
    if lease is not None:
        return lease
    seen = look(lock, LOG)
    lease = _of_run(lock, seen, step)
    if lease is not None:
        return lease
    reporter.waiting(lock.key, seen)
    if other_lock is not None:
        reporter.warn(nesting.warning(lock.key, other_lock, timeout))
    return lock.acquire(timeout)


def _of_run(lock: Lock, seen: LockInfo | None, step: Any) -> Lease | None:
    """Attach to the lease that the step's run holds; None if it holds none. seen: from `look`."""
    for one in leases_of(seen):
        if seen is not None and one.owner == names.run_owner(step.run_id) and one.ttl is not None:
            refuse_upgrade(lock, seen.mode)
            return lock.attach(ticket_of(lock, seen, one))
    return None


def refuse_upgrade(lock: Lock | AsyncLock, mode: str) -> None:
    """Raise InvalidLockConfig if code under a lease of this mode asks for the same lock exclusively."""
    if mode == SHARED and lock.settings.mode == EXCLUSIVE:
        raise InvalidLockConfig(
            f"{lock.key!r} is held here with mode='shared', and asked for exclusively: it would wait for itself; "
            "use one mode in both places"
        )


def judged(lock: Lock, lease: Lease, spec: LockSpec, reporter: Reporter | None) -> Lease:
    """Log an unclean end of the previous lease, or raise PreviousLeaseUnclean if the body must not run.

    The caller then releases the lease as unused, so that the next holder sees the same previous lease.
    """
    _judge(unclean_before(lock, lease, LOG), spec, LOG.warning if reporter is None else reporter.warn)
    return lease


async def ajudged(lock: AsyncLock, lease: AsyncLease, spec: LockSpec) -> AsyncLease:
    """Check the previous lease, awaiting; as `judged`."""
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
    warn(may_need_repair(found))


@contextmanager
def unused_until_begun(lease: Lease) -> Iterator[Callable[[], None]]:
    """Release the lease as unused if the block raises before it has called the yielded function.

    The next holder then sees the same previous lease.
    """
    begun: list[bool] = []
    try:
        yield lambda: begun.append(True)
    except BaseException:
        if not begun:
            give_back(lease, LOG)
        raise
