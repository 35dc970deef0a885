"""The waiters of one process: which of them asks the store for a key, and which is woken.

One waiter for each key asks, in order of arrival, so a thousand waiters poll like one. Pure: no clock, thread, socket
or random numbers. The caller wakes the waiter that a method returns. The engine and the simulator both run it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

LOOK_AGAIN: Final = 5.0
"""Seconds until a waiter behind others checks whether it is first: the one before it may not have woken it."""


class Turn(Protocol):
    """A waiter. is_over: it was interrupted, or has acquired the lock, so it no longer waits."""

    is_over: bool

    @property
    def is_gone(self) -> bool:
        """Whether it can never ask again: its event loop is closed."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether it cannot ask now: its event loop does not run."""
        ...


W = TypeVar("W", bound=Turn)


class Turns(Generic[W]):
    """The waiters of one client, a queue for each key, and what the first of each saw last. Not safe to share."""

    __slots__ = ("_noted", "_queues")

    def __init__(self) -> None:
        self._queues: dict[str, deque[W]] = {}
        self._noted: dict[str, object] = {}

    def __iter__(self) -> Iterator[W]:
        return iter([waiter for queue in self._queues.values() for waiter in queue])

    def __len__(self) -> int:
        return len(self._queues)

    def enter(self, key: str, waiter: W) -> bool:
        """Queue; True if first. The first asks the store, the others wait until they are woken."""
        self._queues.setdefault(key, deque()).append(waiter)
        return self.first(key) is waiter

    def first(self, key: str) -> W | None:
        """Return the first that can ask, and forget those that never will.

        A waiter whose event loop does not run keeps its place, and nobody waits for it meanwhile.
        """
        queue = self._queues.get(key)
        while queue and (queue[0].is_over or queue[0].is_gone):
            queue.popleft()
        if queue:
            return next(filter(_can_ask, queue), queue[0])
        if queue is not None:
            del self._queues[key]
            self._noted.pop(key, None)
        return None

    def leave(self, key: str, waiter: W) -> W | None:
        """Leave the queue; return the waiter to wake, if it is the next one's turn."""
        waiter.is_over = True
        queue = self._queues.get(key)
        if queue is None:
            return None
        # not queued: a call of `first` has dropped it already, and woke no waiter
        was_first = waiter not in queue or next(filter(partial(_asks_or_is, waiter), queue)) is waiter
        if waiter in queue:
            queue.remove(waiter)
        first = self.first(key)
        return first if was_first else None

    def freed(self, key: str) -> W | None:
        """The key may just have become free: return the waiter to wake."""
        self._noted.pop(key, None)
        return self.first(key)

    def note(self, key: str, seen: object) -> None:
        """Keep what the first saw of the key, for those behind it, until the queue ends or the key is freed."""
        if key in self._queues:
            self._noted[key] = seen

    def is_followed(self, key: str) -> bool:
        """Whether any waiter is behind the first."""
        return len(self._queues.get(key, ())) > 1

    def noted(self, key: str) -> object | None:
        """Return what was noted last; None if nothing is known."""
        return self._noted.get(key)


def _can_ask(waiter: Turn) -> bool:
    return not (waiter.is_over or waiter.is_stopped)


def _asks_or_is(leaving: Turn, waiter: Turn) -> bool:
    return waiter is leaving or _can_ask(waiter)
