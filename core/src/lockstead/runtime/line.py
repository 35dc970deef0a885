"""Decides who of the waiters of one process asks the store: one a key, in the order they came.

A thousand waiters in one process thus poll like one. Must not know what they wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import Protocol


class Waiter(Protocol):
    """Somebody in a line."""

    def ring(self) -> None:
        """Wake it up, from any thread."""
        ...


class ThreadBell:
    """A blocking waiter's bell."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        """Wake the waiter."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`; True as soon as it was rung."""
        return self._event.wait(seconds)

    def take(self) -> bool:
        """Tell whether it was rung, and silence it."""
        was = self._event.is_set()
        self._event.clear()
        return was


class LoopBell:
    """An awaiting waiter's bell; belongs to the event loop it was made in."""

    __slots__ = ("_async", "_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._async = asyncio.Event()
        self._thread = threading.Event()

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        self._thread.set()
        with suppress(RuntimeError):  # the loop is closed, so nobody waits in it
            self._loop.call_soon_threadsafe(self._async.set)

    def wait(self, seconds: float) -> bool:
        """Sleep in a thread, up to `seconds`; True as soon as it was rung."""
        return self._thread.wait(seconds)

    async def awaited(self, seconds: float) -> bool:
        """Await up to `seconds`; True as soon as it was rung."""
        try:
            async with asyncio.timeout(seconds):
                return await self._async.wait()
        except TimeoutError:
            return False

    def take(self) -> bool:
        """Tell whether it was rung, and silence it."""
        was = self._thread.is_set()
        self._thread.clear()
        self._async.clear()
        return was

    def hush(self) -> None:
        """Make a thread that waits come back at once."""
        self._thread.set()


class Lines:
    """The waiters of one client, a line for each key."""

    __slots__ = ("_lines", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[Waiter]] = {}

    def enter(self, key: str, waiter: Waiter) -> bool:
        """Stand in line; True if first. Who is first asks the store, the others wait until they are rung."""
        with self._lock:
            line = self._lines.setdefault(key, deque())
            line.append(waiter)
            return line[0] is waiter

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Tell whether it is this one's turn to ask the store."""
        with self._lock:
            line = self._lines.get(key)
            return bool(line) and line is not None and line[0] is waiter

    def leave(self, key: str, waiter: Waiter) -> None:
        """Leave the line; if first, the next one is rung."""
        following: Waiter | None = None
        with self._lock:
            line = self._lines.get(key)
            if line is None or waiter not in line:
                return
            was_first = line[0] is waiter
            line.remove(waiter)
            if not line:
                del self._lines[key]
            elif was_first:
                following = line[0]
        if following is not None:
            following.ring()

    def ring(self, key: str) -> None:
        """Wake the first in line: the key may just have become free."""
        with self._lock:
            line = self._lines.get(key)
            first = line[0] if line else None
        if first is not None:
            first.ring()
