"""Rounds of a store while somebody looks: one listing for all tabs, and none while nobody is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from lockstead.aio_lock import AsyncClient, connect_async
from lockstead.dashboard.board import Listing
from lockstead.dashboard.rows import short
from lockstead.errors import StoreError
from lockstead.monitor.rounds import Rounds, Watcher
from lockstead.reading import clean
from lockstead.stores import url as urls

log = logging.getLogger("lockstead.dashboard")

LINGER: Final = 30.0
"""Seconds for which rounds go on after the last page was asked for, unless a round takes longer."""

REOPEN: Final = 5.0
"""Seconds between attempts to open a store."""


class Watch:
    """The rounds of one store. always: even if nobody looks."""

    def __init__(
        self, store: str | AsyncClient, every: float, wall: Callable[[], float] = time.time, *, always: bool = False
    ) -> None:
        self._given = store
        self.client: AsyncClient | None = None if isinstance(store, str) else store
        self.name = named(store)
        self.listing: Listing
        self.watchers: list[Watcher] = []
        self._wall = wall
        self._every = every
        self._always = always
        self._viewers = 0
        self._until = 0.0
        self._stop = asyncio.Event()
        self._looked = asyncio.Event()
        self._rounds: Rounds | None = None

    # --- who looks -----------------------------------------------------------------------------------------------

    def looked(self) -> None:
        """Note that a page was asked for: the store is listed for a while."""
        self._until = asyncio.get_running_loop().time() + LINGER + 2 * self._every
        self._looked.set()

    def arrive(self) -> None:
        """Note that a tab was opened."""
        self._viewers += 1
        self._looked.set()

    def leave(self) -> None:
        """Note that a tab was closed."""
        self._viewers -= 1
        self.looked()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody looks."""
        return self._always or self._viewers > 0 or asyncio.get_running_loop().time() < self._until

    def wake(self) -> None:
        """Begin a round at once."""
        if self._rounds is not None:
            self._rounds.wake()

    # --- rounds --------------------------------------------------------------------------------------------------

    @property
    def is_listing(self) -> bool:
        """Whether rounds are under way."""
        return self._rounds is not None

    async def run(self) -> None:
        """Run rounds while somebody looks, until cancelled."""
        while True:
            while not self.is_wanted:
                self._looked.clear()
                await self._looked.wait()
            try:
                await self._run_while_wanted()
            except StoreError as error:
                self.listing.failed(short(clean(str(error))))
                await asyncio.sleep(REOPEN)
            except Exception as error:
                log.exception("the rounds of %s failed", self.name)
                self.listing.failed(f"internal error: {type(error).__name__}")
                await asyncio.sleep(REOPEN)

    async def _run_while_wanted(self) -> None:
        if self.client is None:
            self.client = await connect_async(str(self._given))
        stop = asyncio.Event()
        self._rounds = Rounds(self.client, self.watchers, self._every, wall=self._wall)
        running = asyncio.ensure_future(self._rounds.run(stop))
        try:
            while self.is_wanted and not running.done():
                await asyncio.wait([running], timeout=LINGER)
        finally:
            self._rounds = None
            stop.set()
            await running

    async def close(self) -> None:
        """Close the store if it was opened here."""
        if isinstance(self._given, str) and self.client is not None:
            client, self.client = self.client, None
            await client.close()


def named(store: str | AsyncClient) -> str:
    """Return the name by which a store is shown: its URL without credentials."""
    if isinstance(store, AsyncClient):
        return clean(store._engine.store.url)
    return clean(urls.printable(store))
