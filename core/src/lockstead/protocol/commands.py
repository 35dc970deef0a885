"""The commands that a script may send to a store, and the store's answers. One command is one request.

Must not know how a store performs them, or what the fields of a record mean.

If a store has no answer, it raises `StoreUnavailable` (never sent), `OutcomeUnknown` (may be applied) or `StoreRefused`
(will never be applied); the driver throws the error into the script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any, Final, Generic, TypeAlias, TypeVar

from lockstead import script
from lockstead.errors import StoreRefused, StoreUnavailable
from lockstead.frozen import frozen
from lockstead.values import Name, Space

# --- answers -----------------------------------------------------------------------------------------------------


@frozen
class Snapshot:
    """One record as the store returned it in one answer.

    incarnation changes with every grant and is never reused; revision changes with every write within an incarnation,
    and the store counts it. Both are opaque, and compared only for equality.
    updated_at and store_now are seconds on the *store's* clock: when the record last changed, and the time of this
    answer; None if the answer does not contain them. dead: the store knows that the writer no longer runs.
    token is the fencing token that the store itself counted; None for stores that do not count tokens.

    Two more where the server drops expired records: renewed_at is the instant (the caller's boot clock) at which the
    request that last renewed the record was sent, if that was an earlier request than this command; lifetime is how
    long the server keeps the record from then on (seconds), if that is less than was requested.
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
    """The expected state was not found; nothing was changed.

    is_queued: the key may be free, but earlier waiters go first (`stores.port.SupportsFifoQueue`).
    """

    is_queued: bool = False


@frozen
class Absent:
    """There is no such record; nothing was changed."""

    store_now: float | None = None


@frozen
class Removed:
    """This command removed the record. store_now is the store's time of the answer, None if it is not known."""

    store_now: float | None = None


@frozen
class Listing:
    """The records under a prefix, strongly consistent, in no particular order; of a listing in pages, one page.

    next_cursor: the cursor of the next page; None after the last one.
    """

    entries: tuple[tuple[Name, Snapshot], ...]
    next_cursor: str | None = None


class Cursors:
    """The cursors of one listing. Where they go round in a circle, it would not end (Brent's algorithm finds it)."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._kept: str | None = None
        self._count = 0

    def passed(self, cursor: str | None) -> str | None:
        """Return the cursor of the next page; StoreRefused if the listing goes round in a circle."""
        if cursor is not None and cursor == self._kept:
            raise StoreRefused(f"{self._scheme}: the listing does not get on: the store gave the same cursor twice")
        self._count += 1
        if self._count & (self._count - 1) == 0:
            self._kept = cursor
        return cursor


@frozen
class Paused:
    """The pause has ended. seconds: its planned length; changed: the store reported a change of the key.

    is_turn: the store reported that the lock is free and that it is this waiter's turn, so a write is worthwhile.
    """

    seconds: float
    changed: bool = False
    is_turn: bool = False


# --- commands ----------------------------------------------------------------------------------------------------

A = TypeVar("A")


class Command(Generic[A]):
    """A command that a script yields; the type parameter is that of the answer."""

    __slots__ = ()


@frozen
class Create(Command["Snapshot | Conflict"]):
    """Write the record if there is none. lifetime: its ttl in seconds; the driver adds the informational `expires_at`.

    waiter_id: identifies the waiter, the same text for all attempts of one acquisition; in a store with a queue no
    waiter overtakes another, and a granted one leaves the queue in the same step. Empty for records that are no locks.
    min_retention: seconds after its last write for which a server that drops records must keep this one; each `Extend`
    restarts that time; 0 means forever.
    renew_every: seconds between two renewals while the store answers; 0 if it is not known.
    forgotten: fields to add if the store knows that it dropped a record of this name that was never removed. Stores
    that drop no records, or that drop all by their clock, do not add them.
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
    """Read the record."""

    name: Name


@frozen
class Replace(Command["Snapshot | Conflict | Absent"]):
    """Write a new record, of a new incarnation, if the current one has exactly this incarnation and revision.

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
    """Merge fields into the record and restart its lifetime, if it has this incarnation (and revision, if given).

    The incarnation does not change; the revision and `updated_at` do, even if no field changes (except in a store whose
    clock is SERVER_EXPIRES, where no client judges by them). An incarnation of None expects only that a record exists.
    """

    name: Name
    fields: Mapping[str, str]
    incarnation: str | None
    revision: str | None = None
    lifetime: float = 0.0


@frozen
class Remove(Command["Removed | Conflict | Absent"]):
    """Delete the record if it has this incarnation (and revision, if given)."""

    name: Name
    incarnation: str
    revision: str | None = None


@frozen
class List(Command[Listing]):
    """List the records of a space; only those of `key` and with `part_prefix`, if given.

    page: about how many records to return, at least 1; None for all at once. A page may have more or fewer, even none.
    A store that cannot page returns all. cursor: the `next_cursor` of the page before, of the same listing; the store
    raises StoreRefused for one that is not its own, or out of date. A record that exists from the first page to the
    last is in at least one, perhaps in several; the pages together are no snapshot.
    """

    space: Space
    key: str | None = None
    part_prefix: str = ""
    page: int | None = None
    cursor: str | None = None

    def shows(self, name: Name) -> bool:
        """Return whether a record of this name belongs to the listing."""
        is_there = name.space is self.space and self.key in (None, name.key)
        return is_there and name.part.startswith(self.part_prefix)


@frozen
class Pause(Command[Paused]):
    """Wait for a random time between the two bounds (seconds), which the driver draws, or until the key changes.

    Never performed by a store: see `stores.port.SupportsWatch`. waiter_id: the waiter for the lock, which gets a place
    in the store's queue, if it has one; empty for a caller that only reads. wake_on_change: whether a change ends the
    pause early; false after an unknown outcome, when our own request may change the key, again and again. over_in: the
    maximum in seconds, plus up to `spread` at random: the record that was seen last can expire then.
    """

    name: Name
    at_least: float
    at_most: float
    waiter_id: str = ""
    wake_on_change: bool = True
    over_in: float = inf
    spread: float = 0.0

    def draw(self, dice: Callable[[], float]) -> float:
        """Return the length of the pause in seconds. dice returns a new random number from 0 to 1 with each call."""
        drawn = self.at_least + (self.at_most - self.at_least) * dice()
        return drawn if drawn <= self.over_in else self.over_in + self.spread * dice()


# --- scripts -----------------------------------------------------------------------------------------------------


@frozen
class Reply(Generic[A]):
    """An answer, and when the command was sent and the answer received, in seconds on the caller's boot clock.

    A script gets no other instants.
    """

    answer: A
    sent_at: float
    received_at: float


T = TypeVar("T")
Script: TypeAlias = script.Script[Command[Any], Reply[Any], T]
"""A script of the protocol: yields commands, is sent replies, returns its result."""


def ask(command: Command[A]) -> Script[Reply[A]]:
    """Yield one command and return its reply, with the matching type."""
    reply: Reply[A] = yield command
    return reply


class OutOfTime(StoreUnavailable):
    """The driver had no time left to send this request. Never raised to the user as such: see `acquire`."""


# --- traits of a store -------------------------------------------------------------------------------------------


class StoreClock(Enum):
    """Which times a store's answers contain."""

    ONE_CLOCK = "updated_at and store_now are readings of one clock"
    TWO_CLOCKS = "store_now comes from another clock than updated_at and is coarse: calibrate, or ask one clock twice"
    NONE = "answers carry no time: observe"
    SERVER_EXPIRES = "the server drops a record that is not renewed: a record that exists is alive; no client judges"


class TokenSource(Enum):
    """The source of fencing tokens."""

    NATIVE = "the store counts one with every grant, in the statement that grants"
    DRAWN = "drawn from a companion record and published into the lock's record"
    NONE = "none: sequencer() refuses"


@dataclass(frozen=True, slots=True)
class Traits:
    """What the protocol must know of a store. Durations are seconds.

    clock_skew_max: the maximum tolerated error of store_now relative to updated_at. clock_resolution: the resolution of
    store_now. ttl_recommended: a shorter ttl emits a warning. foreign: records of other implementations are respected
    as locks; otherwise a record without our version is refused. pace: the minimum time between two changes of one
    record; a change that comes sooner may be rejected with an unknown outcome. draws_by_clock: the tokens of a new
    companion begin at the store's clock in milliseconds, above those of one that was removed.
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
    draws_by_clock: bool = False


FIELDS_BYTES_MAX: Final = 8192
"""Maximum size of all fields of a record together, keys included, in UTF-8 bytes (the limit of GCS metadata)."""
