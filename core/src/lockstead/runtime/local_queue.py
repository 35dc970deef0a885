"""Who of the waiters of one process asks the store: one a key, in the order they came.

A thousand waiters in one process thus poll like one. Must not know what they wait for.

A waiter may be interrupted at any line of Python, so also on the first of the call that takes it out of its line. That
it waits no longer is therefore noted by a plain assignment (`is_over`), which cannot be interrupted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import ClassVar, Final, Protocol


class Waiter(Protocol):
    """Somebody in a line. is_over: it was interrupted, or has what it came for, so it is no longer waiting."""

    is_over: bool

    @property
    def is_gone(self) -> bool:
        """Whether it can never ask again: its event loop is closed."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether it cannot ask now: its event loop does not run."""
        ...

    def ring(self) -> None:
        """Wake it up, from any thread."""
        ...


LOOK_AGAIN: Final = 5.0
"""Seconds until who stands in line looks by itself whether it is first: who was before it may not have rung."""


class ThreadWaker:
    """A blocking waiter's bell: a lock that is held while the bell is silent. Every try has one, and few ever wait.

    Safe to ring from any thread; waited for by one.
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
        try:  # noqa: SIM105 - a context manager takes longer, and everybody's renewals ring
            self._silence.release()
        except RuntimeError:  # it was rung already
            pass

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`; True as soon as it was rung."""
        # a negative time-out would be forever
        was = self._silence.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
        if was:
            self.ring()
        return was

    def take(self) -> bool:
        """Return whether it was rung, and silence it."""
        return self._silence.acquire(blocking=False)


class NullWaker:
    """The bell of who stands in no line: nobody rings it."""

    __slots__ = ()

    def wait(self, seconds: float) -> bool:
        """Sleep `seconds`."""
        time.sleep(seconds)
        return False

    def take(self) -> bool:
        """It was not rung."""
        return False


NULL_WAKER: Final = NullWaker()


class LocalQueue:
    """The waiters of one client, a line for each key, and what the first in line saw last."""

    __slots__ = ("_lines", "_lock", "_noted")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[Waiter]] = {}
        self._noted: dict[str, object] = {}

    def enter(self, key: str, waiter: Waiter) -> bool:
        """Stand in line; True if first. Who is first asks the store, the others wait until they are rung."""
        with self._lock:
            self._lines.setdefault(key, deque()).append(waiter)
            return self._first(key) is waiter

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Return whether it is this one's turn to ask the store."""
        with self._lock:
            return self._first(key) is waiter

    def leave(self, key: str, waiter: Waiter) -> None:
        """Leave the line; if first, the next one is rung. Whose waiter is over is passed over, even if not called."""
        waiter.is_over = True
        following: Waiter | None = None
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return
            # not in line: somebody who looked who is first has forgotten it already, and rang nobody
            was_first = waiter not in line or next(filter(partial(_asks_or_is, waiter), line)) is waiter
            if waiter in line:
                line.remove(waiter)
            first = self._first(key)
            following = first if was_first else None
        if following is not None:
            following.ring()

    def _first(self, key: str) -> Waiter | None:
        """Return the first in line who can ask, and forget those who never will. Called with the lock held.

        Whose event loop does not run keeps its place, and nobody waits for it meanwhile.
        """
        line = self._lines.get(key)
        while line and (line[0].is_over or line[0].is_gone):
            line.popleft()
        if line:
            return next(filter(_can_ask, line), line[0])
        if line is not None:
            del self._lines[key]
            self._noted.pop(key, None)
        return None

    def note(self, key: str, seen: object) -> None:
        """Keep what the first in line saw of the key, for those behind it, until the line ends or the key moves."""
        with self._lock:
            if key in self._lines:
                self._noted[key] = seen

    def is_followed(self, key: str) -> bool:
        """Return whether anybody stands behind the first."""
        return len(self._lines.get(key, ())) > 1

    def noted(self, key: str) -> object | None:
        """Return what was noted last; None if nothing is known."""
        return self._noted.get(key)

    def ring(self, key: str) -> None:
        """Wake the first in line: the key may just have become free."""
        with self._lock:
            self._noted.pop(key, None)
            first = self._first(key)
        if first is not None:
            first.ring()

    def wake_all(self) -> None:
        """Wake everybody: there is nothing left to wait for."""
        with self._lock:
            waiters = [waiter for line in self._lines.values() for waiter in line]
        for waiter in waiters:
            waiter.ring()


def _can_ask(waiter: Waiter) -> bool:
    return not (waiter.is_over or waiter.is_stopped)


def _asks_or_is(leaving: Waiter, waiter: Waiter) -> bool:
    return waiter is leaving or _can_ask(waiter)
