"""Releasing, breaking, sweeping and inspecting a lease.

Every removal expects the incarnation (and, where it matters, the revision): a late delete must never hit the next
holder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from hashlib import sha256
from math import inf
from typing import Any, Final

from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.protocol import expiry
from lockstead.protocol.commands import (
    Absent,
    Create,
    Extend,
    Pause,
    Read,
    Remove,
    Removed,
    Replace,
    Reply,
    Script,
    Snapshot,
    ask,
)
from lockstead.protocol.context import LeaseId, ProtocolContext, is_over, loss
from lockstead.protocol.election import left_to
from lockstead.protocol.groups import end_if_wanted
from lockstead.protocol.lifecycle import LeaseState
from lockstead.protocol.members import NOT_WANTED, drain, repeated, take_back
from lockstead.protocol.previous_lease import ENDED, ENDED_LIVES, UNUSED, is_written, previous_of, unused
from lockstead.protocol.record import (
    BY_BYTES_MAX,
    Record,
    Revocation,
    encode,
    is_ours,
    number,
    revocation_text,
    shortened,
    wanted_text,
)
from lockstead.protocol.renew import effective_ttl
from lockstead.values import SHARED, Name, Space

AUDITED_BYTES_MAX: Final = 4000
"""Maximum bytes of the reason in an audit entry."""

LOOKS_MAX: Final = 16
"""Reads of a record that changes each time before it can be revoked."""


class Outcome(Enum):
    """How a release ended."""

    REMOVED = "we removed it"
    ENDED = "it is free, and its record informs the next holder of the outcome"
    NOT_OURS = "it was not ours any more, or already gone"
    LEFT = "left to expire: a member is still live, or closing was never acknowledged"

    @property
    def is_free(self) -> bool:
        """Return whether the release freed the key."""
        return self in (Outcome.REMOVED, Outcome.ENDED)


def release(
    lease: LeaseId,
    context: ProtocolContext,
    *,
    shared: bool,
    bound_at: float,
    salt: str,
    by_ticket: bool = False,
    leaves: Mapping[str, str] | None = None,
    deadline: float = inf,
) -> Script[Outcome]:
    """Release a lease as its owner. bound_at (boot clock) bounds the wait for members.

    shared: a ticket was made, so others may work under it: close first, and wait until none is live. by_ticket: the
    lease is known only from a ticket, so the record is read before anything is written. leaves: fields that the record
    keeps for the next holder, which may have to repair something; None removes it. It is also kept if the lease was
    shared and revoked. deadline: until when no other client can have taken it over (boot clock). Raises
    StoreUnavailable or OutcomeUnknown if the store does not answer; the record then expires.
    """
    if not shared:
        return remove(lease, context, ours_until=deadline) if leaves is None else end(lease, context, leaves)
    return _after_members(lease, context, bound_at=bound_at, salt=salt, by_ticket=by_ticket, leaves=leaves)


def _after_members(
    lease: LeaseId,
    context: ProtocolContext,
    *,
    bound_at: float,
    salt: str,
    by_ticket: bool,
    leaves: Mapping[str, str] | None,
) -> Script[Outcome]:
    over = (yield from _look_first(lease, context, bound_at)) if by_ticket else None
    if over is not None:
        return over
    closed = yield from _close(lease, context, bound_at)
    if isinstance(closed, Outcome):
        return closed
    if not (yield from drain(lease, context, bound_at=bound_at, salt=salt)):
        return Outcome.LEFT
    return (yield from (_remove_closed(lease, closed, context) if leaves is None else end(lease, context, leaves)))


def _remove_closed(lease: LeaseId, closed: Reply[Any], context: ProtocolContext) -> Script[Outcome]:
    """Remove the record as it was closed, after its members have left; mark it as ended if it was revoked before.

    An owner that did not notice its revocation completed its work, but cannot know whether a member stopped before its
    work was done. A later revocation stops no member.
    """
    record = context.decode(lease.name, closed.answer)
    if record.revoked is not None:
        return (yield from end(lease, context))
    ours_until = context.deadline_by(closed, effective_ttl(lease, record), record.lock_delay)
    if (yield from take_back(lease, context, closed.answer.revision, ours_until=ours_until)):
        return Outcome.REMOVED
    latest = yield from ask(Read(lease.name))
    match loss(lease, latest.answer, context):
        case None:
            return (yield from remove(lease, context, ours_until=ours_until))
        case LossReason.REVOKED:
            return (yield from end(lease, context))
        case _:
            return Outcome.NOT_OURS


def give_back(lease_state: LeaseState, context: ProtocolContext, *, bound_at: float) -> Script[Outcome]:
    """Release this process's part of a lease: of a member only its registration, of an owner the lease.

    The lease must no longer be in use. After a loss an owner frees only a lease that was revoked or unreachable,
    without a lock-delay, and only before its own deadline.
    """
    lease = lease_state.lease
    leaving = release(
        lease,
        context,
        shared=lease_state.shared,
        bound_at=bound_at,
        salt=lease.holder,
        leaves=_leaves(lease_state, context),
        deadline=lease_state.deadline,
    )
    if lease_state.registration is None:
        return leaving
    own, until = lease_state.registration, lease_state.registration_deadline
    if lease_state.mode == SHARED:
        return left_group(own, lease, context, ours_until=until)
    return _withdrawn(own, leaving if lease_state.is_owner else None, context, ours_until=until)


def left_group(
    registration: LeaseId, group: LeaseId, context: ProtocolContext, *, ours_until: float = inf
) -> Script[Outcome]:
    """Remove a reader's registration; the last reader also ends the group, if a writer waits for it."""
    withdrawn = yield from take_back(registration, context, ours_until=ours_until)
    with suppress(StoreUnavailable, OutcomeUnknown, StoreRefused):  # then the writer looks at the list by itself
        yield from end_if_wanted(group, context)
    return Outcome.REMOVED if withdrawn else Outcome.NOT_OURS


def _leaves(lease_state: LeaseState, context: ProtocolContext) -> Mapping[str, str] | None:
    """Return the fields to write into the record at the release; None if it is removed."""
    if lease_state.unused:
        # the next holder learns of the lease before this one
        return (
            UNUSED
            if lease_state.previous_lease is not None and is_written(lease_state.previous_lease, context)
            else None
        )
    if lease_state.is_clean:
        return None if lease_state.heir is None else left_to(lease_state.heir)
    return ENDED


def _withdrawn(
    registration: LeaseId, leaving: Script[Outcome] | None, context: ProtocolContext, *, ours_until: float
) -> Script[Outcome]:
    """Remove a registration, and then run the owner's release, if any."""
    try:
        withdrawn = yield from take_back(registration, context, ours_until=ours_until)
    except (StoreUnavailable, OutcomeUnknown):
        withdrawn = False  # it expires, and a drain waits for that
    if leaving is not None:
        return (yield from leaving)
    return Outcome.REMOVED if withdrawn else Outcome.NOT_OURS


def may_remove_after_loss(lease_state: LeaseState, now: float) -> bool:
    """Return whether a lost lease may still be removed by its former holder, after the task code has ended."""
    if not lease_state.is_owner or lease_state.mode == SHARED:
        return lease_state.reason is not LossReason.FORKED
    if lease_state.reason is LossReason.ENDED:
        return now < lease_state.deadline
    return (
        lease_state.reason in (LossReason.REVOKED, LossReason.UNREACHABLE)
        and now < lease_state.deadline
        and lease_state.settings.lock_delay == 0
    )


def _look_first(lease: LeaseId, context: ProtocolContext, bound_at: float) -> Script[Outcome | None]:
    """Read whether the lease of a ticket exists, revoked or not; None if it does. Otherwise nothing may be written.

    In a store whose incarnations restart from 1, a ticket of another store could close another holder's lease.
    """
    longest = context.settings.backoff_min
    while True:
        try:
            reply = yield from ask(Read(lease.name))
        except (StoreUnavailable, OutcomeUnknown):
            pause = yield from ask(Pause(lease.name, context.settings.backoff_min, longest, wake_on_change=False))
            if pause.received_at >= bound_at:
                return Outcome.LEFT
            longest = min(context.settings.backoff_max, longest * 2)
        else:
            seen = reply.answer
            # an ended lease is not ours, even if it was broken: a second release must not report a removal
            if isinstance(seen, Absent) or context.decode(lease.name, seen).ended:
                return Outcome.NOT_OURS
            return None if loss(lease, seen, context) in (None, LossReason.REVOKED) else Outcome.NOT_OURS


def _close(lease: LeaseId, context: ProtocolContext, bound_at: float) -> Script[Outcome | Reply[Any]]:
    """Mark the lease as closing and return the answer that confirms it; members are listed only after that."""
    longest, turn = context.settings.backoff_min, 0
    while True:
        try:
            reply = yield from ask(Extend(lease.name, {"closing": "1"}, lease.incarnation))
            if not isinstance(reply.answer, Snapshot):
                return Outcome.NOT_OURS
            record = context.decode(lease.name, reply.answer)
            if record.holder != lease.holder:
                return Outcome.NOT_OURS
            if record.closing:
                return reply
        except (StoreUnavailable, OutcomeUnknown):
            pass
        at_least = context.retry_pause(lease.name, turn).at_least
        pause = yield from ask(Pause(lease.name, at_least, max(at_least, longest), wake_on_change=False))
        turn += 1
        if pause.received_at >= bound_at:
            return Outcome.LEFT
        longest = min(context.settings.backoff_max, longest * 2)


def remove(lease: LeaseId, context: ProtocolContext, *, ours_until: float = inf) -> Script[Outcome]:
    """Remove exactly this incarnation, with a bounded number of retries after an unknown outcome."""
    return Outcome.REMOVED if (yield from take_back(lease, context, ours_until=ours_until)) else Outcome.NOT_OURS


def end(lease: LeaseId, context: ProtocolContext, fields: Mapping[str, str] = ENDED) -> Script[Outcome]:
    """Mark the record of exactly this incarnation as ended; retried like a removal."""
    reply, _ = yield from repeated(Extend(lease.name, fields, lease.incarnation, lifetime=ENDED_LIVES), context)
    return Outcome.ENDED if isinstance(reply.answer, Snapshot) else Outcome.NOT_OURS


@frozen
class UsedLease:
    """The lease of a swept acquisition, if one was granted and used.

    is_shared: it may have live members. is_clean: it was not lost.
    """

    incarnation: str
    is_shared: bool = False
    is_clean: bool = True


LOOKS: Final = (1, 2, 4, 8, 16)
"""The times of later sweeps of an abandoned acquisition: multiples of the request limit, after the first sweep."""


def sweep_pauses(request_timeout: float) -> Iterator[float]:
    """Yield the pause before each sweep of an abandoned acquisition."""
    last = 0.0
    for at in (0.0, *(limits * request_timeout for limits in LOOKS)):
        yield at - last
        last = at


def sweep(name: Name, holder: str, context: ProtocolContext, used: UsedLease | None = None) -> Script[bool]:
    """Remove the record that an ended acquisition may have written; True if there was one.

    used: its lease, if it was used. A shared one may still have live members and is left alone; a lost one is marked as
    ended for the next holder. Its mark on a group of readers is removed. Any other record with this holder was written
    late and never used: it is removed, and the next holder gets the lease before it as the previous lease.
    """
    reply = yield from ask(Read(name))
    if isinstance(reply.answer, Absent):
        return False
    record, incarnation, revision = context.decode(name, reply.answer), reply.answer.incarnation, reply.answer.revision
    if record.is_group and record.wanted_by == wanted_text(holder):
        yield Extend(name, NOT_WANTED, incarnation, revision)
    if record.holder != holder or record.is_group or record.unused:
        return False
    command: Extend | Remove
    if used is None or incarnation != used.incarnation:
        command = unused(name, incarnation, previous_of(record, context), context)
    elif used.is_shared:
        return False
    else:
        # by the revision: a downgrade that lands in between makes it a group, which readers join
        command = (
            Remove(name, incarnation, revision)
            if used.is_clean
            else Extend(name, ENDED, incarnation, revision, lifetime=ENDED_LIVES)
        )
    done: Reply[Any] = yield command
    return isinstance(done.answer, Snapshot | Removed)


@frozen
class RecordStatus:
    """The record under a key. age: seconds since its last change by the store's clock, None if unknown."""

    record: Record
    seen: Snapshot
    age: float | None
    is_expired: bool


def read_status(name: Name, context: ProtocolContext) -> Script[RecordStatus | None]:
    """Return the record under a key, None if there is none. Writes nothing, so `is_expired` is a hint."""
    reply = yield from ask(Read(name))
    if isinstance(reply.answer, Absent):
        return None
    context.observe(name, reply, reply.answer)
    return status(name, reply.answer, context)


def status(name: Name, seen: Snapshot, context: ProtocolContext) -> RecordStatus:
    """Return the status of a record from a snapshot."""
    record = context.decode(name, seen)
    if seen.store_now is None or seen.updated_at is None or not context.shows_age(name, seen):
        return RecordStatus(record, seen, None, seen.dead)
    age = max(0.0, seen.store_now - seen.updated_at)  # two clocks of one store may err by their granularity
    return RecordStatus(
        record, seen, age, seen.dead or _looks_expired(record, seen.updated_at, seen.store_now, context)
    )


def _looks_expired(record: Record, updated_at: float, store_now: float, context: ProtocolContext) -> bool:
    ttl = record.ttl
    if ttl is None:
        if record.expires_at is not None:
            return expiry.foreign_expired(store_now, record.expires_at)
        ttl = context.settings.foreign_ttl
        if ttl is None:
            return False
    return expiry.expired_by_store_clock(
        store_now, updated_at, ttl, record.lock_delay, context.settings.drift, context.traits.clock_skew_max
    )


@frozen
class Broken:
    """The result of a break; neither revoked nor removed: it was revoked before, and nothing was written.

    max_overlap: seconds from the answer for which the old holder may still consider itself the holder; 0 if the lease
    had expired, None if unknown. record: the record of the broken lease.
    """

    record: Record
    seen: Snapshot
    revoked: bool
    removed: bool
    max_overlap: float | None


def break_lease(
    name: Name,
    revoked: Revocation,
    context: ProtocolContext,
    *,
    now: bool,
    incarnation: str | None,
    salt: str,
    judges: Callable[[Record], bool] | None = None,
) -> Script[Broken | None]:
    """Break the lease under a key as an operator; None if there is none (or no longer that incarnation).

    Default: end an expired lease, as a contender judges it; revoke any other, so that the holder's next renewal fails.
    There is no overlap. A lease that is revoked already is left alone: each write would extend it by another ttl.
    now: revoke and end it at once, so that the key is free and the next holder gets the outcome; with a lock-delay,
    replace it by a tombstone for that time, with one Replace (a Remove and a Create would leave a gap). A damaged or
    foreign record can only be removed; a newer version is refused. judges: whether to break the lease as its record is
    now; a revocation expects the record that was judged.
    """
    for _ in range(LOOKS_MAX):
        reply = yield from ask(Read(name))
        seen = reply.answer
        if isinstance(seen, Absent) or (incarnation is not None and seen.incarnation != incarnation):
            return None
        # whatever follows expects this incarnation
        incarnation = seen.incarnation
        try:
            record = context.decode(name, seen)
        except StoreRefused:
            if not now or not is_ours(seen.fields):
                raise
            # unreadable, so no outcome can be kept: it can only be removed
            record = Record(holder=seen.fields.get("identity", ""), ttl=None)
        if record.ended or (judges is not None and not judges(record)):
            return None
        if now and record.lock_delay > 0:
            return (yield from _replace_by_tombstone(name, seen, record, revoked, context, salt))
        if now:
            is_gone = yield from _end_record(name, seen, record, revoked)
            return Broken(record, seen, False, True, _overlap(record, context)) if is_gone else None
        broken = yield from _revoked_or_ended(name, reply, record, revoked, context, salt)
        if broken is not None:
            return broken
    raise StoreUnavailable(f"the record of {name.key!r} changed with each of {LOOKS_MAX} looks; try again")


def _revoked_or_ended(
    name: Name, reply: Reply[Any], record: Record, revoked: Revocation, context: ProtocolContext, salt: str
) -> Script[Broken | None]:
    """Revoke a live lease once, or end an expired one; None if the record changed since it was read.

    Each write expects exactly the state that was judged: of two who revoke, one does.
    """
    seen: Snapshot = reply.answer
    if (yield from is_over(name, record, reply, seen, salt, context)):
        is_gone = yield from _end_record(name, seen, record, revoked, seen.revision)
        return Broken(record, seen, False, True, 0.0) if is_gone else None
    if record.revoked is not None:
        return Broken(record, seen, False, False, _overlap(record, context))
    fields = {"revoked": revocation_text(revoked)}
    done = yield from ask(Extend(name, fields, seen.incarnation, seen.revision))
    return Broken(record, seen, True, False, _overlap(record, context)) if isinstance(done.answer, Snapshot) else None


def _end_record(
    name: Name, seen: Snapshot, record: Record, revoked: Revocation, revision: str | None = None
) -> Script[bool]:
    """End the incarnation that was read (in that revision, if given); remove a foreign record."""
    gone: Reply[Any]
    if not record.is_foreign:
        fields = {"revoked": revocation_text(revoked), **ENDED}
        gone = yield from ask(Extend(name, fields, seen.incarnation, revision, lifetime=ENDED_LIVES))
    else:
        gone = yield from ask(Remove(name, seen.incarnation, revision))
    return isinstance(gone.answer, Snapshot | Removed)


def _replace_by_tombstone(
    name: Name, seen: Snapshot, record: Record, revoked: Revocation, context: ProtocolContext, salt: str
) -> Script[Broken | None]:
    tomb = encode(Record(f"tombstone/{salt}", record.lock_delay, owner=record.owner, revoked=revoked, tombstone=True))
    latest: Snapshot = seen
    while True:
        min_retention = context.min_retention(record.lock_delay)
        reply = yield from ask(
            Replace(
                name,
                tomb,
                latest.incarnation,
                latest.revision,
                lifetime=record.lock_delay,
                min_retention=min_retention,
            )
        )
        if isinstance(reply.answer, Snapshot):
            return Broken(record, seen, False, True, _overlap(record, context))
        # the revision may change meanwhile; the operator means the incarnation
        reread = yield from ask(Read(name))
        if isinstance(reread.answer, Absent) or reread.answer.incarnation != seen.incarnation:
            return None
        latest = reread.answer


def _overlap(record: Record, context: ProtocolContext) -> float | None:
    if record.ttl is None:
        return None
    return expiry.overlap_until(0.0, record.ttl, context.settings.drift, context.traits.clock_skew_max)


def audit(name: Name, part: str, entry: dict[str, str]) -> Script[bool]:
    """Write an audit entry: append-only, in the same store."""
    reply = yield from ask(Create(Name(name.key, Space.AUDIT, part), {"v": "1", **entry}))
    return isinstance(reply.answer, Snapshot)


def audit_entry(
    broken: Broken, revoked: Revocation, wall_now: float, mode: str, what: str = ""
) -> tuple[str, dict[str, str]]:
    """Return the name and the fields of the audit entry of a break: who, when, why, whose lock, which token.

    The name is the same for everybody who writes the entry of this break, so that only one of them does. mode: of the
    lease, as in `LockInfo`. what: was done, if it was no break.
    """
    what = what or ("removed" if broken.removed else "revoked")
    entry = {
        "at": number(wall_now),
        "by": shortened(revoked.by, BY_BYTES_MAX),
        "reason": shortened(revoked.reason, AUDITED_BYTES_MAX),
        "what": what,
        "holder": broken.record.holder,
        "owner": broken.record.owner,
        "incarnation": broken.seen.incarnation,
        "mode": mode,
    }
    token = broken.record.token if broken.record.token is not None else broken.seen.token
    if token is not None:
        entry["token"] = str(token)
    # only our own holders differ from lease to lease
    at = wall_now if broken.record.is_foreign else broken.record.acquired_at or 0.0
    told = "\n".join((broken.record.holder, broken.seen.incarnation, number(at), mode, what))
    return f"{int(at * 1000):014d}-{sha256(told.encode()).hexdigest()[:32]}", entry
