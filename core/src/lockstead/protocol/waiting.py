"""Waiting until a key is free, without acquiring it: reads and pauses, never a write.

The result is a hint: a caller that acts on it must acquire the lock, and may find it taken again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, OutOfTime, Read, Script, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, over_in, seems_over
from lockstead.protocol.members import registered
from lockstead.protocol.release import RecordStatus, status
from lockstead.values import EXCLUSIVE, Name


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a read or a wait. status: the record under the key, None if there is none.

    over_in: seconds from the answer until the record can expire.
    """

    status: RecordStatus | None
    is_free: bool
    over_in: float = field(default=inf, compare=False)


def until_free(
    name: Name,
    context: ProtocolContext,
    *,
    gives_up_at: float,
    tries_once: bool,
    on_wait: Callable[[RecordStatus], None],
    mode: str = EXCLUSIVE,
    look: Callable[[ProtocolContext], Script[Found]] | None = None,
) -> Script[Found]:
    """Read until the key is free for a holder of this mode, or its record has expired. gives_up_at is on the boot
    clock; infinity waits forever. look: what reads instead of one that reads the record; its changes are awaited.

    on_wait is called once, before the first pause. An unavailable store is retried; its error is raised only if it is
    still unavailable at the end. StoreRefused, for an unreadable record, ends the wait at once.
    """
    settings = context.settings
    latest: Found | None = None
    store_error: StoreError | None = None
    was_notified = False
    longest = settings.backoff_min
    is_last = tries_once
    while True:
        try:
            latest = yield from (_found(name, context, mode) if look is None else look(context))
        except (StoreUnavailable, OutcomeUnknown) as error:
            if not isinstance(error, OutOfTime):
                latest, store_error = None, error
            if is_last and latest is None:
                raise (store_error or error) from None
        if latest is not None and (latest.is_free or is_last):
            return latest
        if latest is not None and latest.status is not None and not was_notified:
            was_notified = True
            on_wait(latest.status)
        left = inf if latest is None else latest.over_in
        pause = yield from ask(
            context.waiting_pause(name, "", longest, wake_on_change=latest is not None, over_in=left)
        )
        if pause.received_at >= gives_up_at:
            is_last = True
        # decorrelated jitter, as in `acquire`
        longest = settings.backoff_min if pause.answer.changed else min(settings.backoff_max, pause.answer.seconds * 3)


def _found(name: Name, context: ProtocolContext, mode: str) -> Script[Found]:
    reply = yield from ask(Read(name))
    if isinstance(reply.answer, Absent):
        context.observations.discard(name)
        return Found(None, is_free=True)
    seen = status(name, reply.answer, context)
    if seen.record.ended:
        return Found(None, is_free=True)
    if seems_over(name, seen.record, reply, reply.answer, context) is not False:
        return Found(seen, is_free=True)
    if seen.record.is_group:
        is_free = not (seen.record.wanted or seen.record.is_ending)
        if mode == EXCLUSIVE:
            group = LeaseId(name, seen.record.holder, reply.answer.incarnation, context.settings.ttl)
            is_free = not (yield from _is_occupied(group, context))
        return Found(seen, is_free)
    return Found(seen, is_free=False, over_in=over_in(name, seen.record, reply, reply.answer, context))


def _is_occupied(group: LeaseId, context: ProtocolContext) -> Script[bool]:
    """Return whether a reader may be registered, as far as one list can tell."""
    listed = yield from registered(group)
    for name, seen in listed.answer.entries:
        try:
            if not status(name, seen, context).is_expired:
                return True
        except StoreRefused:
            return True  # it cannot be judged
    return False
