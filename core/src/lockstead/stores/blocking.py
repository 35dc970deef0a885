"""Waiting primitives of the blocking stores: they wait in the caller's thread. The counterpart is `awaiting`.

Both modules define the same names, because the blocking store modules are generated from the asynchronous ones.
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
    """A limit on concurrent callers; further callers wait. Safe to share between threads."""

    def __init__(self, count: int) -> None:
        # acquire and release of a semaphore take six times as long
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def enter(self, ends_at: float) -> bool:
        """Return True as soon as there is room, or False if there is none by `ends_at` (monotonic clock)."""
        try:
            self._free.get(False)  # usually there is room
        except Empty:
            try:
                self._free.get(timeout=max(0.0, ends_at - time.monotonic()))
            except Empty:
                return False
        return True

    def leave(self) -> None:
        """Make room for another caller. Neither blocks nor takes a lock."""
        self._free.put(None)


class Readiness:
    """The readiness of a socket for reading and writing. For one thread at a time."""

    __slots__ = ("_descriptor", "_poll")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, READ)

    def is_readable(self) -> bool:
        """Return whether data or end-of-file has arrived; does not wait."""
        return bool(self._poll.poll(0))

    def readable(self, ends_at: float) -> None:
        """Wait for data or end-of-file; raise TimeoutError if neither arrives by `ends_at` (monotonic clock)."""
        if not self._poll.poll(max(0, int((ends_at - time.monotonic()) * 1000) + 1)):
            raise TimeoutError

    def ready(self, ends_at: float, *, reads: bool = True) -> bool:
        """Wait until writable or, with `reads`, readable; return whether it is readable.

        Raises TimeoutError at `ends_at` (monotonic clock).
        """
        self._poll.modify(self._descriptor, (READ if reads else 0) | select.POLLOUT)
        try:
            left = ends_at - time.monotonic()
            found = self._poll.poll(int(left * 1000) + 1) if left > 0 else []
        finally:
            self._poll.modify(self._descriptor, READ)
        if not found:
            raise TimeoutError
        # an error event counts as readable: the read reports the error
        return reads and found[0][1] != select.POLLOUT


def aside(call: Callable[[], T], ends_at: float) -> T:  # noqa: ARG001 - same signature as in `awaiting`
    """Return the result of a call that may block beyond `ends_at`; the blocking side cannot limit it."""
    return call()
