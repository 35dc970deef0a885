"""The queue of one process's waiters: which of them sends requests for a key, and which is woken.

Only the first waiter for each key sends requests, in order of arrival, so a thousand waiters poll like one. The engine
and the simulator both use it.

A waiter may be interrupted at any line of Python, including the first line of the call that removes it from the queue.
So the end of its wait is noted by a plain assignment (`is_over`), which cannot be interrupted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import ClassVar, Final, Protocol

RECHECK_INTERVAL: Final = 5.0
"""Seconds until a waiter that is not first checks whether it is first now: the previous one may not have woken it."""


class Waiter(Protocol):
    """A waiter. is_over: it was interrupted, or has acquired the lock, so it no longer waits."""

    is_over: bool

    @property
    def is_gone(self) -> bool:
        """Return whether it can never send a request again, since its event loop is closed."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Return whether it cannot send a request now, since its event loop is not running, or blocked."""
        ...

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        ...


class LocalQueue:
    """The waiters of one client: a queue for each key, and what its first waiter saw last. Thread-safe."""

    __slots__ = ("_lock", "_noted", "_queues")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Waiter]] = {}
        self._noted: dict[str, object] = {}

    def enter(self, key: str, waiter: Waiter) -> bool:
        """Add a waiter to the queue; return whether it is first.

        The first waiter sends requests to the store, the others wait until they are woken.
        """
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            queue.append(waiter)
            return queue[0] is waiter or self._first(key) is waiter

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Return whether this waiter is the one that sends requests to the store."""
        with self._lock:
            return self._first(key) is waiter

    def leave(self, key: str, waiter: Waiter) -> None:
        """Remove a waiter from the queue; if it was first, wake the next one.

        A waiter with `is_over` set is skipped even without this call.
        """
        waiter.is_over = True
        with self._lock:
            following = self._without(key, waiter)
        if following is not None:
            following.ring()

    def note(self, key: str, seen: object) -> None:
        """Store what the first waiter saw of the key, for those behind it, until the queue ends or the key is freed."""
        with self._lock:
            if key in self._queues:
                self._noted[key] = seen

    def noted(self, key: str) -> object | None:
        """Return the last value of `note`; None if there is none."""
        return self._noted.get(key)

    def is_followed(self, key: str) -> bool:
        """Return whether any waiter is behind the first."""
        return len(self._queues.get(key, ())) > 1

    def wake_first(self, key: str) -> None:
        """Wake the first waiter: the key may just have become free."""
        if key not in self._queues:
            return
        with self._lock:
            self._noted.pop(key, None)
            first = self._first(key)
        if first is not None:
            first.ring()

    def wake_all(self) -> None:
        """Wake all waiters: there is nothing left to wait for."""
        for queue in [*self._queues.values()]:
            for waiter in [*queue]:
                waiter.ring()

    def _without(self, key: str, waiter: Waiter) -> Waiter | None:
        """Remove a waiter, and return the next one if it was first. Called with the lock held."""
        queue = self._queues.get(key)
        if not queue:
            return None
        # if it is not in the queue, a call of `_first` dropped it already, without waking a waiter
        is_there = queue[0] is waiter or waiter in queue
        was_first = not is_there or next(one for one in queue if one is waiter or _can_ask(one)) is waiter
        if is_there:
            queue.remove(waiter)
        first = self._first(key)
        return first if was_first else None

    def _first(self, key: str) -> Waiter | None:
        """Return the first waiter that can send requests, and drop those at the front that never can again.

        A waiter whose event loop is not running, or blocked, keeps its place, but does not block those behind it.
        Called with the lock held.
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


def _can_ask(waiter: Waiter) -> bool:
    return not (waiter.is_over or waiter.is_stopped)


SIGNAL_SEEN_WITHIN: Final = 0.5
"""Maximum sleep of the main thread, in seconds. A signal that arrives just before the sleep, or in another thread, does
not end the sleep: Python runs the handler in the main thread when that wakes up."""


class ThreadWaker:
    """The waker of a blocking waiter: a lock that is held until `ring` releases it. Every try has one; few ever wait.

    Any thread may ring it; one thread waits for it. It needs nothing of what its counterpart `AsyncWaker` is made of.
    """

    __slots__ = ("_silence", "is_over")

    is_gone: ClassVar[bool] = False
    is_stopped: ClassVar[bool] = False

    def __init__(self, *_unused: object) -> None:
        self.is_over = False
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the waiter."""
        try:  # noqa: SIM105 - a context manager takes longer, and every renewal rings
            self._silence.release()
        except RuntimeError:  # it is already rung
            pass

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`; return True as soon as it is rung, False if it was not."""
        ends_at = time.monotonic() + seconds
        runs_handlers = threading.get_ident() == threading.main_thread().ident
        step = SIGNAL_SEEN_WITHIN if runs_handlers else threading.TIMEOUT_MAX
        while True:
            # a negative timeout would wait forever
            left = max(0.0, ends_at - time.monotonic())
            if self._silence.acquire(timeout=min(left, step)):
                self.ring()
                return True
            if left <= step:
                return False

    def take(self) -> bool:
        """Return whether it was rung, and reset it."""
        return self._silence.acquire(blocking=False)
