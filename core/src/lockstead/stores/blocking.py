"""What the blocking side of stores does in its own way: it waits on the caller's thread. Its twin is `awaiting`.

Both have the same names, for the modules that are generated for one side from the other.
"""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

__all__ = ["Room"]


class Room:
    """Room for so many at once; whoever finds none waits. Safe to share between threads."""

    def __init__(self, count: int) -> None:
        # a semaphore's acquire and release take six times as long
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def enter(self, ends_at: float) -> bool:
        """Return True as soon as there is room, False if there is none by `ends_at` (monotonic clock)."""
        try:
            self._free.get(timeout=max(0.0, ends_at - time.monotonic()))
        except Empty:
            return False
        return True

    def leave(self) -> None:
        """Make room for somebody else. Neither blocks nor takes a lock."""
        self._free.put(None)
