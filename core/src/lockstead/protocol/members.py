"""Members: several processes that work under one lease register, renew and withdraw; a release waits for them.

A member's registration is a small lease of its own under a reserved name that contains the incarnation. The order
is strict: the record is read only after the answer that confirms the registration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from math import inf
from typing import Any, Final

from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.protocol.commands import (
    Absent,
    Create,
    Extend,
    List,
    Listing,
    OutOfTime,
    Pause,
    Read,
    Remove,
    Removed,
    Reply,
    Script,
    Snapshot,
    ask,
)
from lockstead.protocol.context import Judge, LeaseId, ProtocolContext, token_of
from lockstead.protocol.previous_lease import NOBODY_BEFORE, previous_of
from lockstead.protocol.record import previous_lease_text
from lockstead.protocol.renew import BEING_RELEASED, Over, effective_ttl, over, renew
from lockstead.renewal import time_for_failures
from lockstead.values import EXCLUSIVE, SHARED, Name, PreviousLease, Space

REMOVALS_MAX: Final = 4
REGISTRATIONS_MAX: Final = 8
LATE_LOOKS_MAX: Final = 4
"""Reads of a drain after its bound, each of which found and removed a dead registration."""

JOINS_MAX: Final = 8

NOT_WANTED: Final = {"wanted": ""}
DOWNGRADED: Final = {"mode": SHARED, "before": previous_lease_text(NOBODY_BEFORE)}
"""Fields that make an exclusive lease a group. What came before that lease is its own matter, and done with."""

MEMBERS_MAX: Final = 10_000
"""Maximum number of registrations under one lease. Each is a process that renews; a larger number is refused."""


class Drain(Enum):
    """What a list of registrations shows."""

    EMPTY = "no member is registered"
    CHANGED = "some were removed: read the list again"
    LIVE = "a member is live, or nothing is known"


@frozen
class Introduction:
    """The registration of the reader that made a ticket: the nonce in its name, and its incarnation."""

    nonce: str
    incarnation: str


@frozen
class Attached:
    """A membership of this process. Both deadlines are instants of its boot clock; the earlier one counts.

    token, previous_lease: as the record showed them; a group's readers have one token.
    """

    lease: LeaseId
    registration: LeaseId
    registration_deadline: float
    record_deadline: float
    sent_at: float
    token: int | None = None
    previous_lease: PreviousLease | None = None
    mode: str = EXCLUSIVE


@frozen
class MemberRenewed:
    """A member's renewal. record_deadline is None if the lease is closing, so that it is not renewed."""

    registration_deadline: float
    record_deadline: float | None
    sent_at: float

    @property
    def deadline(self) -> float | None:
        """Return the earlier of both."""
        return None if self.record_deadline is None else min(self.registration_deadline, self.record_deadline)


def owner_of(holder: str) -> str:
    """Return a holder without its nonce."""
    return holder.rpartition("/")[0] or holder


def nonce_of(holder: str) -> str:
    """Return the last part of a holder, which is fresh for every acquisition."""
    return holder.rpartition("/")[2]


def member_name(lease: LeaseId, nonce: str) -> Name:
    """Return the reserved name of a member's registration."""
    return Name(lease.name.key, Space.MEMBER, f"{_members_of(lease)}{nonce}")


def _members_of(lease: LeaseId) -> str:
    # slots of one key may have the same incarnation
    slot = f"permit/{lease.name.part}/" if lease.name.is_slot else ""
    return f"{slot}{lease.incarnation}/"


def attach(
    lease: LeaseId,
    nonce: str,
    fields: Mapping[str, str],
    context: ProtocolContext,
    *,
    mode: str = EXCLUSIVE,
    introduced_by: Introduction | None = None,
) -> Script[Attached | Over]:
    """Become a member of a lease, or return why not. fields is the registration's record.

    mode: of the lease; with "shared" this process becomes a reader of the group. introduced_by: the reader whose ticket
    lets it join although a writer waits. Withdraws if the read that follows the registration shows closing, revoked,
    another incarnation, or a waiting writer.
    """
    name = member_name(lease, nonce)
    written = yield from _register(name, lease.ttl, fields, context)
    if isinstance(written, Over):
        return written
    registration, registered = written
    try:
        joined = yield from _join(lease, context, mode, introduced_by)
    except StoreRefused:
        # an unreadable record has no members, so a drain must not wait for one
        with suppress(StoreUnavailable, OutcomeUnknown):
            yield from take_back(registration, context)
        raise
    if isinstance(joined, Over):
        with suppress(StoreUnavailable, OutcomeUnknown):  # otherwise it expires, and a drain waits for that
            yield from take_back(registration, context)
        return joined
    return Attached(
        lease=lease,
        registration=registration,
        registration_deadline=context.deadline_by(registered, lease.ttl),
        record_deadline=joined.deadline,
        sent_at=context.renewed_at(registered),
        token=joined.token,
        previous_lease=joined.previous_lease,
        mode=mode,
    )


def _register(
    name: Name, ttl: float, fields: Mapping[str, str], context: ProtocolContext
) -> Script[tuple[LeaseId, Reply[Any]] | Over]:
    """Write a registration, or adopt that of an earlier attempt; Over if an operator broke it meanwhile."""
    turn, holder = 0, fields["identity"]
    while True:
        try:
            every = context.settings.renew_every
            reply = yield from ask(
                Create(name, fields, lifetime=ttl, min_retention=context.min_retention(ttl), renew_every=every)
            )
            if isinstance(reply.answer, Snapshot):
                context.note_write(name, reply, reply.answer)
                return LeaseId(name, holder, reply.answer.incarnation, ttl), reply
        except OutcomeUnknown:
            # otherwise a store that answers reads but not writes would get requests forever, without a pause
            if turn == REGISTRATIONS_MAX - 1:
                raise
        # an earlier attempt of ours took effect: its age is unknown, so it is extended
        seen = yield from ask(Read(name))
        if isinstance(seen.answer, Absent):
            yield from ask(context.retry_pause(name, turn))
            turn += 1
            continue
        renewed = yield from ask(Extend(name, {}, seen.answer.incarnation, lifetime=ttl))
        if isinstance(renewed.answer, Snapshot):
            own = LeaseId(name, holder, renewed.answer.incarnation, ttl)
            lost = over(own, renewed.answer, context)
            if lost is not None:
                # one that was broken with now=True counts for nobody, however long it lives
                with suppress(StoreUnavailable, OutcomeUnknown):
                    yield from take_back(own, context)
                return lost
            context.note_write(name, renewed, renewed.answer)
            return own, renewed


@frozen
class _Joined:
    deadline: float
    token: int | None
    previous_lease: PreviousLease


def _join(
    lease: LeaseId, context: ProtocolContext, mode: str, introduced_by: Introduction | None
) -> Script[_Joined | Over]:
    turn, is_introduced = 0, False
    while True:
        reply = yield from ask(Read(lease.name))
        seen = reply.answer
        if isinstance(seen, Absent):
            return Over(LossReason.GONE)
        lost = over(lease, seen, context)
        if lost is not None:
            return lost
        record = context.decode(lease.name, seen)
        if record.closing or record.mode != mode:
            return Over(LossReason.GONE, BEING_RELEASED if record.closing else f"its mode is {record.mode!r}")
        if record.wanted and not is_introduced:
            # while the introducer is registered, no list of the writer was empty before our registration was in it
            if introduced_by is None or not (yield from _is_registered(lease, introduced_by)):
                return Over(LossReason.GONE, f"{record.wanted_by} waits for it")
            is_introduced = True
        token, before = token_of(record, seen, context), previous_of(record, context)
        look = context.observe(lease.name, reply, seen)
        by_look = context.deadline_by_look(look, reply, seen, effective_ttl(lease, record))
        if by_look is not None and _is_ample(by_look - reply.received_at, context):
            return _Joined(by_look, token, before)
        try:
            renewed = yield from renew(lease, {}, context)
        except OutcomeUnknown:
            # if many attach at once and the store accepts one change per second, one of them renews for all
            if turn == JOINS_MAX - 1 or not (yield from _keep_pace(lease.name, turn, context)):
                raise
            turn += 1
            continue
        if isinstance(renewed, Over):
            return renewed
        if renewed.deadline is None:
            return Over(LossReason.GONE, BEING_RELEASED)
        return _Joined(renewed.deadline, token, before)


def _is_registered(lease: LeaseId, introduced_by: Introduction) -> Script[bool]:
    """Return whether the registration of the reader that made the ticket still exists."""
    reply = yield from ask(Read(member_name(lease, introduced_by.nonce)))
    return not isinstance(reply.answer, Absent) and reply.answer.incarnation == introduced_by.incarnation


def _is_ample(left: float, context: ProtocolContext) -> bool:
    settings = context.settings
    return left >= time_for_failures(settings.renew_every, settings.max_failures) + settings.abort_margin


def renew_member(
    lease: LeaseId,
    registration: LeaseId,
    fields: Mapping[str, str],
    context: ProtocolContext,
    *,
    mode: str = EXCLUSIVE,
) -> Script[MemberRenewed | Over]:
    """Renew a registration; extend the lease itself if it was not renewed since our last read, or time is short.

    fields: written into the lease's record, those of a reader into its own registration.
    """
    own_fields, fields = ({}, fields) if mode == EXCLUSIVE else (fields, {})
    own = yield from renew(registration, own_fields, context)
    if isinstance(own, Over):
        return own
    if own.deadline is None:
        return Over(LossReason.GONE)
    reply = yield from ask(Read(lease.name))
    if isinstance(reply.answer, Absent):
        return Over(LossReason.GONE)
    lost = over(lease, reply.answer, context)
    if lost is not None:
        return lost
    record = context.decode(lease.name, reply.answer)
    if record.closing:
        return MemberRenewed(own.deadline, None, own.sent_at)
    if mode == SHARED and record.is_exclusive:
        fields = DOWNGRADED  # an earlier attempt failed
    ttl = effective_ttl(lease, record)
    if record.wanted and context.observations.is_stale(lease.name, record.wanted, reply, ttl):
        # the writer gives no sign of life any more: new readers may join again
        with suppress(StoreUnavailable, OutcomeUnknown):
            yield from ask(Extend(lease.name, NOT_WANTED, lease.incarnation, reply.answer.revision))
    look = context.observe(lease.name, reply, reply.answer)
    by_look = context.deadline_by_look(look, reply, reply.answer, ttl)
    if by_look is not None and not fields and _is_ample(by_look - reply.received_at, context):
        believed_since = by_look - context.deadline(0.0, ttl)
        is_young = reply.sent_at - believed_since < context.settings.renew_every
        if is_young or look.is_change(reply):
            return MemberRenewed(own.deadline, by_look, own.sent_at)
    extended = yield from renew(lease, fields, context)
    if isinstance(extended, Over):
        return extended
    return MemberRenewed(own.deadline, extended.deadline, own.sent_at)


def take_back(
    lease: LeaseId, context: ProtocolContext, revision: str | None = None, *, ours_until: float = inf
) -> Script[bool]:
    """Remove exactly this incarnation, at this revision if given; retried a few times if the store does not answer.

    The holder or member must have stopped working before. A registration that stays expires, and a drain waits for
    that. True if we removed it. A record that is absent after an unknown outcome counts as removed by us only until
    ours_until (boot clock): later another client may have taken it over and removed it.
    """
    reply, was_unknown = yield from repeated(Remove(lease.name, lease.incarnation, revision), context)
    is_ours = was_unknown and reply.received_at < ours_until
    return isinstance(reply.answer, Removed) or (is_ours and isinstance(reply.answer, Absent))


def repeated(command: Remove | Extend, context: ProtocolContext) -> Script[tuple[Reply[Any], bool]]:
    """Send a command, and again a few times while the store does not answer. Return the reply, and whether the outcome
    of an earlier one is unknown.
    """
    was_unknown, turn = False, 0
    while True:
        try:
            reply: Reply[Any] = yield command
        except (StoreUnavailable, OutcomeUnknown) as error:
            was_unknown = was_unknown or isinstance(error, OutcomeUnknown)
            if turn == REMOVALS_MAX - 1 or not (yield from _keep_pace(command.name, turn, context)):
                raise
            turn += 1
        else:
            return reply, was_unknown


def _keep_pace(name: Name, turn: int, context: ProtocolContext) -> Script[bool]:
    """Pause before a request is repeated; return False if the caller's time is over before."""
    pause = context.retry_pause(name, turn)
    reply = yield from ask(pause)
    return reply.answer.seconds >= pause.at_least


def registered(lease: LeaseId) -> Script[Reply[Listing]]:
    """Read the registrations under a lease; StoreRefused if there are more than `MEMBERS_MAX`."""
    listed = yield from ask(List(Space.MEMBER, lease.name.key, _members_of(lease)))
    check_count(lease.name, listed.answer)
    return listed


def check_count(name: Name, members: Listing) -> None:
    """Raise StoreRefused for more registrations than lockstead can have written."""
    count = len(members.entries)
    if count > MEMBERS_MAX:
        raise StoreRefused(
            f"the lease of {name.key!r} has {count} registered members, more than {MEMBERS_MAX}; find out who writes "
            "them, and break it with now=True (--now)"
        )


def drain(
    lease: LeaseId,
    context: ProtocolContext,
    *,
    bound_at: float,
    salt: str,
    owner_filter: Callable[[str], bool] | None = None,
) -> Script[bool]:
    """Wait until no member of a lease is live; False if one still is at `bound_at` (boot clock).

    Registrations judged dead are removed by incarnation *and* revision, and the list is read again: a member that
    renewed in between is alive. owner_filter selects members by owner, None all; an unreadable registration is always
    waited for. An empty list stays empty only on a lease that is closing. StoreRefused as `registered`.
    """
    settings = context.settings
    longest = settings.backoff_min
    is_last, late = False, 0
    while True:
        at_least = settings.backoff_min
        try:
            listed = yield from registered(lease)
            verdict = yield from sift(listed, context, salt, owner_filter)
        except OutOfTime:
            return False  # the caller's time ends before the bound: without this the loop would spin
        except (StoreUnavailable, OutcomeUnknown):
            verdict = Drain.LIVE  # nothing is known, so a member may be live
            at_least = max(at_least, context.traits.pace)  # the store may have rejected a write that judges a member
        if verdict is Drain.EMPTY:
            return True
        if verdict is Drain.CHANGED:
            # a client that writes registrations endlessly must not block the release
            late += listed.received_at >= bound_at
            if late > LATE_LOOKS_MAX:
                return False
            continue
        if is_last:
            return False
        pause = yield from ask(Pause(lease.name, at_least, max(at_least, longest)))
        # a member that died before the closing has expired by now, so the last read removes it too
        is_last = pause.received_at >= bound_at
        longest = min(settings.backoff_max, max(settings.backoff_min, pause.answer.seconds * 2))


def sift(
    listed: Reply[Listing], context: ProtocolContext, salt: str, owner_filter: Callable[[str], bool] | None = None
) -> Script[Drain]:
    """Remove the registrations of a list that are judged dead; return what is left, as `drain` explains."""
    has_members = was_removed = False
    judge = Judge(salt, context)
    for name, seen in listed.answer.entries:
        try:
            record = context.decode(name, seen)
        except StoreRefused:
            has_members = True  # cannot be judged, so it counts as live until the bound
            continue
        if owner_filter is not None and not owner_filter(record.owner or record.holder):
            continue
        has_members = True
        if (yield from judge.is_over(name, record, listed, seen)):
            yield from ask(Remove(name, seen.incarnation, seen.revision))
            context.observations.discard(name)
            was_removed = True
    if was_removed:
        return Drain.CHANGED
    return Drain.LIVE if has_members else Drain.EMPTY
