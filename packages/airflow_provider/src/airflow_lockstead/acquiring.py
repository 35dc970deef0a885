"""How a task comes to its lease: by a trigger, or waiting in its own process; and what it does when told.

Shared by `AcquireLockOperator` and by a task that has a lock for itself. Must not know what is done under the lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import lockstead
from airflow_lockstead import compat, connection, errors, grants, unbegun
from airflow_lockstead.grants import Grant
from airflow_lockstead.names import Attempt
from airflow_lockstead.spec import LockSpec
from lockstead.values import LeaseTicket
from lockstead.wrapping.acquiring import look, token_of, unclean_before

if TYPE_CHECKING:
    from lockstead import LockInfo

INLINE_DEFAULT: Final = "dag.test() has no triggerer"

Log = logging.Logger


def warn_without_triggerer(log: Log, otherwise: str) -> None:
    """Say in one line, before a task defers, that it will stay so, if it can be seen that no triggerer runs."""
    if compat.triggerer_is_there() is False:
        log.warning("no triggerer runs: this task waits until one does (start `airflow triggerer`)%s", otherwise)


def deferral(
    spec: LockSpec, owner: str, me: Attempt, method_name: str, log: Log, *, hands_on: bool, otherwise: str = ""
) -> Exception:
    """Return what a task raises to wait without a worker slot; method_name is where it is resumed.

    owner: who asks for the lock; me: the task that waits; hands_on: whether it leaves the lease to other tasks when it
    has succeeded; otherwise: what could be done instead, for the log where no triggerer runs.
    """
    from airflow_lockstead.triggers import WaitTrigger, plain

    warn_without_triggerer(log, otherwise)
    now = time.time()
    limit = spec.timeout_seconds
    gives_up_at = None if limit is None else now + limit
    trigger = WaitTrigger(plain(spec), owner, now, gives_up_at, {**me.place, "hands_on": hands_on})
    deferred: Exception = compat.TaskDeferred(trigger=trigger, method_name=method_name)
    return deferred


def at_once(spec: LockSpec, owner: str, log: Log, me: Attempt | None = None) -> Grant | None:
    """Take the lock if it is free now; None if it is not, or the store does not answer: then the triggerer waits.

    me: the task that asks; if it has been marked meanwhile, the lock is given back, and it fails.

    A task that defers and is resumed within a moment may be failed by the executor, which takes it for lost, and one
    without retries ends so. Whoever need not wait does not defer; and is seconds earlier at its work.
    """
    lock = _asked(spec, owner)
    # what an earlier try of ours knew of the one before it
    earlier = look(lock, log) if spec.on_unclean == "fail" else None
    try:
        lease = lock.try_acquire(reclaim=True)
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown) as error:
        log.info("not taken at once: %s", error)
        return None
    if lease is None:
        return None
    return _handed_on(lock, lease, 0.0, owner, earlier, log, me)


def inline(spec: LockSpec, owner: str, log: Log, why: str = INLINE_DEFAULT, me: Attempt | None = None) -> Grant:
    """Wait for the lock in this process, and hand the lease on. NotAcquired of ours after the spec's timeout.

    me: as with `at_once`.
    """
    began_at = time.time()
    lock = _asked(spec, owner)
    held = look(lock, log)
    if held is not None and held.owner != owner:
        log.info("%s; it waits in this process, for %s", grants.waiting(lock.key, held), why)
    try:
        lease = lock.acquire(spec.timeout, reclaim=True)
    except lockstead.NotAcquired as error:
        raise errors.NotAcquired(str(error)) from error
    return _handed_on(lock, lease, time.time() - began_at, owner, held, log, me)


def _handed_on(
    lock: lockstead.Lock,
    lease: lockstead.Lease,
    waited: float,
    owner: str,
    earlier: LockInfo | None,
    log: Log,
    me: Attempt | None,
) -> Grant:
    """Detach a lease, and give what its ticket is; released, if that fails."""
    try:
        token, before = token_of(lease), unclean_before(lock, lease, log, own=owner)
        if me is not None:
            _refuse_if_ended(me, log)
        return grants.granted(lease.detach(), token, waited, grants.unclean_of(before, owner, earlier))
    except BaseException:
        with suppress(lockstead.StoreError):
            lease.release(unused=True)
        raise


def _refuse_if_ended(me: Attempt, log: Log) -> None:
    """Fail a task that was marked while it asked for its lock: Airflow takes nothing more from it, nobody its grant."""
    try:
        state = compat.state_now(**me.place)
    except Exception as error:  # noqa: BLE001 - whatever Airflow raises, a lock is not given up for it
        log.info("could not see how this task stands: %s", error)
        return
    if state in unbegun.ENDED:
        raise compat.AirflowFailException(f"lockstead: this task was marked {state} while it asked for its lock")


def _asked(spec: LockSpec, owner: str) -> lockstead.Lock:
    """Name the lock that is asked for; ValueError where its store could never tell what the spec wants to fail for."""
    lock = connection.lock(spec, owner)
    if spec.on_unclean == "fail":
        lock.require_unclean_detection()
    return lock


def told(event: Mapping[str, Any]) -> Grant:
    """Read what a trigger fired with. Raises what the task ends with where it is not a grant."""
    match event.get("state"):
        case grants.GRANTED:
            return Grant.read(event)
        case grants.NOT_ACQUIRED:
            raise errors.NotAcquired(event["message"])
        case grants.REFUSED:
            raise compat.AirflowFailException(f"lockstead: {event['message']}")
        case _:
            raise compat.AirflowException(f"lockstead: {event.get('message', event)}")


def is_still_held(spec: LockSpec, owner: str, grant: Grant, log: Log) -> bool:
    """Renew a lease that was granted a while ago; False if it has ended meanwhile, and another must be asked for."""
    try:
        left = connection.lock(spec, owner).renew(grant.ticket)
    except lockstead.LeaseLost as lost:
        log.warning("the lease was granted, and ended before a worker slot was free; asking again (%s)", lost)
        return False
    log.info("%s; it lives for %.0f s from now on", grant, left)
    return True


def judge(spec: LockSpec, owner: str, grant: Grant, log: Log) -> None:
    """Do what the spec says of a holder before us that did not end cleanly: warn, or fail.

    Before it fails the lock is given back as unclean, so that others are told, too. Its own retry would not be, but
    there is none; who clears the task has looked.
    """
    if grant.unclean is None:
        return
    if spec.on_unclean == "warn":
        log.warning("%s: what it left may need repair", grant.unclean)
        return
    lock, ticket = connection.lock(spec, owner), LeaseTicket.parse(grant.ticket)
    left = ""
    try:
        lock.break_lease(reason=grant.unclean, by=ticket.holder, now=True, incarnation=ticket.incarnation)
    except Exception as error:  # noqa: BLE001 - the task fails in any case, and says what for
        left = f"; the lock is left to expire ({error})"
    raise compat.AirflowFailException(
        f"lockstead: {grant.unclean}: repair what it left, then clear this task, or take the lock {grant.key!r} and "
        f"give it back once ('lockstead run LOCK -- true'); until then on_unclean='fail' refuses every other run{left}"
    )
