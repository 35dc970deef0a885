"""Drawing and verifying fencing tokens.

A token counts only once it is published in the record of its incarnation, with a precondition on the state that was
read before the draw. That the deadline has not passed would prove nothing after a break, a reclaim or a deletion.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Absent, Extend, Read, Script, Snapshot, TokenSource, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, draw, loss, seems_over, token_of
from lockstead.values import EXCLUSIVE, Sequencer

TURNS_MAX: Final = 16


def draw_token(lease: LeaseId, context: ProtocolContext, *, salt: str) -> Script[int | None]:
    """Return the token shared by owner and members of this lease; None if the lease is no longer ours.

    Reads the record, draws a number, and publishes it expecting the state read. If another process of the lease has
    published a token first, that is the token.
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
            doubts += 1  # the next read shows whether it took effect
            continue
        answer = published.answer
        if isinstance(answer, Snapshot) and loss(lease, answer, context) is None:
            return drawn.token
    return None


def verify(sequencer: Sequencer, context: ProtocolContext) -> Script[bool]:
    """Return whether a sequencer names the current lease of its key or slot: False if that is absent, expired or newer.

    The result is true only for the instant of the read. A shared sequencer names a group, and any of its readers may
    have left it.
    """
    name, mode = sequencer.name, EXCLUSIVE if sequencer.is_permit else sequencer.mode
    reply = yield from ask(Read(name))
    seen = reply.answer
    if isinstance(seen, Absent):
        return False
    record = context.decode(name, seen)
    if record.ttl is None or record.mode != mode or token_of(record, seen, context) != sequencer.token:
        return False
    look = context.observe(name, reply, seen)
    # the holder's deadline is before the lock-delay begins
    is_over = seems_over(name, replace(record, lock_delay=0.0), reply, seen, context)
    if is_over is not None:
        return not is_over
    # only a `Date` indicates the expiry, and a guard may lack the permission for the write that would prove it
    if context.is_from_before_the_clock_was_set(name, seen):
        return True
    deadline = context.deadline_by_look(look, reply, seen, record.ttl)
    return deadline is not None and reply.received_at < deadline
