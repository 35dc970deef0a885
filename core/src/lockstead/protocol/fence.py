"""How a fencing token is obtained and checked.

A token counts only when it stands in the record of the incarnation that asks: published under a precondition that
was read before the draw. "Still before my deadline" would prove nothing against a break, a reclaim or a deletion.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Absent, Extend, Read, Script, Snapshot, TokenSource, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, draw, loss, seems_over, token_of
from lockstead.values import Name, Sequencer

TURNS_MAX: Final = 16


def draw_token(lease: LeaseId, context: ProtocolContext, *, salt: str) -> Script[int | None]:
    """Return the token that all who work under this lease share; None if the lease is no longer ours.

    Reads the record, draws a number, publishes it expecting the state read. A sibling's token that got there first
    is the token.
    """
    doubts = 0
    for turn in range(TURNS_MAX):
        reply = yield from ask(Read(lease.name))
        seen = reply.answer
        if isinstance(seen, Absent) or loss(lease, seen, context) is not None:
            return None
        shown = token_of(context.decode(lease.name, seen), seen, context)
        if shown is not None or context.traits.tokens is not TokenSource.DRAWN:
            return shown
        if doubts:
            yield from ask(context.retry_pause(lease.name, doubts - 1))
        try:
            drawn = yield from draw(lease.name.key, f"{salt}:{turn}", context)
            if drawn.token is None:
                return None
            published = yield from ask(
                Extend(lease.name, {"token": str(drawn.token)}, lease.incarnation, seen.revision)
            )
        except OutcomeUnknown:
            if turn == TURNS_MAX - 1:
                raise
            doubts += 1  # the next read shows whether it landed
            continue
        answer = published.answer
        if isinstance(answer, Snapshot) and loss(lease, answer, context) is None:
            return drawn.token
    return None


def verify(sequencer: Sequencer, context: ProtocolContext) -> Script[bool]:
    """Return whether a sequencer names the lease that holds its key now. Absent, expired or newer is no.

    The answer is true of the instant of the read and says nothing about the next.
    """
    name = Name(sequencer.key)
    reply = yield from ask(Read(name))
    seen = reply.answer
    if isinstance(seen, Absent) or sequencer.mode != "exclusive":
        return False
    record = context.decode(name, seen)
    if record.ttl is None or token_of(record, seen, context) != sequencer.token:
        return False
    look = context.observe(name, reply, seen)
    # its holder's belief ends before the lock-delay begins
    is_over = seems_over(name, replace(record, lock_delay=0.0), reply, seen, context)
    if is_over is not None:
        return not is_over
    # only a `Date` says so: a guard need not have the right to the write that would prove it
    if context.is_from_before_the_clock_was_set(name, seen):
        return True
    deadline = context.deadline_by_look(look, reply, seen, record.ttl)
    return deadline is not None and reply.received_at < deadline
