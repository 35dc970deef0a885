# Generated from aio_acquiring.py by `make blocking`: edit that file instead.
"""Acquiring a lock for a run of an orchestrator: try it, see its holder, judge the lease before, leave nothing behind.

What may not end a run, a store that does not answer, is a line in the log that the caller passes.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.unclean import Unclean, last, origin
from lockstead.wrapping.locks import labelled, take_back

if TYPE_CHECKING:
    from lockstead.lease import Lease
    from lockstead.lock import Lock
    from lockstead.views import LockInfo

    Log: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]

ACQUISITION: Final = "acquisition"
"""The label that tells one acquisition from all others, also from those of the same owner."""


def marked(lock: Lock) -> Lock:
    """Return a copy of a lock whose grant `take_back_granted` recognizes."""
    return labelled(lock, {ACQUISITION: secrets.token_hex(8)})


def try_at_once(lock: Lock, log: Log) -> Lease | None:
    """Try once; None if the lock is held, or if the store does not answer: then the caller waits."""
    try:
        return lock.try_acquire()
    except (StoreUnavailable, OutcomeUnknown) as error:
        log.warning("%r was not acquired at once: %s", lock.key, error)
        return None


def look(lock: Lock, log: Log) -> LockInfo | None:
    """Return who holds a lock; None if it is free, or that cannot be seen, whatever is in the store."""
    try:
        return lock.inspect()
    except Exception as error:  # noqa: BLE001 - the acquisition itself raises what is wrong with the store
        log.info("could not see who holds %r: %s", lock.key, error)
        return None


def token_of(lease: Lease) -> int | None:
    """Draw the fencing token; None from a store that has none."""
    try:
        return (lease.sequencer()).token
    except StoreRefused:
        return None


def draw_token(lease: Lease, log: Log) -> None:
    """Draw the fencing token, if the store has one and answers, so that `lease.token` has it."""
    try:
        token_of(lease)
    except StoreError as error:
        log.warning("%r: no token could be drawn yet: %s", lease.key, error)


def unclean_before(lock: Lock, lease: Lease, log: Log, *, own: str | None = None) -> Unclean | None:
    """Return who left a lock unclean before this lease; None if nobody did, or it was `own`, an owner of ours.

    Asks the store which leases were broken, if it has to; if they cannot be read, it is the last holder.
    """
    found = last(lease.key, lease.previous_lease, own)
    if found is None:
        return None
    try:
        return origin(found, lease.previous_lease, lock.history())
    except Exception as error:  # noqa: BLE001 - the lock is ours, and what others wrote does not take it away
        log.warning("could not read who broke %r before: %s", lock.key, error)
        return found


def give_back(lease: Lease, log: Log, *, unused: bool = True) -> None:
    """Release a lease. unused: nobody worked under it, so the next holder is told of the same previous lease."""
    try:
        lease.release(unused=unused)
    except StoreError as error:
        _log_left(lease.key, error, log)


def take_back_granted(lock: Lock, log: Log) -> None:
    """Release, as unused, what an interrupted acquisition of a `marked` lock was granted, if it was granted.

    The core does that in the background, and a process that was told to end may be gone before; and an interrupt may
    fall after the core returned the lease, and before its caller had it.
    """
    try:
        held = lock.inspect()
        if held is not None and held.labels.get(ACQUISITION) == lock.settings.labels[ACQUISITION]:
            take_back(lock, held.holder)
    except StoreError as error:
        _log_left(lock.key, error, log)


def _log_left(key: str, error: StoreError, log: Log) -> None:
    log.warning("%r was not released, its ttl will free it: %s", key, error)
