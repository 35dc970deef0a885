"""What one process has seen of a key's leader, shared by its observers: one of them reads, the others are woken."""

from __future__ import annotations

import threading

from lockstead.protocol.election import Sighting, newer
from lockstead.runtime.local_queue import LocalQueue


class LeaderView:
    """The newest sighting of a key's leader. Never goes back to a lower token. Safe to share between threads."""

    def __init__(self) -> None:
        self.observers = LocalQueue()
        self.reads = 0
        self.seen: Sighting | None = None
        self._term = 0
        self._lock = threading.Lock()

    def note(self, found: Sighting | None) -> Sighting | None:
        """Note what a read showed, and wake the other observers if it is new; return the newest sighting."""
        with self._lock:
            is_new = self.reads == 0 or newer(self.seen, found, self._term)
            self.reads += 1
            if is_new:
                self.seen = found
                self._term = max(self._term, (found and found.token) or 0)
            newest = self.seen
        if is_new:
            self.observers.wake_all()
        return newest
