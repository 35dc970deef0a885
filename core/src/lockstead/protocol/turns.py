"""The queue of one process's waiters: which of them sends requests for a key, and which is woken.

Only the first waiter for each key sends requests, in order of arrival, so a thousand waiters poll like one. Pure: no
clock, thread, socket or random numbers. The caller wakes the waiter that a method returns. The engine and the simulator
both use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

LOOK_AGAIN: Final = 5.0
"""Seconds until a waiter that is not first checks whether it is first now: the previous one may not have woken it."""


class Turn(Protocol):
    """A waiter. is_over: it was interrupted, or has acquired the lock, so it no longer waits."""

    is_over: bool

    @property
    def is_gone(self) -> bool:
        """Return whether it can never send a request again, since its event loop is closed."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Return whether it cannot send a request now, since its event loop is not running."""
        ...


W = TypeVar("W", bound=Turn)


class Turns(Generic[W]):
    """The waiters of one client: a queue for each key, and what its first waiter saw last. Not thread-safe."""

    __slots__ = ("_noted", "_queues")

    def __init__(self) -> None:
        self._queues: dict[str, deque[W]] = {}
        self._noted: dict[str, object] = {}

    def __iter__(self) -> Iterator[W]:
        return iter([waiter for queue in self._queues.values() for waiter in queue])

    def __len__(self) -> int:
        return len(self._queues)

    def enter(self, key: str, waiter: W) -> bool:
        """Add a waiter to the queue; return whether it is first.

        The first waiter sends requests to the store, the others wait until they are woken.
        """
        self._queues.setdefault(key, deque()).append(waiter)
        return self.first(key) is waiter

    def first(self, key: str) -> W | None:
        """Return the first waiter that can send requests, and drop those at the front that never can again.

        A waiter whose event loop is not running keeps its place, but does not block those behind it.
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
        """Remove a waiter from the queue; if it was first, return the next waiter, to be woken."""
        waiter.is_over = True
        queue = self._queues.get(key)
        if queue is None:
            return None
        # if it is not in the queue, a call of `first` dropped it already, without waking a waiter
        was_first = waiter not in queue or next(filter(partial(_asks_or_is, waiter), queue)) is waiter
        if waiter in queue:
            queue.remove(waiter)
        first = self.first(key)
        return first if was_first else None

    def freed(self, key: str) -> W | None:
        """Return the waiter to wake, since the key may just have become free."""
        self._noted.pop(key, None)
        return self.first(key)

    def note(self, key: str, seen: object) -> None:
        """Store what the first waiter saw of the key, for those behind it, until the queue ends or the key is freed."""
        if key in self._queues:
            self._noted[key] = seen

    def is_followed(self, key: str) -> bool:
        """Return whether any waiter is behind the first."""
        return len(self._queues.get(key, ())) > 1

    def noted(self, key: str) -> object | None:
        """Return the last value of `note`; None if there is none."""
        return self._noted.get(key)


def _can_ask(waiter: Turn) -> bool:
    return not (waiter.is_over or waiter.is_stopped)


def _asks_or_is(leaving: Turn, waiter: Turn) -> bool:
    return waiter is leaving or _can_ask(waiter)
