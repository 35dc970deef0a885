"""Leadership: an exclusive lease whose record has a value. A campaign is `acquire`, a term is known by its token.

Observing reads and never writes. A record that is over is no leader, judged as a contender judges it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.protocol.commands import Absent, Pause, Read, Reply, Script, TokenSource, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, over_in, seems_over, token_of
from lockstead.protocol.previous_lease import NOBODY_BEFORE, UNUSED
from lockstead.protocol.record import Record, previous_lease_text
from lockstead.protocol.renew import Over, Renewed, renew
from lockstead.values import Name

READS_PER_TTL: Final = 8
"""Reads of an observer per ttl if the store reports no change."""


@frozen
class Sighting:
    """A leader as one read showed it. token: the term; None on a store without tokens. since: by the leader's clock."""

    owner: str
    value: str
    token: int | None
    since: float | None


def advertise(lease: LeaseId, value: str, context: ProtocolContext) -> Script[Renewed | Over]:
    """Change the value of a term. It is a renewal that writes a field, so it expects the incarnation."""
    return renew(lease, {"value": value}, context)


def left_to(heir: str) -> dict[str, str]:
    """Return the fields of a record that its leader ended and left to an heir, a candidate's owner.

    The next leader must not find it unclean, nor the lease before it: `unused` passes on what is in `before`.
    """
    return {**UNUSED, "before": previous_lease_text(NOBODY_BEFORE), "heir": heir}


def left_to_heir(name: Name, owner: str, record: Record, reply: Reply[Any], context: ProtocolContext) -> float:
    """Return the seconds for which a candidate leaves an ended record to its heir; 0 if it may take it now."""
    if not record.ended or record.heir in (None, owner):
        return 0.0
    first_received_at = context.observe(name, reply, reply.answer).first_received_at
    return max(0.0, first_received_at + context.settings.backoff_max - reply.received_at)


def look(name: Name, context: ProtocolContext) -> Script[tuple[Sighting | None, float]]:
    """Read the leader, None if there is none, and the seconds until it can be over unless it is renewed."""
    reply = yield from ask(Read(name))
    seen = reply.answer
    if isinstance(seen, Absent):
        context.observations.discard(name)
        return None, inf
    record = context.decode(name, seen)
    if record.value is None or record.tombstone or not record.is_exclusive:
        return None, inf
    if seems_over(name, record, reply, seen, context) is not False:
        return None, inf
    token = token_of(record, seen, context)
    if token is None and context.traits.tokens is not TokenSource.NONE:
        return None, inf  # its token is being drawn: its term has not begun
    sighting = Sighting(record.owner or record.holder, record.value, token, record.acquired_at)
    return sighting, over_in(name, record, reply, seen, context)


def newer(last: Sighting | None, found: Sighting | None, term: int) -> bool:
    """Return whether a read shows something new. term: the highest token seen; an answer with a lower one is late."""
    return found != last and (found is None or found.token is None or found.token >= term)


def until_changed(
    name: Name, context: ProtocolContext, last: object, note: Callable[[Sighting | None], Sighting | None]
) -> Script[Sighting | None]:
    """Read until the leader is not `last`. note: returns what this process knows, after what a read showed.

    A store that does not answer is read again; what was seen last stays.
    """
    every, at_least = context.settings.ttl / READS_PER_TTL, context.settings.backoff_min
    while True:
        left = inf
        try:
            found, left = yield from look(name, context)
        except (StoreUnavailable, OutcomeUnknown):
            pass
        else:
            known = note(found)
            if known != last:
                return known
        yield from ask(Pause(name, every / 2, every, over_in=max(left, at_least), spread=at_least))
