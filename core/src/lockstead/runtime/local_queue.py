"""The queue of one process's waiters (a thread-safe wrapper of `protocol.turns`), and the waker of a blocking waiter.

A waiter may be interrupted at any line of Python, including the first line of the call that removes it from the queue.
So the end of its wait is noted by a plain assignment (`is_over`), which cannot be interrupted.
"""

from __future__ import annotations

import threading
import time
from typing import ClassVar, Final, Protocol

from lockstead.protocol.turns import LOOK_AGAIN, Turn, Turns


class Waiter(Turn, Protocol):
    """A waiter in the queue."""

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        ...


SIGNAL_SEEN_WITHIN: Final = 0.5
"""Maximum sleep of the main thread, in seconds. A signal that arrives just before the sleep, or in another thread, does
not end the sleep: Python runs the handler in the main thread when that wakes up."""


class ThreadWaker:
    """The waker of a blocking waiter: a lock that is held until `ring` releases it. Every try has one; few ever wait.

    Any thread may ring it; one thread waits for it.
    """

    __slots__ = ("_silence", "is_over")

    is_gone: ClassVar[bool] = False
    is_stopped: ClassVar[bool] = False

    def __init__(self) -> None:
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


class LocalQueue:
    """The waiters of one client: a queue for each key, and what its first waiter saw last. Thread-safe."""

    __slots__ = ("_lock", "_turns")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = Turns[Waiter]()

    def enter(self, key: str, waiter: Waiter) -> bool:
        """Add a waiter to the queue; return whether it is first.

        The first waiter sends requests to the store, the others wait until they are woken.
        """
        with self._lock:
            return self._turns.enter(key, waiter)

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Return whether this waiter is the one that sends requests to the store."""
        with self._lock:
            return self._turns.first(key) is waiter

    def leave(self, key: str, waiter: Waiter) -> None:
        """Remove a waiter from the queue; if it was first, wake the next one.

        A waiter with `is_over` set is skipped even without this call.
        """
        waiter.is_over = True
        with self._lock:
            following = self._turns.leave(key, waiter)
        if following is not None:
            following.ring()

    def note(self, key: str, seen: object) -> None:
        """Store what the first waiter saw of the key, for those behind it, until the queue ends or the key is freed."""
        with self._lock:
            self._turns.note(key, seen)

    def is_followed(self, key: str) -> bool:
        """Return whether any waiter is behind the first."""
        return self._turns.is_followed(key)

    def noted(self, key: str) -> object | None:
        """Return the last value of `note`; None if there is none."""
        return self._turns.noted(key)

    def wake_first(self, key: str) -> None:
        """Wake the first waiter: the key may just have become free."""
        with self._lock:
            first = self._turns.freed(key)
        if first is not None:
            first.ring()

    def wake_all(self) -> None:
        """Wake all waiters: there is nothing left to wait for."""
        with self._lock:
            waiters = [*self._turns]
        for waiter in waiters:
            waiter.ring()


__all__ = ["LOOK_AGAIN", "LocalQueue", "ThreadWaker", "Waiter"]
