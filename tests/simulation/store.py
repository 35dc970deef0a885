"""The simulated store: atomic compare-and-swap, with three kinds of clocks and tokens, and a queue of waiters.

Must not know what fields mean. Its time is computed from true time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.values import Name, Space
from tests.simulation.world import BootClock, World

SHARED: Final = Traits("shared", "simulated", StoreClock.ONE_CLOCK, TokenSource.NATIVE)
DATED: Final = Traits(
    "dated",
    "simulated",
    StoreClock.TWO_CLOCKS,
    TokenSource.DRAWN,
    clock_skew_max=2.0,
    clock_resolution=1.0,
    foreign=True,
    draws_by_clock=True,
)
NONE: Final = Traits("none", "simulated", StoreClock.NONE, TokenSource.NATIVE)
PROFILES: Final = (SHARED, DATED, NONE)

_SCATTER: Final = 2_654_435_761
"""Odd, so that multiples modulo 2**32 do not repeat: incarnations are unique but not increasing."""

SESSION_TTL: Final = 4.0
"""Seconds without a renewal after which a process loses its places in the queue."""

Session = tuple[str, int]
"""A process's name and epoch."""


@dataclass(slots=True)
class Entry:
    """One record. updated_at and created_ms are the store's time, committed_at is true time. token: of its grant.

    min_retention and expires_at (0: never) are only for a store that expires records.
    """

    fields: Mapping[str, str]
    incarnation: str
    revision: int
    updated_at: float
    created_ms: int
    committed_at: float
    token: int
    min_retention: float = 0.0
    expires_at: float = 0.0


class WaitQueue:
    """The waiters of each record in order of arrival. A waiter that has left or was granted never joins again.

    Like in etcd and ZooKeeper, the places of a process belong to its session and end with it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiters: dict[Name, dict[str, Session]] = {}
        self._renewed_at: dict[Session, float] = {}
        self._gone: set[str] = set()

    def join(self, name: Name, waiter_id: str, session: Session) -> None:
        """Add a waiter unless it has a place, and renew its session."""
        self.renew(session)
        if waiter_id not in self._gone:
            self._waiters.setdefault(name, {}).setdefault(waiter_id, session)

    def renew(self, session: Session) -> None:
        """Renew a session."""
        self._renewed_at[session] = self._world.now

    def has(self, session: Session) -> bool:
        """Return whether any place belongs to a session."""
        return any(session in waiters.values() for waiters in self._waiters.values())

    def leave(self, name: Name, waiter_id: str) -> None:
        """Remove a waiter permanently."""
        self._gone.add(waiter_id)
        self._waiters.get(name, {}).pop(waiter_id, None)

    def first(self, name: Name) -> str | None:
        """Return the first waiter; None if there is none."""
        waiters, oldest = self._waiters.get(name, {}), self._world.now - SESSION_TTL
        for waiter_id, session in list(waiters.items()):
            if self._renewed_at[session] > oldest:
                return waiter_id
            del waiters[waiter_id]
        return None


class SimulatedStore:
    """A store with one clock for `updated` and, if it has two clocks, another for `Date`.

    skew: seconds that `Date` is ahead of `updated`. order: the number of each grant. touched_at: true instants of the
    last writes. on_grant is called with every new incarnation: name, entry, and the entry it replaced. queue: its
    waiters, if they queue.
    """

    def __init__(self, world: World, traits: Traits, clock: BootClock, skew: float = 0.0) -> None:
        self._world = world
        self.traits = traits
        self._clock = clock
        self._has_date = traits.clock in (StoreClock.ONE_CLOCK, StoreClock.TWO_CLOCKS)
        is_dated = traits.clock is StoreClock.TWO_CLOCKS
        self._skew = skew if is_dated else 0.0
        self._step = traits.clock_resolution if is_dated else 0.0
        self._is_native = traits.tokens is TokenSource.NATIVE
        self._grants = 0
        self.entries: dict[Name, Entry] = {}
        self.order: dict[str, int] = {}
        self.touched_at: dict[Name, float] = {}
        self.on_grant: Callable[[Name, Entry, Entry | None], None] | None = None
        self.queue = WaitQueue(world)

    def perform(self, command: Command[Any], session: Session | None = None, sent_at: float | None = None) -> Any:
        """Carry out one command at this true instant.

        sent_at: when its process sent it (by its own clock); None: it no longer waits for the reply.
        """
        del session, sent_at
        now = self.time()
        if isinstance(command, List):
            shown = ((name, self._show(one, now, name)) for name, one in self.entries.items() if command.shows(name))
            return Listing(tuple(shown))
        entry = self.entries.get(command.name)  # type: ignore[attr-defined]  # every other command has it
        match command:
            case Create():
                return Conflict() if entry is not None else self._create(command, now, None)
            case _ if entry is None:
                return Absent(self.date(now))
            case Read():
                return self._show(entry, now, command.name)
            case Extend():
                return self._extend(command, entry, now)
            case Remove():
                return self._remove(command, entry, now)
            case Replace():
                is_expected = (entry.incarnation, str(entry.revision)) == (command.incarnation, command.revision)
                return self._create(command, now, entry) if is_expected else Conflict()

    def damage(self, name: Name, fields: Mapping[str, str]) -> None:
        """Overwrite a record as an administrator could; the store counts this as a change."""
        entry = self.entries[name]
        entry.fields = fields
        entry.revision += 1
        entry.updated_at = self.time()
        entry.committed_at = self.touched_at[name] = self._world.now

    def erase(self, name: Name) -> None:
        """Delete a record as an administrator could."""
        del self.entries[name]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def set_clock(self, seconds: float) -> None:
        """Set the clock forward or back, as an administrator or a time service does."""
        self._clock.offset += seconds

    def time(self) -> float:
        """Return the store's time, which is used for `updated`."""
        return self._clock.at(self._world.now)

    def true_span(self, store_seconds: float) -> float:
        """Convert a span of the store's time to true seconds."""
        return store_seconds / self._clock.rate

    def date(self, now: float) -> float | None:
        """Return the time in a reply (`Date`), or None; now is the store's time."""
        if not self._has_date:
            return None
        step = self._step
        return now if not step else math.floor((now + self._skew) / step) * step

    def _show(self, entry: Entry, now: float, name: Name) -> Snapshot:
        token = entry.token if self._is_native else None
        if token is None and name.space is Space.COMPANION:
            token = entry.created_ms + entry.revision
        if not self._has_date:
            return Snapshot(entry.fields, entry.incarnation, str(entry.revision), token=token)
        return Snapshot(entry.fields, entry.incarnation, str(entry.revision), entry.updated_at, self.date(now), token)

    def _grant(self, name: Name, fields: Mapping[str, str], now: float, was: Entry | None) -> Snapshot:
        incarnation = str((self._grants + 1) * _SCATTER % 2**32)
        updated_at = now if was is None else max(was.updated_at, now)
        return self._show(self._record_grant(name, fields, incarnation, updated_at, now, was), now, name)

    def _record_grant(
        self, name: Name, fields: Mapping[str, str], incarnation: str, updated_at: float, now: float, was: Entry | None
    ) -> Entry:
        """Record a new incarnation, and report it."""
        self._grants = self.order[incarnation] = self._grants + 1
        entry = Entry(fields, incarnation, 1, updated_at, int(now * 1000), self._world.now, self._grants)
        self.entries[name] = entry
        self.touched_at[name] = self._world.now
        if self.on_grant is not None:
            self.on_grant(name, entry, was)
        return entry

    def _create(self, command: Create | Replace, now: float, was: Entry | None) -> Snapshot | Conflict:
        """Write a new incarnation, unless others are before the command's waiter; it leaves the queue."""
        if command.waiter_id:
            if self.queue.first(command.name) not in (None, command.waiter_id):
                return Conflict(is_queued=True)
            self.queue.leave(command.name, command.waiter_id)
        return self._grant(command.name, command.fields, now, was)

    def _extend(self, command: Extend, entry: Entry, now: float) -> Snapshot | Conflict:
        if not _is_expected(command, entry):
            return Conflict()
        if command.fields:
            entry.fields = {**entry.fields, **command.fields}
        entry.revision += 1
        entry.updated_at = max(entry.updated_at, now)
        entry.committed_at = self.touched_at[command.name] = self._world.now
        return self._show(entry, now, command.name)

    def _remove(self, command: Remove, entry: Entry, now: float) -> Removed | Conflict:
        if not _is_expected(command, entry):
            return Conflict()
        del self.entries[command.name]
        return Removed(self.date(now))


def _is_expected(command: Extend | Remove, entry: Entry) -> bool:
    """Return whether a record is the one that a command expects."""
    if command.incarnation is not None and entry.incarnation != command.incarnation:
        return False
    return command.revision is None or str(entry.revision) == command.revision
