"""The last known state of each store, and the pages' views of it."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lockstead.dashboard.filters import Filter
from lockstead.dashboard.rows import URGENCY, Row, row_of, shown_state
from lockstead.monitor.rounds import Round
from lockstead.views import LockInfo

log = logging.getLogger("lockstead.dashboard")

ROWS_MAX: Final = 200
"""Locks that a page shows; filters find the rest."""

VIEWS_KEPT: Final = 64
"""Filters whose views and pages are kept until the next round."""

ASIDE_FROM: Final = 5_000
"""Locks from which on a filter is applied in a thread, one filter at a time: the other pages do not wait for it."""

_RANK: Final = {state: rank for rank, state in enumerate(URGENCY)}


class Entry(NamedTuple):
    """A lock of a listing. Entries are in the order in which they are shown."""

    rank: int
    key: str
    store: str
    held: LockInfo

    @property
    def state(self) -> str:
        """The state of the lock when it was listed."""
        return URGENCY[self.rank]


@dataclass(frozen=True, slots=True)
class StoreState:
    """What is known of a store. read_at: epoch seconds of the last listing that succeeded; None if none has.

    error: why it does not answer now, in one line. age: seconds since read_at.
    """

    name: str
    read_at: float | None
    age: float | None
    locks: int
    took: float | None
    error: str | None

    @property
    def is_down(self) -> bool:
        """Whether the last listing failed."""
        return self.error is not None


@dataclass(frozen=True, slots=True)
class View:
    """The locks that a filter admits, at one version of the board: the first rows, and how many more there are.

    states: how many admitted locks are in each state, the most urgent state first.
    """

    version: int
    rows: tuple[Row, ...]
    found: int
    total: int
    states: Mapping[str, int]
    stores: tuple[StoreState, ...]

    @property
    def more(self) -> int:
        """How many admitted locks are not shown."""
        return self.found - len(self.rows)


class Listing:
    """The last known locks of one store: a watcher of its rounds. observe: told of each listing that succeeded.

    listed_at: epoch seconds of the end of the last one; the ages in its records are those of that instant.
    """

    def __init__(
        self, name: str, changed: Callable[[], None], observe: Callable[[str, float, dict[str, LockInfo]], None]
    ) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self.locks: dict[str, LockInfo] = {}
        self.read_at: float | None = None
        self.took: float | None = None
        self.error: str | None = None
        self.rounds = 0
        self._changed = changed
        self._observe = observe
        self.listed_at = 0.0
        self.ranks: Counter[int] = Counter()
        self._at = 0.0
        self._found: dict[str, Entry] = {}

    def began(self, at: float) -> None:
        """Begin a listing."""
        self._at = at
        self._found = {}

    def saw(self, info: LockInfo) -> None:
        """Note a lock."""
        self._found[info.key] = Entry(_RANK[shown_state(info, self._at)], info.key, self.name, info)

    def ended(self, done: Round) -> None:
        """Publish the listing. After an error the last known state stays."""
        found, self._found = self._found, {}
        self.rounds += 1
        self._answered(done.error)
        if done.error is None:
            self.locks = {key: one.held for key, one in found.items()}
            self.read_at, self.took = done.began_at, done.took
            self.listed_at = done.began_at + done.took
            self.entries = sorted(found.values())
            self.ranks = Counter(one.rank for one in self.entries)
            self._observe(self.name, self.listed_at, self.locks)
        self._changed()

    def failed(self, error: str) -> None:
        """Note that the store could not even be opened."""
        self.rounds += 1
        self._answered(error)
        self._changed()

    def _answered(self, error: str | None) -> None:
        if error is not None and self.error is None:
            log.warning("%s does not answer: %s", self.name, error)
        if error is None and self.error is not None:
            log.warning("%s answers again", self.name)
        self.error = error

    def state(self, now: float) -> StoreState:
        """Return what is known of the store."""
        age = None if self.read_at is None else max(0.0, now - self.read_at)
        return StoreState(self.name, self.read_at, age, len(self.entries), self.took, self.error)


@dataclass(slots=True)
class Board:
    """All stores, and a version that grows with every round."""

    wall: Callable[[], float] = time.time
    rows_max: int = ROWS_MAX
    listings: list[Listing] = field(default_factory=list)
    version: int = 0
    is_closed: bool = False
    _views: dict[str, View] = field(default_factory=dict)
    _filtering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self) -> None:
        """Note that a store was listed, and wake those that wait for it."""
        self.version += 1
        self._views.clear()
        event, self._event = self._event, asyncio.Event()
        event.set()

    def close(self) -> None:
        """End every wait for a version: the application stops."""
        self.is_closed = True
        self._event.set()

    async def next(self, version: int) -> int | None:
        """Wait for a version after this one, and return it; None if the application stops.

        Whoever is slow skips versions.
        """
        while self.version <= version and not self.is_closed:
            await self._event.wait()
        return None if self.is_closed else self.version

    def listing(self, store: str) -> Listing | None:
        """Return the listing of a store by its name."""
        return next((one for one in self.listings if one.name == store), None)

    def stores(self) -> tuple[StoreState, ...]:
        """Return what is known of each store."""
        now = self.wall()
        return tuple(one.state(now) for one in self.listings)

    async def view(self, wanted: Filter) -> View:
        """Return what a filter shows now; the same object for all who ask for it in one round."""
        if (known := self._views.get(wanted.query)) is not None:
            return known
        if wanted.is_empty or sum(len(one.entries) for one in self.listings) <= ASIDE_FROM:
            return self._kept(wanted, self.version, self._made(wanted))
        async with self._filtering:
            if (known := self._views.get(wanted.query)) is not None:
                return known
            version = self.version
            return self._kept(wanted, version, await asyncio.to_thread(self._made, wanted))

    def _kept(self, wanted: Filter, version: int, made: View) -> View:
        if version == self.version:
            if len(self._views) >= VIEWS_KEPT:
                self._views.pop(next(iter(self._views)))
            self._views[wanted.query] = made
        return made

    def _made(self, wanted: Filter) -> View:
        version, stores = self.version, self.stores()
        listed_at = {one.name: one.listed_at for one in self.listings}
        parts: Sequence[list[Entry]] = [one.entries for one in self.listings]
        count = sum((one.ranks for one in self.listings), Counter[int]())
        if not wanted.is_empty:
            admits = wanted.matcher()
            parts = [[one for one in part if admits(one.store, one.held, one.state)] for part in parts]
            count = Counter(one.rank for part in parts for one in part)
        shown = [one for one, _ in zip(heapq.merge(*parts), range(self.rows_max), strict=False)]
        return View(
            version=version,
            rows=tuple(row_of(one.store, one.held, listed_at[one.store]) for one in shown),
            found=sum(len(part) for part in parts),
            total=sum(len(one.entries) for one in self.listings),
            states={state: count[rank] for rank, state in enumerate(URGENCY) if count[rank]},
            stores=stores,
        )
