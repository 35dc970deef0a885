"""Arguments of all protocol scripts: the lease, and the context of store traits, lock settings and observations."""

from __future__ import annotations

from dataclasses import field, replace
from math import inf
from typing import Any

from lockstead.errors import LossReason
from lockstead.frozen import frozen
from lockstead.protocol import expiry
from lockstead.protocol.commands import Absent, Pause, Reply, Script, Snapshot, StoreClock, TokenSource, Traits, ask
from lockstead.protocol.commands import Create as _Create
from lockstead.protocol.commands import Extend as _Extend
from lockstead.protocol.observations import Observation, ObservationCache
from lockstead.protocol.record import Record, decode
from lockstead.settings import Settings
from lockstead.values import EXCLUSIVE, TURN_TTL, Name, Space


@frozen
class LeaseId:
    """Identity of a lease: ownership is compared by holder and incarnation, never by token or revision.

    ttl is seconds, fixed at the grant.
    """

    name: Name
    holder: str
    incarnation: str
    ttl: float


@frozen
class ProtocolContext:
    """The store's traits, the lock's settings and the client's observations."""

    traits: Traits
    settings: Settings
    observations: ObservationCache = field(default_factory=ObservationCache)

    def for_ttl(self, ttl: float) -> ProtocolContext:
        """Return the context for a lease of this ttl, which another process chose."""
        return self if ttl == self.settings.ttl else replace(self, settings=self.settings.for_ttl(ttl))

    def deadline(self, sent_at: float, ttl: float) -> float:
        """Return the holder's deadline after a request, sent at sent_at, that renewed the record."""
        return expiry.holder_deadline(sent_at, ttl, self.settings.drift)

    def renewed_at(self, reply: Reply[Any]) -> float:
        """Return when the request was sent that last renewed the record in the answer to a write of ours.

        Acquiring a lock that is bound to a lease of the server does not renew that lease.
        """
        earlier: float | None = reply.answer.renewed_at
        return reply.sent_at if earlier is None else min(earlier, reply.sent_at)

    def deadline_by(self, reply: Reply[Any], ttl: float, lock_delay: float = 0.0) -> float:
        """Return the holder's deadline from the answer to a write of ours that shows the record.

        A lifetime that the server granted shorter than requested shortens the deadline, never the lock-delay.
        """
        lifetime: float | None = reply.answer.lifetime
        if lifetime is not None:
            ttl = min(ttl, expiry.ttl_of_lifetime(lifetime, lock_delay, self.settings.drift))
        return expiry.holder_deadline(self.renewed_at(reply), ttl, self.settings.drift)

    def min_retention(self, ttl: float, lock_delay: float = 0.0) -> float:
        """Return how long a record must be left alone after its last change (seconds)."""
        return expiry.record_lifetime(ttl, lock_delay, self.settings.drift)

    def drain_bound(self) -> float:
        """Return how long a release waits for members (seconds): a dead registration must expire within it."""
        clock = self.traits.clock
        observing = clock is StoreClock.NONE or (clock is StoreClock.TWO_CLOCKS and not self.observations.is_calibrated)
        return self.settings.drain_bound(self.traits.clock_skew_max, observing=observing)

    def retry_pause(self, name: Name, turn: int) -> Pause:
        """Return the pause before a write with an unknown outcome is repeated; turn counts from 0.

        From turn 2 on it is at least the store's minimum write interval (`pace`); otherwise all might be rejected.
        """
        at_least = max(self.settings.backoff_min, self.traits.pace * min(turn, 2) / 2)
        return Pause(name, at_least, at_least * 2, wake_on_change=False)

    def waiting_pause(
        self, name: Name, waiter_id: str, at_most: float, *, wake_on_change: bool, over_in: float = inf
    ) -> Pause:
        """Return the pause of a waiter until a record is removed or expires; over_in: the result of `over_in`.

        Waiters that saw the same record wake up at different times, not faster than the store accepts writes.
        """
        at_least = self.settings.backoff_min
        spread = max(at_least, self.traits.pace)
        if not wake_on_change:
            # after an unknown outcome: judging a dead record may take a write, and a rejected one delays all others
            at_least = spread
        return Pause(name, at_least, max(at_least, at_most), waiter_id, wake_on_change, max(at_least, over_in), spread)

    def decode(self, name: Name, seen: Snapshot) -> Record:
        """Decode a record; StoreRefused if it is damaged, not ours, or newer.

        The last record is cached by its fields, so a waiter's polls cost no decoding.
        """
        observations, fields = self.observations, seen.fields
        foreign = self.traits.foreign and name.space is Space.LOCK
        if name.is_turn:
            return _as_turn(decode(name, fields))
        last = observations.last_read
        # compared by fields, not by revision: a record repaired by hand must be decoded again
        if last is not None and last[0] == fields and last[1] is foreign:
            return last[2]
        record = decode(name, fields, foreign=foreign)
        observations.last_read = (fields, foreign, record)
        return record

    def observe(self, name: Name, reply: Reply[Any], seen: Snapshot) -> Observation:
        """Note what an answer shows of a record and of the store's clock; return the observation of the record."""
        self._read_clock(name, reply, seen)
        return self.observations.observe(name, seen, reply)

    def note_write(self, name: Name, reply: Reply[Any], seen: Snapshot) -> None:
        """Note what the answer to a write of ours shows of the record and of the store's clocks."""
        self.note_clocks(name, reply, seen)
        self.observations.note_own_change(name, seen, reply)

    def note_clocks(self, name: Name, reply: Reply[Any], seen: Snapshot) -> None:
        """Note what the answer to a write of ours shows of the store's clocks."""
        self._read_clock(name, reply, seen)
        self.observations.calibrate(self.traits, reply)

    def _read_clock(self, name: Name, reply: Reply[Any], seen: Snapshot) -> None:
        if seen.store_now is not None:
            error = self.traits.clock_skew_max + self.traits.clock_resolution
            self.observations.read_clock(name.key, seen.store_now, reply, self.settings.drift, error)

    def shows_age(self, name: Name, seen: Snapshot) -> bool:
        """Return whether an answer shows a record's age by the store's clock.

        It does not if the age is negative, or the record was stamped before a clock jump that this client saw. The
        latter is not checked for a `Date`, which is only a hint that a write of our own has to confirm.
        """
        traits = self.traits
        if seen.updated_at is None or seen.store_now is None or traits.clock is StoreClock.NONE:
            return False
        if traits.clock is StoreClock.ONE_CLOCK and self.is_from_before_the_clock_was_set(name, seen):
            return False
        return seen.updated_at <= seen.store_now + traits.clock_skew_max + traits.clock_resolution

    def is_from_before_the_clock_was_set(self, name: Name, seen: Snapshot) -> bool:
        """Return whether a record was stamped before the store's clock was set, as far as this client saw."""
        reading = self.observations.readings.get(name.key)
        return reading is not None and seen.updated_at is not None and seen.updated_at < reading.set_at

    def deadline_by_look(self, look: Observation, reply: Reply[Any], seen: Snapshot, ttl: float) -> float | None:
        """Return a deadline from reads that show another process's renewal; None if they show none.

        A changed revision means a renewal after the previous read was sent; but not if the record is bound to a lease
        of the server, which may have been renewed earlier. The store's clock is used only if a write of our own has
        calibrated it: other clocks can be set at any time.
        """
        traits = self.traits
        if traits.clock is StoreClock.SERVER_EXPIRES:
            return None
        by_look = None if look.changed_after is None else self.deadline(look.changed_after, ttl)
        if traits.clock is not StoreClock.TWO_CLOCKS or not self.observations.is_calibrated:
            return by_look
        if seen.updated_at is None or seen.store_now is None:
            return by_look
        times = (reply.sent_at, seen.store_now, seen.updated_at)
        by_clock = expiry.deadline_by_read(
            *times, ttl, self.settings.drift, traits.clock_skew_max, traits.clock_resolution
        )
        return max((known for known in (by_look, by_clock) if known is not None), default=None)


def _as_turn(record: Record) -> Record:
    """Bound a turn: it protects nothing, so whoever can write it must not make others wait for longer."""
    ttl = TURN_TTL if record.ttl is None else min(record.ttl, TURN_TTL)
    return replace(record, ttl=ttl, lock_delay=0.0, mode=EXCLUSIVE, wanted="", heir=None)


def loss(lease: LeaseId, answer: Snapshot | Absent, context: ProtocolContext) -> LossReason | None:
    """Return why a lease is lost, from the answer to a read of its key; None if it is still ours."""
    if isinstance(answer, Absent):
        return LossReason.GONE
    record = context.decode(lease.name, answer)
    if record.holder != lease.holder or answer.incarnation != lease.incarnation:
        return LossReason.REVOKED if record.tombstone else LossReason.TAKEN
    if record.revoked is not None:
        return LossReason.REVOKED
    return LossReason.GONE if record.ended else None


def draw(key: str, salt: str, context: ProtocolContext) -> Script[Snapshot]:
    """Write the companion record of a key and return it: it has an increasing number, and the store's time.

    salt makes the written value differ from the last one. The answer proves nothing about the lock.
    """
    name = Name(key, Space.COMPANION)
    fields = {"v": "1", "drawn_by": salt}
    while True:
        reply = yield from ask(_Extend(name, fields, incarnation=None))
        if not isinstance(reply.answer, Snapshot):
            created = yield from ask(_Create(name, fields))
            if not isinstance(created.answer, Snapshot):
                continue  # another client created it meanwhile
            context.observations.calibrate(context.traits, created)
            return created.answer
        context.observations.calibrate(context.traits, reply)
        return reply.answer


class Judge:
    """Judges whether the records of one reply have expired, as a contender does.

    If the store's `Date` and `updated` are two clocks, `Date` is only a hint: the verdict comes from the `updated` of a
    companion write of our own, the same clock that stamped the record. One such write serves all records of the reply.
    """

    def __init__(self, salt: str, context: ProtocolContext) -> None:
        self._salt = salt
        self._context = context
        self._drawn: Snapshot | None = None

    def is_over(self, name: Name, record: Record, reply: Reply[Any], seen: Snapshot) -> Script[bool]:
        """Return whether a record has expired. reply is the one that contains `seen`, the same for all."""
        verdict = seems_over(name, record, reply, seen, self._context)
        if verdict is not None:
            return verdict
        if self._drawn is None:
            # a new value each time: a write without a change may not advance `updated`
            self._drawn = yield from draw(name.key, f"{self._salt}:{reply.received_at:.6f}", self._context)
        updated_at = self._drawn.updated_at
        return updated_at is not None and _is_over_by(updated_at, record, seen, self._context)


def is_over(
    name: Name, record: Record, reply: Reply[Any], seen: Snapshot, salt: str, context: ProtocolContext
) -> Script[bool]:
    """Return whether a record has expired, as `Judge.is_over`."""
    return Judge(salt, context).is_over(name, record, reply, seen)


def seems_over(name: Name, record: Record, reply: Reply[Any], seen: Snapshot, context: ProtocolContext) -> bool | None:
    """Return whether a record has expired, by a read alone; None if it seems so, but only a write can prove it."""
    if seen.dead or record.ended:
        return True
    if context.traits.clock is StoreClock.SERVER_EXPIRES and not name.is_turn:
        return False  # a renewal there need not change the record, so an unchanged one proves nothing
    first_received_at = context.observe(name, reply, seen).first_received_at
    ttl = record.ttl
    if ttl is None:
        if record.expires_at is not None:
            return seen.store_now is not None and expiry.foreign_expired(seen.store_now, record.expires_at)
        ttl = context.settings.foreign_ttl
        if ttl is None:
            return False
    if expiry.expired_by_observation(first_received_at, reply.sent_at, ttl, record.lock_delay, context.settings.drift):
        return True
    if seen.store_now is None or not context.shows_age(name, seen):
        return False
    if not _is_over_by(seen.store_now, record, seen, context):
        return False
    return True if context.traits.clock is StoreClock.ONE_CLOCK else None


def over_in(name: Name, record: Record, reply: Reply[Any], seen: Snapshot, context: ProtocolContext) -> float:
    """Return the seconds until a live record can expire, as shown by a read; inf if unknown.

    A hint for when to read again, not a verdict: the record may be renewed until then.
    """
    traits, drift = context.traits, context.settings.drift
    if traits.clock is StoreClock.SERVER_EXPIRES and not name.is_turn:
        return inf  # the server decides when it drops the record, which no read shows
    ttl = context.settings.foreign_ttl if record.ttl is None else record.ttl
    if record.ttl is None and record.expires_at is not None:
        return inf if seen.store_now is None else expiry.foreign_left(seen.store_now, record.expires_at)
    if ttl is None:
        return inf
    first_received_at = context.observe(name, reply, seen).first_received_at
    by_sight = expiry.left_by_observation(first_received_at, reply.received_at, ttl, record.lock_delay, drift)
    if seen.store_now is None or seen.updated_at is None or not context.shows_age(name, seen):
        return by_sight
    by_clock = expiry.left_by_store_clock(
        seen.store_now, seen.updated_at, ttl, record.lock_delay, drift, traits.clock_skew_max
    )
    return min(by_sight, by_clock)


def _is_over_by(store_now: float, record: Record, seen: Snapshot, context: ProtocolContext) -> bool:
    ttl = context.settings.foreign_ttl if record.ttl is None else record.ttl
    if seen.updated_at is None or ttl is None:
        return False
    return expiry.expired_by_store_clock(
        store_now, seen.updated_at, ttl, record.lock_delay, context.settings.drift, context.traits.clock_skew_max
    )


def token_of(record: Record, seen: Snapshot, context: ProtocolContext) -> int | None:
    """Return the fencing token in an answer: the store's own, or the one published in the record."""
    match context.traits.tokens:
        case TokenSource.NATIVE:
            return seen.token
        case TokenSource.DRAWN:
            return record.token
        case TokenSource.NONE:
            return None
