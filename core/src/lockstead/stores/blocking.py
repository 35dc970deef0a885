"""Waiting primitives of the blocking stores: they wait in the caller's thread. The counterpart is `awaiting`.

Both modules define the same names, because the blocking store modules are generated from the asynchronous ones.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable
from operator import call
from queue import Empty, SimpleQueue
from typing import Final, TypeVar
from weakref import ref

T = TypeVar("T")

RECHECK_INTERVAL: Final = 0.5
"""Seconds until a waiter looks for a permit by itself: one that was woken before it may have been interrupted."""

__all__ = ["Limiter", "aside", "is_readable", "ready"]


class _Permit:
    """One caller's permit."""

    __slots__ = ("__weakref__",)


class Limiter:
    """A limit on concurrent callers; further callers wait. Safe to share between threads.

    Permits are not counted: those that are still referenced are. So an interrupt can lose none, at any line.
    """

    def __init__(self, count: int) -> None:
        self._count: float = count
        self._lock = threading.RLock()  # the garbage collector may call for a permit where one is given
        self._given: list[ref[_Permit]] = []
        self._ended: SimpleQueue[object] = SimpleQueue()
        """An item for each permit that ended, which wakes one waiter. Put by C code, which cannot be interrupted."""

    def acquire(self, ends_at: float) -> object | None:
        """Return a permit, or None if there is none by `ends_at` (monotonic clock). It is held while referenced."""
        pause = 0.0
        while True:
            try:  # noqa: SIM105 - a context manager takes longer
                self._ended.get(timeout=pause)
            except Empty:
                pass
            permit = self._permit()
            left = ends_at - time.monotonic()
            if permit is not None or left <= 0:
                return permit
            pause = min(left, RECHECK_INTERVAL)

    def _permit(self) -> _Permit | None:
        with self._lock:
            if len(self._given) >= self._count:
                self._given = [*filter(call, self._given)]
                if len(self._given) >= self._count:
                    return None
            permit = _Permit()
            self._given.append(ref(permit, self._ended.put))
            return permit

    def lift(self) -> None:
        """End the limit: every waiter gets a permit as soon as the one before it has dropped its own."""
        self._count = math.inf
        self._ended.put(None)


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


def aside(
    call: Callable[[], T],
    ends_at: float,  # noqa: ARG001 - same signature as in `awaiting`
    discard: Callable[[T], object] = repr,  # noqa: ARG001
) -> T:
    """Return the result of a call that may block beyond `ends_at`; the blocking side cannot limit it."""
    return call()
