"""Permits: a semaphore is a gate, the record under its key that holds the limit, and one slot for each permit.

A slot is a lock in every way. The gate is read after the answer that proves a slot: a slot at or above the limit is
given back. The turn is a lock that orders the waiters and protects nothing. Pure, like `acquire`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.protocol.acquire import (
    AcquireRequest,
    Contended,
    Grant,
    acquire,
    attempt_exclusive,
    error_of_acquisition,
)
from lockstead.protocol.commands import (
    Absent,
    Create,
    Extend,
    List,
    OutOfTime,
    Pause,
    Paused,
    Read,
    Remove,
    Removed,
    Replace,
    Reply,
    Script,
    Snapshot,
    ask,
)
from lockstead.protocol.context import ProtocolContext, is_over, over_in, seems_over
from lockstead.protocol.members import repeated
from lockstead.protocol.previous_lease import ENDED, ENDED_LIVES, unused
from lockstead.protocol.record import GATE_VERSION, Record, gate_limit, is_gate, permits_text
from lockstead.protocol.release import RecordStatus, status
from lockstead.protocol.renew import Over, renew
from lockstead.protocol.waiting import Found
from lockstead.reading import whole
from lockstead.settings import Settings
from lockstead.values import PERMITS_MAX, TURN, Name, Space

TURNS_MAX: Final = 16
"""Maximum number of changes of a gate in a row: each but the last failed because another client changed it."""

OPEN_UNTIL: Final = "4102444800"
"""The year 2100: for foreign readers, since a gate never expires."""


@frozen
class SemaphoreRequest:
    """What a caller expects of a semaphore. permits: the limit; None accepts any. on_mismatch: refuse, follow or
    resize.

    by: who changes the limit. on_follow: called with a limit that is followed though another one was expected.
    """

    key: str
    permits: int | None
    on_mismatch: str
    by: str
    on_follow: Callable[[int], None] = lambda _limit: None


@dataclass(slots=True)
class PermitRequest:
    """One acquisition of one permit.

    request: that of the slot tried last, before that a template. turn: the request for the turn. in_order: the store
    has a queue, so newcomers do not overtake the holder of the turn. guess: a slot to try before any listing.
    has_queued: the turn was asked for; is_queued: and not granted, so that a place in its queue may remain.
    on_wait: called before each wait. on_abandoned: called with a request whose write may still take effect.
    """

    semaphore: SemaphoreRequest
    request: AcquireRequest
    turn: AcquireRequest
    turn_settings: Settings
    in_order: bool = False
    guess: int | None = None
    on_wait: Callable[[Contended | StoreError], None] | None = None
    on_abandoned: Callable[[AcquireRequest], None] = lambda _request: None
    has_queued: bool = False
    is_queued: bool = False
    turn_grant: Grant | None = None
    turn_due_at: float = 0.0
    turn_signs: int = 0
    abandoned: int = 0

    @property
    def key(self) -> str:
        """The key of the semaphore."""
        return self.semaphore.key

    def waits(self, cause: Contended | StoreError) -> None:
        """Call `on_wait`."""
        if self.on_wait is not None:
            self.on_wait(cause)

    def at(self, slot: int) -> AcquireRequest:
        """Return the request for a slot, which becomes the present one."""
        name = slot_name(self.key, slot)
        if self.request.name != name:
            self.settle()
            self.request = replace(self.request, name=name, doubts=0, doubt=None)
        return self.request

    def settle(self) -> None:
        """Go on as another holder if a write of the present request may still take effect: it is cleaned up apart."""
        last = self.request
        if last.unsettled:
            self.on_abandoned(last)
            self.abandoned += 1
            holder = f"{last.holder.rpartition('.')[0] if self.abandoned > 1 else last.holder}.{self.abandoned}"
            fields = {**last.fields, "identity": holder}
            self.request = replace(last, name=Name(self.key), holder=holder, fields=fields, unsettled=False)


@frozen
class Full(Contended):
    """All permits are held, or the semaphore is closed. owners: of the permits that are held."""

    limit: int = 0
    owners: tuple[str, ...] = ()


@frozen
class Slots:
    """The slots of a semaphore, by number, as one listing shows them. refused: why records cannot be read.

    live: held; dead: their leases are over, as far as reads can tell.
    """

    listed: Reply[Any]
    live: dict[int, RecordStatus]
    dead: dict[int, RecordStatus]
    refused: dict[int, StoreRefused]
    over_in: float

    def free(self, limit: int, salt: str) -> Iterator[tuple[int, bool]]:
        """Yield the slots below the limit that may be free, and whether each has no record, those first.

        salt chooses where to begin, so that clients that look at the same time try different slots.
        """
        taken = {*self.live, *self.dead, *self.refused}
        absent = [slot for slot in range(limit) if slot not in taken]
        dead = sorted(slot for slot in self.dead if slot < limit)
        start = zlib.crc32(salt.encode())
        for slots, is_absent in ((absent, True), (dead, False)):
            at = start % max(1, len(slots))
            for slot in (*slots[at:], *slots[:at]):
                yield slot, is_absent

    def full(self, limit: int) -> Contended:
        """Return the contention of a wish that gets none of them."""
        held = [self.live[slot] for slot in sorted(self.live) if slot < limit]
        owners = tuple(one.record.owner or one.record.holder for one in held)
        if not held:
            return Full(None, limit=limit) if limit == 0 else Contended(None)
        return Full(held[0].record, held[0].seen, over_in=self.over_in, limit=limit, owners=owners)


def slot_name(key: str, slot: int) -> Name:
    """Return the name of a slot's record."""
    return Name(key, Space.PERMIT, str(slot))


def slot_of(name: Name) -> int | None:
    """Return the number of a slot from the name of its record; None for another record."""
    number = whole(name.part) if name.is_slot else None
    return number if number is not None and number < PERMITS_MAX and str(number) == name.part else None


# --- the gate -------------------------------------------------------------------------------------------------------


def _gate_fields(limit: int, by: str) -> dict[str, str]:
    fields = {"v": str(GATE_VERSION), "mode": "permits", "identity": "permits", "limit": str(limit), "set_by": by}
    return {**fields, "expires_at": OPEN_UNTIL}


def read_gate(key: str, context: ProtocolContext) -> Script[Snapshot | None]:
    """Return the gate of a semaphore; None if there is none. StoreRefused if the key is that of a lock."""
    name = Name(key)
    reply = yield from ask(Read(name))
    seen = reply.answer
    if isinstance(seen, Absent):
        return None
    if not is_gate(seen.fields):
        record = context.decode(name, seen)
        if not record.ended:
            raise _is_lock(name, record)
        return None
    return seen


def _is_lock(name: Name, record: Record) -> StoreRefused:
    owner = record.owner or record.holder or "an unknown holder"
    return StoreRefused(f"{name.key!r} is a lock, held by {owner!r}; a semaphore needs another key")


def missing(key: str) -> StoreRefused:
    """Return the error of an operation on a semaphore that does not exist."""
    return StoreRefused(
        f"there is no semaphore {key!r}: the first acquisition with a number creates it "
        "(Semaphore(..., permits=N), at the command line run -n N)"
    )


def agree(wanted: SemaphoreRequest, context: ProtocolContext) -> Script[int]:
    """Return the limit; create the gate if there is none, and settle a difference as `on_mismatch` says.

    Limit 0 closes a semaphore for everybody, whatever number they expect. StoreRefused for a key that is a lock's.
    """
    name = Name(wanted.key)
    for _turn in range(TURNS_MAX):
        reply = yield from ask(Read(name))
        seen = reply.answer
        if isinstance(seen, Absent) or not is_gate(seen.fields):
            created = yield from _create_gate(name, wanted, reply, context)
            if created is not None:
                return created
            continue
        limit = gate_limit(wanted.key, seen.fields)
        if limit == 0 or wanted.permits in (None, limit):
            return limit
        if wanted.on_mismatch == "follow":
            wanted.on_follow(limit)
            return limit
        if wanted.on_mismatch == "refuse":
            raise StoreRefused(
                f"the semaphore {wanted.key!r} has {permits_text(limit)}, this process expects {wanted.permits}; "
                f"change one of the two (semaphore.resize(n), lockstead permits --set N), or pass on_mismatch='follow'"
            )
        done = yield from ask(_limited(name, seen, wanted.permits, wanted.by))
        if isinstance(done.answer, Snapshot):
            return wanted.permits
    raise _changes_too_fast(wanted.key)


def _create_gate(
    name: Name, wanted: SemaphoreRequest, reply: Reply[Any], context: ProtocolContext
) -> Script[int | None]:
    seen = reply.answer
    record = None if isinstance(seen, Absent) else context.decode(name, seen)
    if record is not None and not (yield from is_over(name, record, reply, seen, wanted.by, context)):
        raise _is_lock(name, record)
    if wanted.permits is None:
        raise missing(name.key)
    fields = _gate_fields(wanted.permits, wanted.by)
    command = Create(name, fields) if record is None else Replace(name, fields, seen.incarnation, seen.revision)
    made: Reply[Any] = yield command
    return wanted.permits if isinstance(made.answer, Snapshot) else None


def _limited(name: Name, seen: Snapshot, limit: int, by: str) -> Extend:
    # set_by changes with every call, and so does the revision: a late change that expects this one is refused
    return Extend(name, {"limit": str(limit), "set_by": by}, seen.incarnation, seen.revision)


def _changes_too_fast(key: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the limit of {key!r} changes too fast")


# --- one permit -----------------------------------------------------------------------------------------------------


def acquire_permit(
    wish: PermitRequest, context: ProtocolContext, *, gives_up_at: float, tries_once: bool
) -> Script[Grant | Contended]:
    """Try until a permit is granted or out of time; arguments and errors as for `acquire`.

    A waiter takes the turn. Only its holder watches the slots; it gives the turn back when it has a permit.
    """
    settings = context.settings
    contended: Contended | None = None
    store_error: StoreUnavailable | OutcomeUnknown | None = None
    longest, is_last, now = settings.backoff_min, tries_once, -inf
    while True:
        try:
            if wish.turn_grant is not None and now >= wish.turn_due_at:
                yield from _renew_turn(wish, wish.turn_grant, context)
            outcome = yield from _attempt(wish, context)
            if isinstance(outcome, Grant) or is_last:
                yield from _leave_turn(wish)
                return outcome
            contended = outcome
            if wish.turn_grant is None:
                wish.waits(contended)
                taken = yield from _take_turn(wish, context, gives_up_at)
                if isinstance(taken, Grant):
                    continue
                if taken is not None:
                    return contended  # out of time, and others were first
        except (StoreUnavailable, OutcomeUnknown) as error:
            if not isinstance(error, OutOfTime):
                contended, store_error = None, error
            if is_last and contended is not None:
                yield from _leave_turn(wish)
                return contended
            if is_last:
                raise error_of_acquisition(wish.request, store_error or error) from store_error
        if (cause := contended or store_error) is not None:
            wish.waits(cause)
        left = inf if contended is None else min(contended.over_in, wish.turn_settings.renew_every)
        pause: Reply[Paused] = yield context.waiting_pause(
            slot_name(wish.key, 0), "", longest, wake_on_change=contended is not None, over_in=left
        )
        now = pause.received_at
        is_last = now >= gives_up_at
        # decorrelated jitter, as in `acquire`
        longest = settings.backoff_min if pause.answer.changed else min(settings.backoff_max, pause.answer.seconds * 3)


def _attempt(wish: PermitRequest, context: ProtocolContext) -> Script[Grant | Contended]:
    """Try once: the slot of a write with an unknown outcome, the guessed one, then what a listing shows to be free."""
    if wish.request.unsettled:
        granted = yield from _take(wish, int(wish.request.name.part), context, look_first=True)
        if granted is not None:
            return granted
        wish.settle()
    if wish.in_order and wish.turn_grant is None and (yield from _has_turn(wish, context)):
        return Contended(None, is_queued=True)
    if wish.guess is not None:
        slot, wish.guess = wish.guess, None
        granted = yield from _take(wish, slot, context, look_first=False)
        if granted is not None:
            return granted
    limit = yield from agree(wish.semaphore, context)
    slots = yield from look(wish.key, context)
    for slot, is_absent in slots.free(limit, wish.request.holder):
        granted = yield from _take(wish, slot, context, look_first=not is_absent)
        if granted is not None:
            return granted
    refused = [error for slot, error in slots.refused.items() if slot < limit]
    if refused and not any(slot < limit for slot in slots.live):
        raise refused[0]
    return slots.full(limit)


def _take(wish: PermitRequest, slot: int, context: ProtocolContext, *, look_first: bool) -> Script[Grant | None]:
    """Acquire a slot, and then read the gate: only its answer shows that the slot is below the limit."""
    request = wish.at(slot)
    outcome = yield from attempt_exclusive(request, context, look_first=look_first)
    if not isinstance(outcome, Grant):
        return None
    # our record exists: until the gate is known, it must be found again or swept
    was_unsettled, request.unsettled = request.unsettled, True
    limit = yield from agree(wish.semaphore, context)
    if slot >= limit:
        try:
            yield unused(request.name, outcome.lease.incarnation, outcome.previous_lease, context)
        except (StoreUnavailable, OutcomeUnknown):
            wish.settle()  # the removal may still take effect: the record must never be adopted again
            raise
    request.unsettled = was_unsettled
    return outcome if slot < limit else None


def look(key: str, context: ProtocolContext) -> Script[Slots]:
    """List the slots of a semaphore."""
    listed = yield from ask(List(Space.PERMIT, key))
    live: dict[int, RecordStatus] = {}
    dead: dict[int, RecordStatus] = {}
    refused: dict[int, StoreRefused] = {}
    left = inf
    for name, seen in listed.answer.entries:
        slot = slot_of(name)
        if slot is None:
            continue
        try:
            one = status(name, seen, context)
        except StoreRefused as error:
            refused[slot] = error  # never taken for free
            continue
        if seems_over(name, one.record, listed, seen, context) is False:
            live[slot] = one
            left = min(left, over_in(name, one.record, listed, seen, context))
        else:
            dead[slot] = one
    return Slots(listed, live, dead, refused, left)


def found(key: str, context: ProtocolContext) -> Script[Found]:
    """Return whether a permit is free, as far as reads can tell; one is if there is no semaphore."""
    gate = yield from read_gate(key, context)
    if gate is None:
        return Found(None, is_free=True)
    limit = gate_limit(key, gate.fields)
    slots = yield from look(key, context)
    is_free = any(True for _ in slots.free(limit, ""))
    return Found(None, is_free, over_in=slots.over_in)


# --- the turn -------------------------------------------------------------------------------------------------------


def turn_name(key: str) -> Name:
    """Return the name of the turn's record."""
    return Name(key, Space.PERMIT, TURN)


def _has_turn(wish: PermitRequest, context: ProtocolContext) -> Script[bool]:
    """Return whether a waiter has the turn."""
    name = wish.turn.name
    reply = yield from ask(Read(name))
    if isinstance(reply.answer, Absent):
        return False
    try:
        record = context.decode(name, reply.answer)
    except StoreRefused:
        return False  # it protects nothing
    return seems_over(name, record, reply, reply.answer, context) is False


def _take_turn(wish: PermitRequest, context: ProtocolContext, gives_up_at: float) -> Script[Grant | Contended | None]:
    """Wait for the turn; None if it cannot be had, so that the permits are waited for without it."""
    wish.has_queued = wish.is_queued = True
    turn_context = replace(context, settings=wish.turn_settings)
    try:
        taken = yield from acquire(wish.turn, turn_context, gives_up_at=gives_up_at, tries_once=False, look_first=True)
    except StoreRefused:
        return None
    if isinstance(taken, Grant):
        wish.is_queued = False
        wish.turn_grant, wish.turn_due_at = taken, taken.sent_at + wish.turn_settings.renew_every
        wish.turn.unsettled = True  # no keeper renews it: whoever ends this wish must remove it
    return taken


def _renew_turn(wish: PermitRequest, grant: Grant, context: ProtocolContext) -> Script[None]:
    # a number that changes: where the server drops records, others would not see an empty renewal
    wish.turn_signs += 1
    renewed = yield from renew(
        grant.lease, {"sign": str(wish.turn_signs)}, replace(context, settings=wish.turn_settings)
    )
    if isinstance(renewed, Over):
        wish.turn_grant = None
    else:
        wish.turn_due_at = renewed.sent_at + wish.turn_settings.renew_every


def _leave_turn(wish: PermitRequest) -> Script[None]:
    """Give the turn back; if the store does not answer, it is swept later."""
    grant, wish.turn_grant = wish.turn_grant, None
    if grant is None:
        return
    try:
        yield from ask(Remove(grant.lease.name, grant.lease.incarnation))
    except (StoreUnavailable, OutcomeUnknown):
        return
    wish.turn.unsettled = wish.turn.doubts > 0


# --- changing the limit ---------------------------------------------------------------------------------------------


def resize(key: str, limit: int, by: str, context: ProtocolContext, *, wait_until: float | None) -> Script[bool]:
    """Set the limit; return whether it is in effect: no permit at or above it is held.

    by: a text that no other call uses. wait_until: wait for holders above the limit until then (boot clock). None:
    look once. StoreRefused if there is no semaphore.
    """
    yield from _set_limit(key, limit, by, context)
    return (yield from _emptied(key, limit, by, context, wait_until))


def _set_limit(key: str, limit: int, by: str, context: ProtocolContext) -> Script[Snapshot]:
    """Write the limit, and return an answer that shows it. Always a write: it moves the revision."""
    name, doubts = Name(key), 0
    for _turn in range(TURNS_MAX):
        seen = yield from read_gate(key, context)
        if seen is None:
            raise missing(key)
        if seen.fields.get("set_by") == by:
            return seen  # a write of ours with an unknown outcome took effect
        try:
            reply = yield from ask(_limited(name, seen, limit, by))
        except OutcomeUnknown:
            if doubts == 3:
                raise
            yield from ask(context.retry_pause(name, doubts))
            doubts += 1
            continue
        if isinstance(reply.answer, Snapshot):
            return reply.answer
    raise _changes_too_fast(key)


def _emptied(key: str, limit: int, salt: str, context: ProtocolContext, wait_until: float | None) -> Script[bool]:
    """Return whether no slot at or above the limit is held, listed after the answer that showed the limit.

    A lease that is over is marked as ended: otherwise it could be extended by its ticket.
    """
    settings = context.settings
    longest, is_last = settings.backoff_min, wait_until is None
    while True:
        slots = yield from look(key, context)
        is_live = any(slot >= limit for slot in (*slots.live, *slots.refused))
        changed = False
        for slot, one in slots.dead.items():
            if slot >= limit and not one.record.ended:
                was_ended = yield from _end_dead(slot_name(key, slot), one, slots.listed, salt, context)
                is_live, changed = is_live or was_ended is None, changed or was_ended is False
        if changed:
            continue
        if not is_live or is_last:
            return not is_live
        left = inf if wait_until is None else max(0.0, wait_until - slots.listed.received_at)
        pause = yield from ask(
            Pause(slot_name(key, 0), settings.backoff_min, longest, over_in=min(left, slots.over_in))
        )
        is_last = wait_until is not None and pause.received_at >= wait_until
        longest = settings.backoff_min if pause.answer.changed else min(settings.backoff_max, pause.answer.seconds * 3)


def _end_dead(
    name: Name, one: RecordStatus, listed: Reply[Any], salt: str, context: ProtocolContext
) -> Script[bool | None]:
    """Mark a lease as ended if it is over; None if it is not, False if it changed since."""
    if not (yield from is_over(name, one.record, listed, one.seen, salt, context)):
        return None
    reply = yield from ask(Extend(name, ENDED, one.seen.incarnation, one.seen.revision, lifetime=ENDED_LIVES))
    context.observations.discard(name)
    return isinstance(reply.answer, Snapshot)


def remove(key: str, by: str, context: ProtocolContext, *, wait_until: float | None) -> Script[bool]:
    """Close a semaphore, and remove it when no permit is held; False if one still is: then it stays closed."""
    gate = yield from _set_limit(key, 0, by, context)
    if not (yield from _emptied(key, 0, by, context, wait_until)):
        return False
    slots = yield from look(key, context)
    for slot, one in slots.dead.items():
        yield from ask(Remove(slot_name(key, slot), one.seen.incarnation, one.seen.revision))
    reply, _ = yield from repeated(Remove(Name(key), gate.incarnation, gate.revision), context)
    return isinstance(reply.answer, Removed | Absent)
