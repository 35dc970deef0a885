"""What the blocking side of stores does in its own way: it waits on the caller's thread. Its twin is `awaiting`.

Both have the same names, for the modules that are generated for one side from the other.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

T = TypeVar("T")

READ: Final = select.POLLIN | select.POLLPRI

__all__ = ["Readiness", "Room", "aside"]


class Room:
    """Room for a number of callers at once; a caller that finds none waits. Safe to share between threads."""

    def __init__(self, count: int) -> None:
        # a semaphore's acquire and release take six times as long
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def enter(self, ends_at: float) -> bool:
        """Return True as soon as there is room, False if there is none by `ends_at` (monotonic clock)."""
        try:
            self._free.get(False)  # there is room, as a rule
        except Empty:
            try:
                self._free.get(timeout=max(0.0, ends_at - time.monotonic()))
            except Empty:
                return False
        return True

    def leave(self) -> None:
        """Make room for somebody else. Neither blocks nor takes a lock."""
        self._free.put(None)


class Readiness:
    """Whether a socket can be read from or written to. For one thread at a time."""

    __slots__ = ("_descriptor", "_poll")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, READ)

    def is_readable(self) -> bool:
        """Return whether something has come, or the end; does not wait."""
        return bool(self._poll.poll(0))

    def readable(self, ends_at: float) -> None:
        """Wait until something has come, or the end; TimeoutError if nothing has by `ends_at` (monotonic clock)."""
        if not self._poll.poll(max(0, int((ends_at - time.monotonic()) * 1000) + 1)):
            raise TimeoutError

    def ready(self, ends_at: float, *, reads: bool = True) -> bool:
        """Wait until it can be written to, or with `reads` read from; return whether the latter. TimeoutError."""
        self._poll.modify(self._descriptor, (READ if reads else 0) | select.POLLOUT)
        try:
            left = ends_at - time.monotonic()
            found = self._poll.poll(int(left * 1000) + 1) if left > 0 else []
        finally:
            self._poll.modify(self._descriptor, READ)
        if not found:
            raise TimeoutError
        # an error is read as one
        return reads and found[0][1] != select.POLLOUT


def aside(call: Callable[[], T], ends_at: float) -> T:  # noqa: ARG001 - as its twin
    """Return what a call returns that may block for longer than can be helped."""
    return call()
