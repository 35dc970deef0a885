"""Running a task's body under a lock: get the ticket, attach, wait for upstream bodies, run, check the lease, leave.

`outcomes` is the table of results for each way to end; `watchdog` ends a running body; `compat` has Airflow's classes.
`wrap` decides which tasks are wrapped and how, and calls `run`, `resume` and `announce`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import lockstead
from airflow_lockstead import acquiring, compat, config, connection, errors, liveness, tickets
from airflow_lockstead.grants import Grant
from airflow_lockstead.names import Attempt
from airflow_lockstead.outcomes import Becomes, Kind, Leaving, becomes, leaving
from airflow_lockstead.spec import LockSpec, Section
from airflow_lockstead.watchdog import Limits, Watchdog
from lockstead.values import SHARED
from lockstead.wrapping.acquiring import token_of
from lockstead.wrapping.leaving import call_within

if TYPE_CHECKING:
    from lockstead import Lease, Lock, Sequencer

GRANTED: Final = "lockstead_granted"
"""The method name at which a task with a lock of its own is resumed once the lock is granted. `resume` handles it: the
task has no such method."""

TELLING: Final = 10.0
"""Maximum seconds to report a failure to Airflow before the process exits; a lock that the body holds may block it."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The context variable `lockstead` of a body and its templates.

    sequencer: the fencing token as the protected resource checks it; None if the store has no tokens. slot: the number
    of a permit; None for a lock.
    """

    key: str
    holder: str
    token: int | None
    sequencer: Sequencer | None
    slot: int | None = None

    @classmethod
    def of(cls, grant: Grant) -> InForce:
        """Return the context variable for a grant."""
        # of the lease's mode: a reader's sequencer must not admit a writer
        sequencer = None if grant.token is None else lockstead.Sequencer(grant.key, grant.token, grant.mode)
        return cls(grant.key, grant.holder, grant.token, sequencer, grant.slot)


@dataclass(frozen=True, slots=True)
class _Visit:
    """One execution of a body: the task, its task instance, and the lock with its templates rendered."""

    task: Any
    context: Any
    section: Section
    spec: LockSpec
    me: Attempt
    on_kill: Callable[[], object]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def acquirer(self) -> str:
        return self.me.acquirer(self.section.group_id or self.me.task_id)

    @property
    def lock(self) -> Lock:
        here = liveness.Process.here(self.id)
        label = None if here is None else here.label
        return connection.lock(self.spec, self.me.member, {} if label is None else {liveness.LABEL: label})


def announce(context: Any, section: Section) -> None:
    """Add `lockstead` to the context before the templates are rendered, if the lock was acquired already."""
    ti = context["ti"]
    grant = tickets.own_grant(ti) if section.single else tickets.grant_of(ti, section.acquire_id, mapped=section.mapped)
    if grant is not None:
        context["lockstead"] = InForce.of(grant)


def run(
    task: Any,
    context: Any,
    section: Section,
    call: Callable[[], Any],
    on_kill: Callable[[], object],
    *,
    granted: Mapping[str, Any] | None = None,
) -> Any:
    """Run a body under its lease and return its result; if the lease is lost, raise `errors.LeaseLost` instead.

    call runs the body; on_kill is the task's. granted: for a task with a lock of its own, the event of the trigger that
    waited for it; without it such a task acquires its lock if that is free, and otherwise defers.
    """
    with errors.refusing():
        spec = connection.rendered(task, context, section.spec)
        visit = _Visit(task, context, section, spec, Attempt.of(context["ti"]), on_kill)
        if section.single:
            grant = _own_grant(visit, granted)
        else:
            grant = _grant_of_the_section(visit)
        visit = _as_granted(visit, grant)
        with _given_back_if_it_fails(visit, grant):
            lease = _joined(visit, grant)
    return _work(visit, grant, lease, call)


def resume(
    task: Any,
    context: Any,
    section: Section,
    next_method: str,
    next_kwargs: Mapping[str, Any] | None,
    *,
    execute: Callable[[], Any],
    resume_execution: Callable[[], Any],
    on_kill: Callable[[], object],
) -> Any:
    """Resume a deferred task: its body, or, if it deferred to wait for its own lock, the start of the body."""
    if next_method == GRANTED:
        event = (next_kwargs or {}).get("event") or {}
        return run(task, context, section, execute, on_kill, granted=event)
    return run(task, context, section, resume_execution, on_kill)


# --- getting the lease ------------------------------------------------------------------------------------------------


def _grant_of_the_section(visit: _Visit) -> Grant:
    grant = tickets.grant_of(visit.context["ti"], visit.section.acquire_id, mapped=visit.section.mapped)
    if grant is None:
        raise compat.AirflowFailException(
            f"lockstead: {visit.section.acquire_id} has acquired nothing in this run: clear it together with this task"
        )
    return grant


def _as_granted(visit: _Visit, grant: Grant) -> _Visit:
    return replace(visit, spec=connection.as_granted(visit.spec, visit.section.spec, grant.ticket))


def _own_grant(visit: _Visit, granted: Mapping[str, Any] | None) -> Grant:
    """Return the grant of a task with a lock of its own; raises TaskDeferred if it has to wait."""
    ti, log = visit.context["ti"], visit.task.log
    if granted is None:
        known = tickets.own_grant(ti)
        if known is not None:
            return known
        if compat.runs_inline():
            grant = acquiring.inline(visit.spec, visit.acquirer, log, me=visit.me)
        else:
            taken = acquiring.at_once(visit.spec, visit.acquirer, log, visit.me)
            if taken is None:
                log.info("deferring: the triggerer waits for the lock, as %r", visit.acquirer)
                raise acquiring.deferral(visit.spec, visit.acquirer, visit.me, GRANTED, log, hands_on=False)
            grant = taken
    else:
        grant = acquiring.told(granted)
        visit = _as_granted(visit, grant)
        if not acquiring.is_still_held(visit.spec, visit.acquirer, grant, log):
            raise acquiring.deferral(visit.spec, visit.acquirer, visit.me, GRANTED, log, hands_on=False)
    acquiring.judge(visit.spec, visit.acquirer, grant, log)
    with _given_back_if_it_fails(visit, grant):
        tickets.note_own(ti, grant)
    log.info("%s", grant)
    return grant


@contextmanager
def _given_back_if_it_fails(visit: _Visit, grant: Grant) -> Iterator[None]:
    """Release the lock of a task with a lock of its own if its body cannot begin."""
    try:
        yield
    except errors.LeaseLost:
        raise
    except BaseException:
        if visit.section.single:
            _give_back(visit, grant)
        raise


def _joined(visit: _Visit, grant: Grant) -> Lease:
    """Become a member of the lease, and wait for the upstream bodies; if the lease is gone, act by `on_stale_lease`."""
    lock, log = visit.lock, visit.task.log
    try:
        lease = lock.attach(grant.ticket)
    except lockstead.LeaseLost as lost:
        if visit.spec.on_stale_lease == "reacquire":
            log.warning("%s; acquiring the lock again for this task alone, in its worker slot", lost)
            return _anew(visit, lock)
        raise errors.LeaseLost(
            grant.key,
            grant.holder,
            grant.token,
            lost.reason,
            f"it was gone before this task began ({lost}); clear the task that acquires it together with this one, "
            "or set on_stale_lease='reacquire'",
        ) from lost
    try:
        _wait_for_those_before(visit, lock, grant)
        lease.check()
    except lockstead.LeaseLost as lost:
        lease.release()
        raise errors.LeaseLost(grant.key, grant.holder, grant.token, lost.reason, f"before it began: {lost}") from lost
    except BaseException:
        lease.release()
        raise
    return lease


def _anew(visit: _Visit, lock: Lock) -> Lease:
    try:
        return lock.acquire(visit.spec.timeout)
    except lockstead.NotAcquired as error:
        raise errors.NotAcquired(str(error)) from error


def _wait_for_those_before(visit: _Visit, lock: Lock, grant: Grant) -> None:
    """Wait until no body of a direct upstream task or of an earlier try runs.

    A task that a user marks success or failed may still be running when the tasks after it begin.
    """
    is_before = visit.me.works_before(visit.section.upstream)
    there = sorted(one.owner for one in lock.members(grant.ticket) if is_before(one.owner))
    if not there:
        return
    visit.task.log.info("waiting for members that have not ended: %s", ", ".join(there))
    limit = liveness.member_wait_limit(grant.ticket)
    if not liveness.wait_for_members(lock, grant.ticket, owner_filter=is_before, limit=limit, log=visit.task.log):
        raise compat.AirflowException(
            f"lockstead: after {limit:.0f} s {', '.join(there)} still works under the lease of {grant.holder!r} on "
            f"{grant.key!r}: not starting beside it"
        )


# --- the body ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a body or the exception it raised, and the loss of its lease, if any."""

    kind: Kind
    result: Any
    raised: BaseException | None
    lost: lockstead.LeaseLost | None


def _work(visit: _Visit, grant: Grant, lease: Lease, call: Callable[[], Any]) -> Any:
    if not lease.is_member:
        # acquired again (on_stale_lease="reacquire"): this body does not work under the group's grant
        grant = Grant(grant.ticket, token_of(lease), lease.key, lease.holder)
    visit.context["lockstead"] = InForce.of(grant)
    outcome = _called(visit, grant, lease, call)
    if becomes(outcome.kind, is_held=outcome.lost is None) is Becomes.LEASE_LOST:
        lost = outcome.lost
        reason, detail = (None, "") if lost is None else (lost.reason, str(lost))
        told = f"{detail}; the body {outcome.kind.value}"
        raise errors.LeaseLost(grant.key, grant.holder, grant.token, reason, told) from (outcome.raised or lost)
    if leaving(outcome.kind, is_single=visit.section.single) is Leaving.GIVE_BACK and lease.is_member:
        _give_back(visit, grant)
    if outcome.raised is not None:
        raise outcome.raised
    return outcome.result


def _called(visit: _Visit, grant: Grant, lease: Lease, call: Callable[[], Any]) -> _Outcome:
    """Call the body under the guard, then leave the lease. The body's exception is returned, not raised."""
    result, raised, lost = None, None, None
    parent = None if compat.runs_inline() else os.getppid()
    watchdog = Watchdog(
        visit.id,
        say=visit.task.log.error,
        on_kill=visit.on_kill,
        parent=parent,
        limits=Limits(config.ABORT_TERMS.value, config.ABORT_GRACE.value),
        leave=lambda code: _leave(visit, grant, lease, code),
    )
    try:
        with lease, watchdog, _introducing(visit, grant, lease):
            lease.on_lost(lambda: watchdog.lost(_why(lease)))
            try:
                with _guard(lease):
                    result = call()
            except BaseException as error:  # noqa: BLE001 - the caller raises it again, unless the lease was lost
                raised = error
            lost = _loss(lease)
            if lost is not None:
                # the loss may have been found only now; processes that the body started must be ended too
                watchdog.lost(str(lost))
    except lockstead.LeaseLost as error:
        lost = lost or error
    return _Outcome(_kind(raised), result, raised, lost)


@contextmanager
def _introducing(visit: _Visit, grant: Grant, lease: Lease) -> Iterator[None]:
    """Renew the reader that made the ticket while a body works: later tasks join by it, even if a writer waits.

    The members of an exclusive lease renew it anyway.
    """
    if not lease.is_member or lease.mode != SHARED:
        yield
        return
    is_over = threading.Event()
    lock = connection.lock(visit.spec, visit.me.member)
    words = (lock, grant.ticket, is_over, visit.task.log)
    threading.Thread(target=_renew_until, args=words, name="lockstead-introducing", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _renew_until(lock: Lock, ticket: str, is_over: threading.Event, log: Any) -> None:
    every = lock.settings.for_ttl(lockstead.LeaseTicket.parse(ticket).ttl).renew_every
    while not is_over.wait(every):
        try:
            lock.renew(ticket)
        except lockstead.LeaseLost as lost:
            log.info("no other task can join by this ticket any more: %s", lost)
            return
        except lockstead.StoreError as error:
            log.info("the ticket was not renewed, trying again: %s", error)


def _leave(visit: _Visit, grant: Grant, lease: Lease, code: int) -> None:
    """Exit the process of a body that does not stop; if its lease was lost, first report a failure without retry.

    An exit code alone may lead to a retry, and an orphaned process has no supervisor to report to.
    """
    lost = _loss(lease)
    if lost is not None:
        error = errors.LeaseLost(
            grant.key, grant.holder, grant.token, lost.reason, f"{lost}; the body did not stop, so its process exits"
        )
        told: list[bool] = []

        def tell() -> None:
            visit.task.log.error("%s", error)
            told.append(compat.fail_for_good(visit.context["ti"], error))

        call_within(TELLING, tell, "lockstead-leave")
        code = 0 if True in told else code
    os._exit(code)


def _guard(lease: Lease) -> AbstractContextManager[object]:
    """Return a guard that interrupts the body when the lease is lost, but not during a request to the supervisor."""
    if threading.current_thread() is threading.main_thread():
        return lease.guard(mutex=compat.comms_mutex())
    return lease.guard()


def _loss(lease: Lease) -> lockstead.LeaseLost | None:
    return None if lease.is_held else lease.lost_error()


def _why(lease: Lease) -> str:
    found = _loss(lease)
    return "its lease is lost" if found is None else str(found)


def _kind(raised: BaseException | None) -> Kind:
    match raised:
        case None:
            return Kind.RETURNED
        case compat.TaskDeferred():
            return Kind.DEFERRED
        case compat.AirflowRescheduleException():
            return Kind.RESCHEDULED
        case compat.AirflowSkipException():
            return Kind.SKIPPED
        case lockstead.LeaseLost():
            return Kind.STOPPED
        case Exception():
            return Kind.RAISED
        case _:
            return Kind.ENDED


def _give_back(visit: _Visit, grant: Grant) -> None:
    """Release the lock of a task with a lock of its own.

    An error is only logged, since it must not fail finished work: the ttl frees the lock.
    """
    try:
        if not connection.lock(visit.spec, visit.me.member).release(grant.ticket):
            visit.task.log.warning("the lease of %r on %r had already ended", grant.holder, grant.key)
    except Exception as error:  # noqa: BLE001 - as above
        visit.task.log.warning("%r was not released, its ttl will free it: %s", grant.key, error)
