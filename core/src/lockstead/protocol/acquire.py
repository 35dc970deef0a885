"""Acquiring a lock: try, adopt the record of an earlier attempt, take over an expired lease, wait for a live one.

Pure: a driver sends the commands that it yields. Waiting reads and never writes; only a free or expired key is
written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol

from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.protocol.commands import (
    Absent,
    Conflict,
    Create,
    Extend,
    OutOfTime,
    Paused,
    Read,
    Replace,
    Reply,
    Script,
    Snapshot,
    TokenSource,
    ask,
)
from lockstead.protocol.context import LeaseId, ProtocolContext, is_over, over_in
from lockstead.protocol.election import left_to_heir
from lockstead.protocol.fence import draw_token
from lockstead.protocol.groups import marked_and_empty
from lockstead.protocol.members import Attached, drain, nonce_of
from lockstead.protocol.previous_lease import (
    FORGOTTEN,
    previous_for_next,
    previous_of,
    previous_of_created,
    unused,
    written,
)
from lockstead.protocol.record import Record
from lockstead.values import Name, PreviousLease

TURNS_MAX: Final = 16
"""Maximum number of turns (a write or a read, each with what follows) of one attempt. Each but the first is caused by
another client's change or an unknown outcome."""

DOUBTS_MAX: Final = 4
"""Number of writes with an unknown outcome after which an attempt fails, so as not to load an overloaded store more."""


@dataclass(slots=True, weakref_slot=True)
class AcquireRequest:
    """One acquisition of one lock, with the same holder for all its attempts.

    fields: the record to write. unsettled: a write of ours has an unknown outcome and may still take effect, so giving
    up and releasing must check once more. doubts: the number of such writes; doubt: the error of the last one.
    has_waited: we may have a place in the store's queue. is_heir: an ended record was left to us. reclaim: take the
    lock from an earlier process of the same owner. keeps: returns whether this process holds a lease of a holder.
    on_wait: called before each pause with the contention or the store error that causes it. nonce, registration: of a
    reader, for its place in a group; group: the last one in which it may be registered; is_joining: a join has no
    answer; withdrawals: how often it withdrew. signs: signs of life in the mark by which a writer waits for readers.
    """

    name: Name
    holder: str
    owner: str
    fields: Mapping[str, str]
    reclaim: bool = False
    keeps: Callable[[str], bool] = lambda _holder: False
    unsettled: bool = False
    doubts: int = 0
    doubt: OutcomeUnknown | None = None
    has_waited: bool = False
    is_heir: bool = False
    on_wait: Callable[[Contended | StoreError], None] | None = None
    nonce: str = ""
    registration: Mapping[str, str] = field(default_factory=dict)
    group: LeaseId | None = None
    is_joining: bool = False
    withdrawals: int = 0
    signs: int = 0

    @property
    def is_shared(self) -> bool:
        """Return whether it is a reader that asks."""
        return bool(self.registration)

    @property
    def registered_as(self) -> str:
        """Return the holder in the reader's registration."""
        return self.registration["identity"]

    def register_anew(self) -> None:
        """Name the next registration differently: a late removal of the last one must not hit it."""
        holder = f"{self.holder}.{self.withdrawals}"
        self.registration = {**self.registration, "identity": holder}
        self.nonce = nonce_of(holder)

    @property
    def may_keep_place(self) -> bool:
        """Return whether a place in the store's queue may remain after the grant, which would block all later waiters.

        That is possible if a request of ours took effect late, or the lock was acquired outside the queue: by a
        reclaim, by joining other readers, or as the heir.
        """
        return self.has_waited and (self.doubts > 0 or self.reclaim or self.is_shared or self.is_heir)


@frozen
class Grant:
    """A granted lock: it is ours until `deadline`, or longer if renewed. `sent_at`: when the last renewal was sent.

    Both are instants of the caller's boot clock, in seconds. joined: the registration of a reader, else None.
    """

    lease: LeaseId
    sent_at: float
    deadline: float
    token: int | None
    previous_lease: PreviousLease
    joined: Attached | None = None


@frozen
class Contended:
    """Another holder has the lock: a result, not an error. record is None if it changed with every read.

    is_queued: the lock may be free, but earlier waiters go first. over_in: seconds from the reply until the record can
    expire.
    """

    record: Record | None
    seen: Snapshot | None = None
    is_queued: bool = False
    over_in: float = inf


class Attempt(Protocol):
    """A script that tries once."""

    def __call__(
        self, request: AcquireRequest, context: ProtocolContext, *, look_first: bool, gives_up_at: float = inf
    ) -> Script[Grant | Contended]:
        """Return the script; see `attempt_exclusive`."""
        ...


def acquire(
    request: AcquireRequest,
    context: ProtocolContext,
    *,
    attempt: Attempt | None = None,
    gives_up_at: float,
    tries_once: bool,
    look_first: bool = False,
) -> Script[Grant | Contended]:
    """Try until granted or out of time. attempt: how to try once, by default `attempt_exclusive`. gives_up_at is an
    instant on the caller's boot clock; infinity waits forever. look_first: read before the first write, as a waiter
    that was in the local queue must.

    An unavailable store is retried like contention; its error is raised only if it is still unavailable at the end, as
    OutcomeUnknown if any write of ours may still take effect.
    """
    settings = context.settings
    attempt = attempt or attempt_exclusive
    contended: Contended | None = None
    store_error: StoreError | None = None
    longest = settings.backoff_min
    is_last = tries_once
    while True:
        try:
            outcome = yield from attempt(request, context, look_first=look_first, gives_up_at=gives_up_at)
        except (StoreUnavailable, OutcomeUnknown) as error:
            if not isinstance(error, OutOfTime):
                contended, store_error = None, error
            if is_last and contended is not None:
                return contended
            if is_last:
                raise error_of_acquisition(request, store_error or error) from store_error
        else:
            if isinstance(outcome, Grant) or is_last:
                return outcome
            contended = outcome
        cause = contended or store_error
        if request.on_wait is not None and cause is not None:
            request.on_wait(cause)
        # `ask` inlined: every poll of every waiter runs this
        request.has_waited = True
        left = inf if contended is None else contended.over_in
        pause: Reply[Paused] = yield context.waiting_pause(
            request.name, request.holder, longest, wake_on_change=contended is not None, over_in=left
        )
        if pause.received_at >= gives_up_at:
            is_last = True
        # decorrelated jitter: the next pause is drawn from up to three times this one
        longest = settings.backoff_min if pause.answer.changed else min(settings.backoff_max, pause.answer.seconds * 3)
        look_first = not pause.answer.is_turn


def error_of_acquisition(request: AcquireRequest, error: StoreError) -> StoreError:
    """Return the error for the whole acquisition, not only for its last request."""
    if not request.unsettled or isinstance(error, OutcomeUnknown):
        return error
    return OutcomeUnknown(
        f"{request.name.key!r} was requested, but not answered in time; it may still be granted: {error}"
    )


def attempt_exclusive(
    request: AcquireRequest, context: ProtocolContext, *, look_first: bool, gives_up_at: float = inf
) -> Script[Grant | Contended]:
    """Try once, without waiting, except for members in a reclaim. look_first: read before writing."""
    write_first, doubts, paced_for = not look_first, request.doubts, request.doubts
    for _turn in range(TURNS_MAX):
        if write_first:
            granted = yield from create(request, context)
            if granted is not None:
                return granted
            write_first = False
        reply: Reply[Snapshot | Absent] = yield Read(request.name)
        seen = reply.answer
        if isinstance(seen, Absent):
            context.observations.discard(request.name)
            write_first = request.doubts == paced_for
            if not write_first:
                paced_for = yield from keep_pace(request, doubts, context)
            continue
        record = context.decode(request.name, seen)
        if record.holder == request.holder and record.is_exclusive and not record.ended:
            granted = yield from _fenced(request, (yield from _adopt(request, seen, record, context)), context)
        else:
            is_dead = yield from is_over(request.name, record, reply, seen, request.holder, context)
            is_ours = not is_dead and _may_reclaim(request, record)
            left = left_to_heir(request.name, request.owner, record, reply, context)
            if left > 0 or not (is_dead or is_ours or record.is_group):
                left = left or over_in(request.name, record, reply, seen, context)
                return Contended(record, seen, over_in=left)
            if request.doubts > paced_for:
                paced_for = yield from keep_pace(request, doubts, context)
                continue
            if is_dead:
                # the heir does not wait behind others: they leave the record to it
                request.is_heir = record.heir == request.owner
                granted = yield from take_over(request, seen, record, context, queues=not request.is_heir)
            else:
                taking = _reclaim(request, reply, record, context, gives_up_at)
                granted = yield from (taking if is_ours else _after_readers(request, reply, record, context))
        if granted is not None:
            return granted
    return Contended(None)


def keep_pace(request: AcquireRequest, doubts: int, context: ProtocolContext) -> Script[int]:
    """Pause before repeating a write whose outcome is unknown; return the number of such writes so far.

    doubts: their number when the attempt began. After a few more, or with no time left for the pause, it raises the
    last one's error.
    """
    since, pause = request.doubts - doubts, context.retry_pause(request.name, request.doubts - doubts - 1)
    is_over = since >= DOUBTS_MAX or (yield from ask(pause)).answer.seconds < pause.at_least
    if is_over and request.doubt is not None:
        raise request.doubt
    return request.doubts


def _write(request: AcquireRequest, command: Create | Replace) -> Script[Reply[Any] | None]:
    """Send a write that grants the lock, unless it is refused; return None if its outcome is unknown."""
    was_unsettled, request.unsettled = request.unsettled, True
    try:
        reply: Reply[Any] = yield command
    except StoreUnavailable:
        request.unsettled = was_unsettled
        raise
    except OutcomeUnknown as doubt:
        request.doubts, request.doubt = request.doubts + 1, doubt
        return None
    request.unsettled = was_unsettled
    return reply


def create(request: AcquireRequest, context: ProtocolContext) -> Script[Grant | Contended | None]:
    """Write the record of a free key; None if there is a record, or the outcome is unknown."""
    ttl, every = context.settings.ttl, context.settings.renew_every
    min_retention = context.min_retention(ttl, context.settings.lock_delay)
    command = Create(request.name, request.fields, ttl, request.holder, min_retention, every, FORGOTTEN)
    reply = yield from _write(request, command)
    if reply is None:
        return None
    if isinstance(reply.answer, Conflict):
        return Contended(None, is_queued=True) if reply.answer.is_queued else None
    grant = _granted(request, reply, reply.answer, previous_of_created(reply.answer.fields, context), context)
    return grant if _is_ample(grant, reply, context) else (yield from _renewed(request, grant, context))


def _adopt(request: AcquireRequest, seen: Snapshot, record: Record, context: ProtocolContext) -> Script[Grant | None]:
    """Adopt the record of an earlier attempt of ours: its age is unknown, so it is extended first."""
    if record.is_ending:
        yield unused(request.name, seen.incarnation, previous_of(record, context), context)
        return None
    return (yield from _extended(request, seen.incarnation, None, context))


def _extended(
    request: AcquireRequest, incarnation: str, before: PreviousLease | None, context: ProtocolContext
) -> Script[Grant | None]:
    """Extend our record; return its grant, or None if it is no longer ours.

    before: the previous lease; None to read it from the record.
    """
    reply = yield from ask(Extend(request.name, {}, incarnation, lifetime=context.settings.ttl))
    if not isinstance(reply.answer, Snapshot):
        return None
    answer = context.decode(request.name, reply.answer)
    if answer.holder != request.fields["identity"] or answer.is_ending:
        return None
    return _granted(request, reply, reply.answer, before or previous_of(answer, context), context)


def take_over(
    request: AcquireRequest, seen: Snapshot, record: Record, context: ProtocolContext, *, queues: bool = True
) -> Script[Grant | Contended | None]:
    """Replace exactly the record that was seen; None if it has changed, or the outcome is unknown."""
    ttl, every = context.settings.ttl, context.settings.renew_every
    min_retention = context.min_retention(ttl, context.settings.lock_delay)
    waiter_id, before = request.holder if queues else "", previous_for_next(record, request.holder, context)
    fields = written(request.fields, before)
    command = Replace(request.name, fields, seen.incarnation, seen.revision, ttl, waiter_id, min_retention, every)
    reply = yield from _write(request, command)
    if reply is None:
        return None
    if isinstance(reply.answer, Conflict) and reply.answer.is_queued:
        return Contended(record, seen, is_queued=True)
    if not isinstance(reply.answer, Snapshot):
        return None
    grant = _granted(request, reply, reply.answer, before, context)
    return grant if _is_ample(grant, reply, context) else (yield from _renewed(request, grant, context))


def _is_ample(grant: Grant, reply: Reply[Any], context: ProtocolContext) -> bool:
    """Return whether enough time is left to start work: a lease of the server may have been renewed too long ago."""
    if reply.answer.renewed_at is None:
        return True  # after a slow reply the keeper renews at once
    return grant.deadline - reply.received_at > context.settings.abort_margin + context.settings.renew_every


def _renewed(request: AcquireRequest, grant: Grant, context: ProtocolContext) -> Script[Grant | None]:
    """Renew a grant at once, because too little of the server's lease is left to start work."""
    # our record exists from here on: if it cannot be renewed, it must be swept
    was_unsettled, request.unsettled = request.unsettled, True
    again = yield from _extended(request, grant.lease.incarnation, grant.previous_lease, context)
    if again is None:
        return None
    request.unsettled = was_unsettled
    return again if grant.token is None else _with_token(again, grant.token)


def _after_readers(
    request: AcquireRequest, reply: Reply[Any], record: Record, context: ProtocolContext
) -> Script[Grant | Contended | None]:
    """Take the lock from a group of readers that have all left; Contended while one is registered."""
    marked = yield from marked_and_empty(request, reply, record, context)
    if isinstance(marked, Snapshot):
        # the revision that showed the mark before the list was read
        shown = context.decode(request.name, marked)
        taken = yield from take_over(request, marked, shown, context)
        if isinstance(taken, Contended):
            # earlier waiters go first, but readers among them cannot join a group that is marked
            yield unused(request.name, marked.incarnation, previous_of(shown, context), context, marked.revision)
        return taken
    return None if marked is None else Contended(record, reply.answer, over_in=marked)


def _may_reclaim(request: AcquireRequest, record: Record) -> bool:
    # a tombstone has the former holder's owner, and blocks the key while that holder may still be writing
    if not request.reclaim or record.is_foreign or record.tombstone or not record.is_exclusive:
        return False
    return record.owner == request.owner and not request.keeps(record.holder)


def _reclaim(
    request: AcquireRequest, reply: Reply[Any], record: Record, context: ProtocolContext, gives_up_at: float
) -> Script[Grant | Contended | None]:
    """Take the lock from an earlier process of our owner after its members have left; Contended if they stay too long.

    None: the record changed meanwhile, or the outcome is unknown; the next turn reads it again.
    """
    seen: Snapshot = reply.answer
    lease = LeaseId(request.name, record.holder, seen.incarnation, record.ttl or context.settings.ttl)
    closed = reply
    if not record.closing:  # written only once: a store with a write interval would reject the next write
        closed = yield from ask(Extend(request.name, {"closing": "1"}, seen.incarnation))
    if not isinstance(closed.answer, Snapshot):
        return None
    bound_at = min(closed.received_at + context.drain_bound(), gives_up_at)
    if not (yield from drain(lease, context, bound_at=bound_at, salt=request.holder)):
        return Contended(record, seen)
    latest = yield from ask(Read(request.name))
    if isinstance(latest.answer, Absent) or latest.answer.incarnation != seen.incarnation:
        return None
    # not queued: the owner continues with its own lock, so it does not overtake waiters
    record = context.decode(request.name, latest.answer)
    taken = yield from take_over(request, latest.answer, record, context, queues=False)
    return taken if isinstance(taken, Contended) else (yield from _fenced(request, taken, context))


def _fenced(request: AcquireRequest, grant: Grant | None, context: ProtocolContext) -> Script[Grant | None]:
    """Draw the token at once in a reclaim: the earlier process may still be alive, and must be fenced first."""
    if grant is None or not request.reclaim or context.traits.tokens is not TokenSource.DRAWN:
        return grant
    # our record exists from here on: without a token it must be swept
    was_unsettled, request.unsettled = request.unsettled, True
    token = yield from draw_token(grant.lease, context, salt=request.holder)
    if token is None:
        return None
    request.unsettled = was_unsettled
    return _with_token(grant, token)


def _with_token(grant: Grant, token: int) -> Grant:
    return Grant(grant.lease, grant.sent_at, grant.deadline, token, grant.previous_lease)


def _granted(
    request: AcquireRequest, reply: Reply[Any], seen: Snapshot, previous_lease: PreviousLease, context: ProtocolContext
) -> Grant:
    context.note_clocks(request.name, reply, seen)
    context.observations.discard(request.name)
    ttl = context.settings.ttl
    return Grant(
        lease=LeaseId(request.name, request.fields["identity"], seen.incarnation, ttl),
        sent_at=context.renewed_at(reply),
        deadline=context.deadline_by(reply, ttl, context.settings.lock_delay),
        token=seen.token if context.traits.tokens is TokenSource.NATIVE else None,
        previous_lease=previous_lease,
    )
