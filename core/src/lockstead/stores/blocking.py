"""Waiting primitives of the blocking stores: they wait in the caller's thread. The counterpart is `awaiting`.

Both modules define the same names, because the blocking store modules are generated from the asynchronous ones.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

__all__ = ["Room", "aside", "is_readable", "ready"]


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


def ready(descriptor: int, ends_at: float, reads: bool = True, writes: bool = False) -> None:
    """Wait until a socket is readable, with `reads`, or writable, with `writes`.

    Raises TimeoutError at `ends_at` (monotonic clock); looks once even if that is over.
    """
    poll = select.poll()
    poll.register(descriptor, (select.POLLIN | select.POLLPRI if reads else 0) | (select.POLLOUT if writes else 0))
    if not poll.poll(max(0, int((ends_at - time.monotonic()) * 1000) + 1)):
        raise TimeoutError


def is_readable(descriptor: int) -> bool:
    """Return whether data or end-of-file has arrived; does not wait."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(0))


def aside(call: Callable[[], T], ends_at: float) -> T:  # noqa: ARG001 - same signature as in `awaiting`
    """Return the result of a call that may block beyond `ends_at`; the blocking side cannot limit it."""
    return call()
