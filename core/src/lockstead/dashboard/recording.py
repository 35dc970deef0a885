"""Keeping what happened: from each listing to the history, aside of the event loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lockstead.dashboard.changes import Event, Seen, changes, unwatched
from lockstead.dashboard.history import History

if TYPE_CHECKING:
    from lockstead.views import LockInfo

log = logging.getLogger("lockstead.dashboard")

WAITING_MAX: Final = 20
"""Listings that wait to be kept; while the disk is slower than that, listings are compared with an older one."""


class Recorder:
    """Compares each listing with the one before, and keeps the difference."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._before: dict[str, Seen] = {}
        self.problem = ""
        self.start()

    def start(self) -> None:
        """Begin anew in the event loop that runs now."""
        self._listed: asyncio.Queue[tuple[str, Seen]] = asyncio.Queue(WAITING_MAX)

    def listed(self, store: str, at: float, locks: Mapping[str, LockInfo]) -> None:
        """Note a listing; it is compared later, in a thread."""
        with suppress(asyncio.QueueFull):
            self._listed.put_nowait((store, Seen(at, locks)))

    async def run(self) -> None:
        """Keep what was listed, until cancelled. A disk that is full stops nothing else."""
        while True:
            store, after = await self._listed.get()
            try:
                await asyncio.to_thread(self._keep, store, after)
            except sqlite3.Error as error:
                if not self.problem:
                    log.warning("the history is not written: %s", error)
                self.problem = f"the history is not written: {error}"
            else:
                self.problem = ""
            finally:
                self._listed.task_done()

    async def settled(self) -> None:
        """Wait until all that was listed is kept."""
        await self._listed.join()

    def _keep(self, store: str, after: Seen) -> None:
        before = self._before.get(store)
        events: list[Event] = []
        if before is not None:
            events = list(changes(before, after))
        elif (until := self._history.watched_until(store)) is not None:
            events = list(unwatched(until, after))
        self._history.add(store, after.at, events)
        self._before[store] = after

    async def of(self, store: str, key: str) -> list[Event]:
        """Return the last events of a lock, the newest first."""
        try:
            return await asyncio.to_thread(self._history.of, store, key)
        except sqlite3.Error as error:
            self.problem = f"the history cannot be read: {error}"
            return []

    async def close(self) -> None:
        """Close the history, once what is being kept is kept."""
        await asyncio.to_thread(self._history.close)
