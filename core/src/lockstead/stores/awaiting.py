"""What the awaiting side of stores does in its own way: it waits in the event loop. Its twin is `blocking`.

Both have the same names, for the modules that are generated for one side from the other.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

__all__ = ["Room"]


class Room:
    """Room for so many at once; whoever finds none waits. Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def enter(self, ends_at: float) -> bool:
        """Return True as soon as there is room, False if there is none by `ends_at` (monotonic clock)."""
        if not self._free.locked():
            return await self._free.acquire()
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Make room for somebody else. Neither blocks nor takes a lock."""
        with suppress(RuntimeError):  # the loop is closed, so nobody waits in it
            self._free.release()
