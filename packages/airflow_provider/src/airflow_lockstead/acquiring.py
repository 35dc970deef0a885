"""Acquiring a lease for a task: through a trigger, or by waiting in the task's process; and handling the result.

Shared by `AcquireLockOperator` and by a task with a lock of its own. Must not know what is done under the lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import lockstead
from airflow_lockstead import compat, connection, errors, grants, unbegun
from airflow_lockstead.grants import Grant
from airflow_lockstead.names import Attempt
from airflow_lockstead.spec import LockSpec
from lockstead.values import SHARED, LeaseTicket
from lockstead.wrapping.acquiring import give_back, look, token_of, unclean_before
from lockstead.wrapping.locks import keeps_out
from lockstead.wrapping.messages import may_need_repair, waiting_for

if TYPE_CHECKING:
    from lockstead import LockInfo

INLINE_DEFAULT: Final = "dag.test() has no triggerer"

Log = logging.Logger


def warn_without_triggerer(log: Log, otherwise: str) -> None:
    """Log a warning before a task defers if no triggerer runs, since the task would stay deferred until one does."""
    if compat.triggerer_is_there() is False:
        log.warning("no triggerer runs: this task waits until one does (start `airflow triggerer`)%s", otherwise)


def deferral(
    spec: LockSpec, owner: str, me: Attempt, method_name: str, log: Log, *, hands_on: bool, otherwise: str = ""
) -> Exception:
    """Return the exception that a task raises to wait without a worker slot; it is resumed at `method_name`.

    owner: the lock's owner; me: the task that waits; hands_on: whether the task passes the lease on to other tasks when
    it succeeds; otherwise: an alternative, for the log message if no triggerer runs.
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
    """Acquire the lock if it is free now; None if it is not, or the store does not answer: then the triggerer waits.

    me: the task that acquires; if its state was set meanwhile (marked success or failed), the lock is released and the
    task fails.

    A task that defers and is resumed almost at once may be failed by the executor, which considers it lost; without
    retries that is final. So a task that need not wait does not defer, and also starts its work seconds earlier.
    """
    lock = spec.checked(connection.lock(spec, owner))
    # the record of an earlier try of this task may say that the lease before it ended unclean
    earlier = look(lock, log) if spec.on_unclean == "fail" else None
    try:
        lease = lock.try_acquire(reclaim=connection.reclaims(lock))
    except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown) as error:
        log.info("not acquired at once: %s", error)
        return None
    if lease is None:
        return None
    return _handed_on(lock, lease, 0.0, owner, earlier, log, me)


def inline(spec: LockSpec, owner: str, log: Log, why: str = INLINE_DEFAULT, me: Attempt | None = None) -> Grant:
    """Wait for the lock in this process, and detach the lease. Raises errors.NotAcquired after the spec's timeout.

    me: as in `at_once`.
    """
    began_at = time.time()
    lock = spec.checked(connection.lock(spec, owner))
    held = look(lock, log)
    if held is not None and held.owner != owner and keeps_out(lock, held):
        log.info("%s; waiting in this process, because %s", waiting_for(lock.key, held), why)
    try:
        lease = lock.acquire(spec.timeout, reclaim=connection.reclaims(lock))
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
    """Detach a lease and return its grant; if that fails, release it."""
    try:
        token, before = token_of(lease), unclean_before(lock, lease, log, own=owner)
        if me is not None:
            _refuse_if_ended(me, log)
        return grants.granted(lease.detach(), token, waited, grants.unclean_of(before, owner, earlier))
    except BaseException:
        give_back(lease, log)
        raise


def _refuse_if_ended(me: Attempt, log: Log) -> None:
    """Fail a task that was marked success or failed while it acquired its lock.

    Airflow accepts nothing more from such a task, so no other task would receive the grant.
    """
    try:
        state = compat.state_now(**me.place)
    except Exception as error:  # noqa: BLE001 - an error of Airflow must not make the task give up its lock
        log.info("could not read the state of this task: %s", error)
        return
    if state in unbegun.ENDED:
        raise compat.AirflowFailException(f"lockstead: this task was marked {state} while it was acquiring its lock")


def told(event: Mapping[str, Any]) -> Grant:
    """Return the grant of a trigger's event; for any other event, raise the exception with which the task ends."""
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
    """Renew a lease that was granted earlier; return False if it has ended, so that the lock must be acquired again."""
    try:
        left = connection.lock(spec, owner).renew(grant.ticket)
    except lockstead.LeaseLost as lost:
        log.warning("the granted lease ended before a worker slot was free; acquiring again (%s)", lost)
        return False
    log.info("%s; the lease lasts for %.0f s from now on", grant, left)
    return True


def judge(spec: LockSpec, owner: str, grant: Grant, log: Log) -> None:
    """Warn or fail, as the spec says, if the previous holder did not end cleanly.

    Before it fails it breaks its own lease, so that the lock stays unclean for others. The task's own retry would not
    see that, but there is no retry; a user who clears the task has seen the error.
    """
    if grant.unclean is None:
        return
    if spec.on_unclean == "warn":
        log.warning("%s", may_need_repair(grant.unclean))
        return
    lock, ticket = connection.lock(spec, owner), LeaseTicket.parse(grant.ticket)
    left = ""
    try:
        if ticket.mode == SHARED:
            lock.release(ticket)  # the group of readers still informs the next holder
        else:
            lock.break_lease(reason=grant.unclean, by=ticket.holder, now=True, incarnation=ticket.incarnation)
    except Exception as error:  # noqa: BLE001 - the task fails in any case, with the reason in its message
        left = f"; the lock is left to expire ({error})"
    raise compat.AirflowFailException(
        f"lockstead: {grant.unclean}: repair what it left, then clear this task, or acquire and release {grant.key!r} "
        f"once ('lockstead run LOCK -- true'); until then on_unclean='fail' refuses every other run{left}"
    )
