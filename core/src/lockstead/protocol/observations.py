"""A client's observations: since when each record is unchanged, and whether the store's clocks ran steadily.

The only mutable state that scripts share; it outlives an acquisition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lockstead.protocol import expiry
from lockstead.protocol.commands import Reply, Snapshot, StoreClock, Traits
from lockstead.protocol.record import Record
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.protocol.context import LeaseId

OBSERVATIONS_MAX: Final = 20_000
"""Maximum number of observed records: twice the registrations of one lease, which a drain must remember until they
expire."""

K = TypeVar("K")
V = TypeVar("V")


class Observation(NamedTuple):
    """What a client knows of a record's state. All instants are of its own boot clock.

    first_received_at: the receipt of the first read that showed this state. sent_at, received_at: of the last one.
    changed_after: an instant after which this state was written; None if unknown.
    """

    incarnation: str
    revision: str
    first_received_at: float
    sent_at: float
    received_at: float
    changed_after: float | None = None

    def is_change(self, reply: Reply[Any]) -> bool:
        """Return whether this reply is the first to show a state that followed an observed one."""
        return self.changed_after is not None and self.first_received_at == reply.received_at


class Reading(NamedTuple):
    """The last reading of a store's clock for a key (sent_at, received_at: boot clock). set_at: its value after a jump.

    The age of a record stamped before that is unknown.
    """

    store_now: float
    sent_at: float
    received_at: float
    set_at: float = -inf


@dataclass(slots=True)
class ObservationCache:
    """A client's observations: since when each record is unchanged, and whether the store's clocks can be trusted.

    Safe to share between threads: a state is identified by incarnation and revision, so any first read of it is valid.
    groups: the group of readers under a key, as it was joined last. signs: the last sign of life of the writer that
    waits for a group of readers, and when it was first seen. last_read: the fields that were decoded last, whether
    foreign records were allowed, and the decoded record. most: maximum number of observed records.
    """

    looks: dict[Name, Observation] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    is_calibrated: bool = False
    groups: dict[Name, LeaseId] = field(default_factory=dict)
    signs: dict[Name, tuple[str, float]] = field(default_factory=dict)
    last_read: tuple[Mapping[str, str], bool, Record] | None = None
    most: int = OBSERVATIONS_MAX

    def observe(self, name: Name, seen: Snapshot, reply: Reply[Any]) -> Observation:
        """Note a read of a record, and return what is known of its state.

        The order of two overlapping reads is unknown: then a difference does not count as a change.
        """
        known = self.looks.get(name)
        sent_at, received_at = reply.sent_at, reply.received_at
        if known is None or known.incarnation != seen.incarnation:
            look = Observation(seen.incarnation, seen.revision, received_at, sent_at, received_at)
        elif known.revision == seen.revision:
            if sent_at <= known.sent_at:
                return known
            look = Observation(*known[:3], sent_at, received_at, known.changed_after)
        elif sent_at < known.received_at:
            return Observation(seen.incarnation, seen.revision, received_at, sent_at, received_at)
        else:
            look = Observation(seen.incarnation, seen.revision, received_at, sent_at, received_at, known.sent_at)
        _enter(self.looks, name, look, self.most)
        return look

    def discard(self, name: Name) -> None:
        """Drop the observation of a record that is gone."""
        self.looks.pop(name, None)

    def note_own_change(self, name: Name, seen: Snapshot, reply: Reply[Any]) -> None:
        """Note our own change of an observed record: the state in its answer was written after its send."""
        if name in self.looks:
            at = reply.received_at
            self.looks[name] = Observation(seen.incarnation, seen.revision, at, reply.sent_at, at, reply.sent_at)

    def note_sign(self, name: Name, sign: str, reply: Reply[Any]) -> None:
        """Note a new sign of life of a waiting writer."""
        _enter(self.signs, name, (sign, reply.received_at))

    def is_stale(self, name: Name, sign: str, reply: Reply[Any], limit: float) -> bool:
        """Note a sign of life of a waiting writer; return whether it has not changed for `limit` seconds."""
        known = self.signs.get(name)
        if known is None or known[0] != sign:
            self.note_sign(name, sign, reply)
            return False
        return reply.sent_at - known[1] > limit

    def note_group(self, name: Name, group: LeaseId) -> None:
        """Note the group of readers under a key, so that the next reader need not look for it."""
        _enter(self.groups, name, group)

    def read_clock(self, key: str, store_now: float, reply: Reply[Any], drift: float, error: float = 0.0) -> None:
        """Note a reading of the store's clock for a key, and whether the clock jumped since the last one.

        error: tolerated seconds between two readings. After a failover, another server's clock counts as a jump too.
        """
        known = self.readings.get(key)
        set_at = -inf
        if known is not None:
            at_least = reply.sent_at - known.received_at - error
            at_most = reply.received_at - known.sent_at + error
            is_steady = expiry.ran_steadily(store_now - known.store_now, at_least, at_most, drift)
            set_at = known.set_at if is_steady else store_now
        _enter(self.readings, key, Reading(store_now, reply.sent_at, reply.received_at, set_at))

    def calibrate(self, traits: Traits, reply: Reply[Any]) -> None:
        """Calibrate the store's two clocks by the answer to a write of our own."""
        answer = reply.answer
        if traits.clock is not StoreClock.TWO_CLOCKS or not isinstance(answer, Snapshot):
            return
        if answer.updated_at is None or answer.store_now is None:
            self.is_calibrated = False
            return
        times = (answer.updated_at, answer.store_now, reply.sent_at, reply.received_at)
        self.is_calibrated = expiry.calibrated(*times, traits.clock_skew_max, traits.clock_resolution)


def _enter(entries: dict[K, V], key: K, value: V, most: int = OBSERVATIONS_MAX) -> None:
    if key not in entries and len(entries) >= most:
        entries.pop(next(iter(entries)), None)
    entries[key] = value
