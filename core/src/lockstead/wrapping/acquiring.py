# Generated from aio_acquiring.py by `make blocking`: edit that file instead.
"""Acquiring a lock for a run of an orchestrator: try, inspect the holder, check the previous lease, clean up.

Store errors that must not end a run are written to the log that the caller passes.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.unclean import Unclean, last, origin
from lockstead.wrapping.locks import labelled, leases_of, take_back, ticket_of

if TYPE_CHECKING:
    from lockstead.lease import Lease
    from lockstead.lock import Lock
    from lockstead.views import LockInfo

    Log: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]

ACQUISITION: Final = "acquisition"
"""The label that distinguishes one acquisition from all others, including those of the same owner."""


def marked(lock: Lock) -> Lock:
    """Return a copy of a lock with a new label by which `take_back_granted` recognizes its grant."""
    return labelled(lock, {ACQUISITION: secrets.token_hex(8)})


def try_at_once(lock: Lock, log: Log) -> Lease | None:
    """Try once; return None if the lock is held or the store does not answer, so that the caller waits."""
    try:
        return lock.try_acquire()
    except (StoreUnavailable, OutcomeUnknown) as error:
        log.warning("%r was not acquired at once: %s", lock.key, error)
        return None


def look(lock: Lock, log: Log) -> LockInfo | None:
    """Return a lock's holder; None if the lock is free, or if reading it fails for any reason."""
    try:
        return lock.inspect()
    except Exception as error:  # noqa: BLE001 - the acquisition itself reports errors of the store
        log.info("could not see who holds %r: %s", lock.key, error)
        return None


def token_of(lease: Lease) -> int | None:
    """Draw and return the fencing token; None if the store has no tokens."""
    try:
        return (lease.sequencer()).token
    except StoreRefused:
        return None


def draw_token(lease: Lease, log: Log) -> None:
    """Draw the fencing token, so that `lease.token` is set; skipped if the store has no tokens or does not answer."""
    try:
        token_of(lease)
    except StoreError as error:
        log.warning("%r: no token could be drawn yet: %s", lease.key, error)


def unclean_before(lock: Lock, lease: Lease, log: Log, *, own: str | None = None) -> Unclean | None:
    """Return the holder that left a lock unclean before this lease; None if there is none, or its owner is `own`.

    Reads the history of broken leases if necessary; if that fails, returns the last holder.
    """
    found = last(lease.key, lease.previous_lease, own)
    if found is None:
        return None
    try:
        return origin(found, lease.previous_lease, lock.history())
    except Exception as error:  # noqa: BLE001 - an unreadable history must not cost us the lock that we hold
        log.warning("could not read who broke %r before: %s", lock.key, error)
        return found


def give_back(lease: Lease, log: Log, *, unused: bool = True) -> None:
    """Release a lease; a store error is logged.

    unused: no work was done under it, so the next holder gets the same previous lease as this one.
    """
    try:
        lease.release(unused=unused)
    except StoreError as error:
        _log_left(lease.key, error, log)


def take_back_granted(lock: Lock, log: Log) -> None:
    """Release, as unused, the lease that an interrupted acquisition of a `marked` lock was granted, if any.

    The core does that in the background, but a process that is being stopped may end before. Also, the interrupt may
    be raised after the core returned the lease and before the caller received it.
    """
    try:
        held = lock.inspect()
        for lease in leases_of(held):
            if lease.labels.get(ACQUISITION) != lock.settings.labels[ACQUISITION]:
                continue
            if lease is held or lease.slot is not None:
                take_back(lock, lease.holder, lease.slot)
            elif held is not None:
                lock.release(ticket_of(lock, held, lease))
    except StoreError as error:
        _log_left(lock.key, error, log)


def _log_left(key: str, error: StoreError, log: Log) -> None:
    log.warning("%r was not released; its ttl will free it: %s", key, error)
