"""Acquiring a shared lock: find the group of readers under the key, or found one; register, and read the record again.

The order is strict: a reader holds the lock only after a read that follows the answer to its registration, and shows
the same group with no writer waiting. A writer that reads the list later finds the registration.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.acquire import TURNS_MAX, AcquireRequest, Contended, Grant, create, keep_pace, take_over
from lockstead.protocol.commands import Absent, Read, Script, Snapshot, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, is_over, over_in
from lockstead.protocol.election import left_to_heir
from lockstead.protocol.members import Attached, attach, member_name, take_back
from lockstead.protocol.previous_lease import NOBODY_BEFORE
from lockstead.protocol.record import number
from lockstead.values import SHARED


def attempt_shared(
    request: AcquireRequest,
    context: ProtocolContext,
    *,
    look_first: bool,  # noqa: ARG001 - a reader always does, unless it knows a group
    gives_up_at: float = inf,  # noqa: ARG001 - nothing here waits
) -> Script[Grant | Contended]:
    """Try once, without waiting. request.fields: the record of a group; request.registration: that of the reader."""
    known, doubts, paced_for = context.observations.groups.get(request.name), request.doubts, request.doubts
    for _turn in range(TURNS_MAX):
        group, known = known, None
        if group is None:
            if request.doubts > paced_for:
                paced_for = yield from keep_pace(request, doubts, context)
            found = yield from _found(request, context)
            if request.is_joining and found is not None and found != request.group:
                yield from _withdraw(request, context)
            if isinstance(found, Contended):
                return found
            group = found
        if group is not None:
            if request.withdrawals:
                request.register_anew()
            request.group, request.is_joining = group, True
            # a writer judges both records by the ttl of the group
            fields = {**request.registration, "ttl": number(group.ttl)}
            joined = yield from attach(group, request.nonce, fields, context.for_ttl(group.ttl), mode=SHARED)
            request.is_joining = False
            if isinstance(joined, Attached):
                context.observations.note_group(request.name, group)
                return _granted(joined)
            request.withdrawals += 1
            context.observations.groups.pop(request.name, None)
    return Contended(None)


def _found(request: AcquireRequest, context: ProtocolContext) -> Script[LeaseId | Contended | None]:
    """Return the group under the key, one founded now if the key is free; None if the outcome is unknown."""
    name = request.name
    reply = yield from ask(Read(name))
    seen = reply.answer
    founded: Grant | Contended | None
    if isinstance(seen, Absent):
        context.observations.discard(name)
        founded = yield from create(request, context)
    else:
        record = context.decode(name, seen)
        left = left_to_heir(name, request.owner, record, reply, context)
        if left > 0:
            return Contended(record, seen, over_in=left)
        if (yield from is_over(name, record, reply, seen, request.holder, context)):
            founded = yield from take_over(request, seen, record, context)
        elif record.is_group and not (record.wanted or record.is_ending):
            return LeaseId(name, record.holder, seen.incarnation, record.ttl or context.settings.ttl)
        else:
            return Contended(record, seen, over_in=over_in(name, record, reply, seen, context))
    return founded.lease if isinstance(founded, Grant) else founded


def _withdraw(request: AcquireRequest, context: ProtocolContext) -> Script[None]:
    """Remove the registration of a join without an answer: a writer would wait until it expires."""
    group = request.group
    if group is None:
        return
    name = member_name(group, request.nonce)
    with suppress(StoreUnavailable, OutcomeUnknown):  # then the next attempt does so
        reply = yield from ask(Read(name))
        if isinstance(reply.answer, Snapshot):
            yield from take_back(LeaseId(name, request.registered_as, reply.answer.incarnation, group.ttl), context)
        request.withdrawals += 1
        request.is_joining = False


def _granted(joined: Attached) -> Grant:
    return Grant(
        joined.lease,
        joined.sent_at,
        min(joined.registration_deadline, joined.record_deadline),
        joined.token,
        joined.previous_lease or NOBODY_BEFORE,
        joined,
    )
