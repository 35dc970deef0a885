"""Rounds: one listing of a store at a time, read once and shown to every watcher.

A store that does not answer costs a round and nothing else: what was known stays, and the next round asks again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from lockstead.aio_lock import AsyncClient
from lockstead.errors import StoreError
from lockstead.protocol.record import shortened
from lockstead.reading import clean
from lockstead.views import LockInfo

ERROR_BYTES_MAX: Final = 300

PAUSE_MAX: Final = 30.0
"""Longest pause in seconds after failures, unless `every` is longer."""


@dataclass(frozen=True, slots=True)
class Round:
    """One listing of a store. began_at: seconds since the epoch; took: seconds; locks: how many entries it had.

    store: the URL without credentials. error: why the store did not answer, in one line; None if it did.
    """

    store: str
    number: int
    began_at: float
    took: float
    locks: int
    error: str | None = None


class Watcher(Protocol):
    """Looks at the locks of a store, round after round. Called in the event loop, and must not block it."""

    def began(self, at: float) -> None:
        """Note that a round began. at: seconds since the epoch."""
        ...

    def saw(self, info: LockInfo) -> None:
        """Note one lock. The same lock may be shown twice in a round."""
        ...

    def ended(self, done: Round) -> None:
        """Note that a round ended. After an error, what was shown in it is incomplete."""
        ...


class Rounds:
    """The rounds of one store: `run` them until they are stopped, `wake` them for one at once."""

    def __init__(
        self,
        client: AsyncClient,
        watchers: Sequence[Watcher],
        every: float,
        *,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.store = client._engine.store.url
        self._client = client
        self._watchers = watchers
        self._every = every
        self._wall = wall
        self._chance = chance
        self._number = 0
        self._failures = 0
        self._is_wanted = asyncio.Event()

    def wake(self) -> None:
        """Begin the next round at once."""
        self._is_wanted.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Run rounds until `stop` is set; one that is under way is cancelled."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._is_wanted.clear()
                one = asyncio.ensure_future(self._one_and_pause())
                await asyncio.wait([one, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not one.done():
                    one.cancel()
                with suppress(asyncio.CancelledError):
                    await one
        finally:
            stopped.cancel()

    async def _one_and_pause(self) -> None:
        began = time.monotonic()
        await self.once()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.pause() - (time.monotonic() - began))):
                await self._is_wanted.wait()

    def pause(self) -> float:
        """Return the seconds from the beginning of a round to the next: after failures longer, and random."""
        if not self._failures:
            return self._every
        longest = max(self._every, PAUSE_MAX)
        return min(longest, self._every * 2.0 ** min(self._failures, 16)) * (0.5 + self._chance() / 2)

    async def once(self) -> Round:
        """Run one round."""
        self._number += 1
        at, began, locks, error = self._wall(), time.monotonic(), 0, None
        for watcher in self._watchers:
            watcher.began(at)
        try:
            async with aclosing(self._client.scan()) as shown:
                async for info in shown:
                    locks += 1
                    for watcher in self._watchers:
                        watcher.saw(info)
        except StoreError as failed:
            error = shortened(clean(str(failed)), ERROR_BYTES_MAX) or type(failed).__name__
        self._failures = 0 if error is None else self._failures + 1
        done = Round(self.store, self._number, at, time.monotonic() - began, locks, error)
        for watcher in self._watchers:
            watcher.ended(done)
        return done


async def rounds(client: AsyncClient, watchers: Sequence[Watcher], every: float, stop: asyncio.Event) -> None:
    """Run the rounds of a store until `stop` is set. every: seconds from one beginning to the next."""
    await Rounds(client, watchers, every).run(stop)
