"""What a script may ask of a store, and what a store may answer. One command is one request.

Must not know how a store does it, nor what the fields of a record mean.

A store raises `StoreUnavailable` (never sent), `OutcomeUnknown` (may be applied) or `StoreRefused` (never will be)
where it has no answer; the driver throws that into the script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Final, Generic, TypeAlias, TypeVar

from lockstead import script
from lockstead.errors import StoreUnavailable
from lockstead.frozen import frozen
from lockstead.values import Name, Space

# --- answers -----------------------------------------------------------------------------------------------------


@frozen
class Snapshot:
    """One record as the store showed it in one answer.

    incarnation changes with every grant and never comes back; revision changes with every write inside an
    incarnation and is counted by the store. Both are opaque and compared for equality alone.
    updated_at and store_now are seconds on the *store's* clock: when the record last changed, and the store's time
    of this answer; None where the answer does not say. dead: the store knows that the writer no longer runs.
    token is the number that the store itself counted, for stores that do.

    Where a server drops what is not renewed, two more: renewed_at is the instant (the caller's boot clock) at which the
    request was sent that renewed this record's life, if that was an earlier one than this command; lifetime is how
    long the server keeps the record from there (seconds), if that is less than was asked.
    """

    fields: Mapping[str, str]
    incarnation: str
    revision: str
    updated_at: float | None = None
    store_now: float | None = None
    token: int | None = None
    dead: bool = False
    renewed_at: float | None = None
    lifetime: float | None = None


@frozen
class Conflict:
    """The expectation did not hold; nothing was changed.

    is_queued: the key may well be free, but others asked first (`stores.port.SupportsFifoQueue`): wait for your turn.
    """

    is_queued: bool = False


@frozen
class Absent:
    """There is no such record; nothing was changed."""

    store_now: float | None = None


@frozen
class Removed:
    """The record is gone by this very command. store_now is the store's time of the answer, where it says it."""

    store_now: float | None = None


@frozen
class Listing:
    """The records under a prefix, strongly consistent, in no promised order."""

    entries: tuple[tuple[Name, Snapshot], ...]


@frozen
class Paused:
    """The pause is over. seconds is how long it was meant to be; changed: the store saw the key change.

    is_turn: the store says that the lock is free and that it is this waiter's turn, so that asking is worth a write.
    """

    seconds: float
    changed: bool = False
    is_turn: bool = False


# --- commands ----------------------------------------------------------------------------------------------------

A = TypeVar("A")


class Command(Generic[A]):
    """What a script yields; the parameter is what it is sent back."""

    __slots__ = ()


@frozen
class Create(Command["Snapshot | Conflict"]):
    """Write the record if there is none. lifetime: its ttl in seconds; the driver adds what people read (`expires_at`).

    waiter_id: who wants the lock, the same text through all attempts of one acquisition; a store that keeps a queue
    lets nobody overtake, and what is granted leaves the queue in the same step. Empty for what is not a lock.
    min_retention: seconds after its last write for which a server that drops records must keep this one; each `Extend`
    renews that; 0 is forever.
    renew_every: seconds between two renewals while the store answers; 0 if it is not known.
    forgotten: fields to add where the store knows that it has dropped a record of this name which was never removed; a
    store that drops none leaves them out, and so does one that drops all by its clock.
    """

    name: Name
    fields: Mapping[str, str]
    lifetime: float = 0.0
    waiter_id: str = ""
    min_retention: float = 0.0
    renew_every: float = 0.0
    forgotten: Mapping[str, str] = field(default_factory=dict)


@frozen
class Read(Command["Snapshot | Absent"]):
    """Return the record as it stands."""

    name: Name


@frozen
class Replace(Command["Snapshot | Conflict | Absent"]):
    """Write a new record, of a new incarnation, if the one there has exactly this incarnation and revision.

    waiter_id, min_retention, renew_every: as for `Create`.
    """

    name: Name
    fields: Mapping[str, str]
    incarnation: str
    revision: str
    lifetime: float = 0.0
    waiter_id: str = ""
    min_retention: float = 0.0
    renew_every: float = 0.0


@frozen
class Extend(Command["Snapshot | Conflict | Absent"]):
    """Merge fields into the record and renew its life, if it has this incarnation (and revision, where given).

    The incarnation stays, the revision and `updated_at` move, even if no field changes (except where the store's clock
    is SERVER_EXPIRES: there nobody judges by them). An incarnation of None expects only that there is a record.
    """

    name: Name
    fields: Mapping[str, str]
    incarnation: str | None
    revision: str | None = None
    lifetime: float = 0.0


@frozen
class Remove(Command["Removed | Conflict | Absent"]):
    """Delete the record if it has this incarnation (and revision, where given)."""

    name: Name
    incarnation: str
    revision: str | None = None


@frozen
class List(Command[Listing]):
    """Return every record of a space; of one key and below one part, where these are given."""

    space: Space
    key: str | None = None
    part_prefix: str = ""

    def shows(self, name: Name) -> bool:
        """Return whether a record of this name belongs to the listing."""
        is_there = name.space is self.space and self.key in (None, name.key)
        return is_there and name.part.startswith(self.part_prefix)


@frozen
class Pause(Command[Paused]):
    """Come back after a time that the driver draws between the two bounds (seconds), or when the key changes.

    Never performed by a store itself: see `stores.port.SupportsWatch`. waiter_id: who waits for the lock, and so wants
    a place in the queue of a store that keeps one; empty for a reader. wake_on_change: whether a change ends it early;
    not after an unknown outcome, where it may be our own request that changes the key, again and again. over_in:
    whatever is drawn, come back then, plus up to `spread` at random: what was seen last can be over by that time
    (seconds).
    """

    name: Name
    at_least: float
    at_most: float
    waiter_id: str = ""
    wake_on_change: bool = True
    over_in: float = inf
    spread: float = 0.0

    def draw(self, dice: Callable[[], float]) -> float:
        """Return how long to pause. dice gives a number from 0 to 1, anew each time."""
        drawn = self.at_least + (self.at_most - self.at_least) * dice()
        return drawn if drawn <= self.over_in else self.over_in + self.spread * dice()


# --- scripts -----------------------------------------------------------------------------------------------------


@frozen
class Reply(Generic[A]):
    """An answer with the only two instants a script ever sees, both in seconds on the caller's boot clock."""

    answer: A
    sent_at: float
    received_at: float


T = TypeVar("T")
Script: TypeAlias = script.Script[Command[Any], Reply[Any], T]
"""A script of the protocol: yields commands, is sent replies, returns its result."""


def ask(command: Command[A]) -> Script[Reply[A]]:
    """Yield one command and give its reply, with the type that belongs to it."""
    reply: Reply[A] = yield command
    return reply


class OutOfTime(StoreUnavailable):
    """The driver had no time left to send this request. Never leaves the engine alone: see `acquire`."""


# --- what a store says of itself ---------------------------------------------------------------------------------


class StoreClock(Enum):
    """What a store's answers tell about its own time."""

    ONE_CLOCK = "updated_at and store_now are readings of one clock"
    TWO_CLOCKS = "store_now comes from another clock than updated_at and is coarse: calibrate, or ask one clock twice"
    NONE = "answers carry no time: observe"
    SERVER_EXPIRES = "the server drops a record that is not renewed: what stands there is alive, and nobody else judges"


class TokenSource(Enum):
    """Where fencing tokens come from."""

    NATIVE = "the store counts one with every grant, in the statement that grants"
    DRAWN = "drawn from a companion record and published into the lock's record"
    NONE = "none: sequencer() refuses"


@dataclass(frozen=True, slots=True)
class Traits:
    """What the protocol must know of a store. Durations are seconds.

    clock_skew_max: the greatest error of store_now against updated_at that is tolerated. clock_resolution: the
    resolution of store_now. ttl_recommended: a shorter ttl draws a warning. foreign: records of other implementations
    are respected as locks; elsewhere a record without our version is refused. pace: how far two changes of one record
    have to be apart, or the second may be turned away with an unknown outcome.
    """

    scheme: str
    guarantee: str
    clock: StoreClock
    tokens: TokenSource
    clock_skew_max: float = 0.0
    clock_resolution: float = 0.0
    ttl_recommended: float = 1.0
    foreign: bool = False
    pace: float = 0.0


FIELDS_BYTES_MAX: Final = 8192
"""All fields of a record together, keys included, in UTF-8 bytes (the limit of GCS metadata)."""
