"""Groups of readers: how a writer waits for them, and how the last reader ends the group.

The record of a shared lock stands for a group; each reader is a member of it, registered as in `members`. A writer
marks the record as wanted, so that no further reader joins, and replaces it once no reader is registered. Safety rests
on two points: the list is read after an answer that shows the mark, and the replacement expects exactly that revision.
The mark itself is only for fairness, so anybody may remove it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Absent, Extend, Listing, Read, Remove, Reply, Script, Snapshot, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, over_in
from lockstead.protocol.members import Drain, owner_of, registered, sift
from lockstead.protocol.previous_lease import ENDED_LIVES, UNUSED, previous_of, unused
from lockstead.protocol.record import Record, wanted_text
from lockstead.renewal import RENEWALS_PER_TTL

if TYPE_CHECKING:
    from lockstead.protocol.acquire import AcquireRequest

LOOKS_MAX: Final = 16
"""Lists of one look. Each but the first follows the removal of dead registrations."""


def marked_and_empty(
    request: AcquireRequest, reply: Reply[Any], record: Record, context: ProtocolContext
) -> Script[Snapshot | float | None]:
    """Return the record of a group, as an answer shows it marked, if no reader is registered under it after that.

    Otherwise the seconds until a registration can expire; None if the record has changed. reply: the one that shows the
    record. A writer marks the record from its second attempt on, since it waits then; in its first, or if it only
    tries, only once it has seen no reader.
    """
    seen: Snapshot = reply.answer
    group = LeaseId(request.name, record.holder, seen.incarnation, record.ttl or context.settings.ttl)
    if not request.has_waited:
        left = yield from _occupied_for(group, request.holder, context)
        if left is not None:
            return left
    marked = yield from _marked(request, reply, record, context)
    if marked is None:
        return None
    left = yield from _occupied_for(group, request.holder, context)
    return marked if left is None else left


def _marked(
    request: AcquireRequest, reply: Reply[Any], record: Record, context: ProtocolContext
) -> Script[Snapshot | None]:
    """Mark a group as wanted, unless another writer does so; return the record from an answer that shows a mark.

    The mark of any writer serves all. It contains a number that grows with every sign of life.
    """
    seen: Snapshot = reply.answer
    every = (record.ttl or context.settings.ttl) / RENEWALS_PER_TTL
    if record.wanted:
        # another writer's sign may be one round late
        limit = every if record.wanted_by == wanted_text(request.holder) else 2 * every
        if not context.observations.is_stale(request.name, record.wanted, reply, limit):
            return seen
    request.signs += 1
    wanted = {"wanted": wanted_text(request.holder, request.signs)}
    marked = yield from ask(Extend(request.name, wanted, seen.incarnation))
    if not isinstance(marked.answer, Snapshot):
        return None
    shown = context.decode(request.name, marked.answer)
    if not (shown.is_group and shown.wanted):
        return None
    context.observations.note_sign(request.name, shown.wanted, marked)
    return marked.answer


def _occupied_for(group: LeaseId, salt: str, context: ProtocolContext) -> Script[float | None]:
    """Return the seconds until a registration of a reader can expire; None if none is registered.

    StoreRefused if those that are left cannot be read: nothing shows how long they live.
    """
    for _ in range(LOOKS_MAX):
        listed = yield from registered(group)
        match (yield from sift(listed, context, salt)):
            case Drain.EMPTY:
                return None
            case Drain.LIVE:
                return _first_over_in(listed, context)
            case Drain.CHANGED:
                pass
    return 0.0


def _first_over_in(listed: Reply[Listing], context: ProtocolContext) -> float:
    left: list[float] = []
    refused: StoreRefused | None = None
    for name, seen in listed.answer.entries:
        try:
            left.append(over_in(name, context.decode(name, seen), listed, seen, context))
        except StoreRefused as error:
            refused = error
    if refused is not None and not left:
        # a writer that waits renews the group by its mark, so it would wait forever
        raise refused
    return min(left, default=inf)


def end_if_wanted(group: LeaseId, context: ProtocolContext) -> Script[None]:
    """End a group that no reader can join any more, if none is registered. Called after a reader has left.

    The key is left to the writer that waits: readers that come all the time must not found the next group before it
    looks. The holder of a lease whose downgrade never took effect removes the record, which is still exclusive.
    """
    reply = yield from ask(Read(group.name))
    seen = reply.answer
    if isinstance(seen, Absent) or seen.incarnation != group.incarnation:
        return
    record = context.decode(group.name, seen)
    if record.ended:
        return
    if record.is_exclusive and record.holder == group.holder and record.revoked is None:
        yield from ask(Remove(group.name, seen.incarnation, seen.revision))
    elif (record.is_group and (record.wanted or record.is_ending)) and (
        yield from _occupied_for(group, group.holder, context)
    ) is None:
        if record.wanted:
            heir = {**UNUSED, "heir": owner_of(record.wanted_by)}
            yield Extend(group.name, heir, seen.incarnation, seen.revision, lifetime=ENDED_LIVES)
        else:
            yield unused(group.name, seen.incarnation, previous_of(record, context), context, seen.revision)
