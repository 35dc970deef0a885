"""The state behind the pages of one application: stores, their rounds, what is rendered of them, what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lockstead.aio_lock import AsyncClient
from lockstead.dashboard.access import Access
from lockstead.dashboard.board import VIEWS_KEPT, Board, Listing
from lockstead.dashboard.describing import Details, timeline
from lockstead.dashboard.filters import Filter
from lockstead.dashboard.history import History
from lockstead.dashboard.recording import Recorder
from lockstead.dashboard.rendering import Rendered, environment
from lockstead.dashboard.rows import DESCRIBED_MAX, row_of
from lockstead.dashboard.strip import strip
from lockstead.dashboard.watching import Watch
from lockstead.monitor.names import LockNames
from lockstead.monitor.openmetrics import Metrics


class Dashboard:
    """What one application shows. always: list the stores even if nobody looks, for the history."""

    def __init__(
        self,
        stores: Sequence[str | AsyncClient],
        access: Access,
        *,
        every: float,
        history: History,
        always: bool,
        names: LockNames,
        rows_max: int,
        title: str,
        wall: Callable[[], float],
    ) -> None:
        self.access = access
        self.wall = wall
        self.title = title
        self.board = Board(wall, rows_max)
        self.templates = environment()
        self.metrics = Metrics(names)
        self.recorder = Recorder(history)
        self.details = Details()
        self.tabs = 0
        self._rendered: dict[str, Rendered] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.watches: dict[str, Watch] = {}
        for store in stores:
            watch = Watch(store, every, wall, always=always)
            if watch.name in self.watches:
                raise ValueError(f"the store {watch.name} is given twice")
            watch.listing = Listing(watch.name, self.board.changed, self.recorder.listed)
            watch.watchers += [watch.listing, self.metrics.of(watch.name)]
            self.watches[watch.name] = watch
            self.board.listings.append(watch.listing)

    # --- what runs beside ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the rounds, if they do not run in this event loop: a mounted application is not told of the start."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop = loop
        self.recorder.start()
        jobs = [self.recorder.run(), *(watch.run() for watch in self.watches.values())]
        self._tasks = [loop.create_task(job) for job in jobs]

    async def stop(self) -> None:
        """Stop the rounds, close what was opened here, and end the streams of open pages."""
        tasks, self._tasks = self._tasks, []
        if tasks:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await self.recorder.settled()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for watch in self.watches.values():
            await watch.close()
        await self.recorder.close()

    async def look(self, limit: float) -> None:
        """Note that somebody looks; wait at most `limit` seconds for the first listing after nobody did."""
        idle = [watch.listing for watch in self.watches.values() if not watch.is_listing]
        unread = [one for one in self.board.listings if one.read_at is None and one.error is None]
        awaited = {one.name: one.rounds for one in (*idle, *unread)}
        for watch in self.watches.values():
            watch.looked()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while any(self.watches[name].listing.rounds == rounds for name, rounds in awaited.items()):
                    if await self.board.next(self.board.version) is None:
                        return

    @contextmanager
    def tab(self) -> Iterator[None]:
        """Count an open page: rounds go on while there is one."""
        self.tabs += 1
        for watch in self.watches.values():
            watch.arrive()
        try:
            yield
        finally:
            self.tabs -= 1
            for watch in self.watches.values():
                watch.leave()

    def broke(self, store: str, key: str) -> None:
        """Note that a lease was broken here: list the store at once, and ask it again of the lock."""
        self.watches[store].wake()
        self.details.forget(store, key)

    def client(self, store: str) -> AsyncClient | None:
        """Return the client of a store; None if it is not open."""
        watch = self.watches.get(store)
        return None if watch is None else watch.client

    # --- what the pages show -------------------------------------------------------------------------------------

    async def rendered(self, wanted: Filter) -> Rendered:
        """Return what a filter shows now; rendered once for all tabs."""
        view = await self.board.view(wanted)
        known = self._rendered.get(wanted.query)
        if known is None or known.view is not view:
            last = [*self._rendered.items()][1 - VIEWS_KEPT :]
            self._rendered = {name: one for name, one in last if one.view.version == view.version}
            known = self._rendered[wanted.query] = Rendered(self.templates, view, wanted)
        return known

    async def described(self, listing: Listing, key: str) -> dict[str, Any]:
        """Return what the page of a lock shows."""
        now = self.wall()
        store = listing.state(now)
        held = listing.locks.get(key)
        row = None if held is None else row_of(listing.name, held, listing.listed_at, parts_max=DESCRIBED_MAX)
        said = await self.details.of(listing.name, self.client(listing.name), key)
        seen = await self.recorder.of(listing.name, key)
        told = timeline(row, seen, said.audit)
        holders = () if row is None else (row.holder, *(part.holder for part in row.readers + row.permits))
        return {
            "now": now,
            "store": store,
            "key": key,
            "row": row,
            "waiting": said.waiters,
            "problem": "" if store.is_down else said.problem,
            "timeline": told,
            "strip": strip(told, holders, now),
        }
