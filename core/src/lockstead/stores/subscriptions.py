"""Subscriptions of one process: who is called when a record changes. What stores share; knows no store.

A subscription may be closed by the garbage collector, in a thread that holds any lock, also the one here. So `close`
enters no lock that is taken: it leaves a note, and whoever holds the lock reads it afterwards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from lockstead.values import Name

OnChange: TypeAlias = Callable[[bool], None]


class Subscription:
    """One caller's subscription to one record. Closed by `close`, or when nobody refers to it any more."""

    __slots__ = ("_closed", "_name", "_number", "_tidy")

    def __init__(self, closed: deque[tuple[Name, int]], tidy: Callable[[], None], name: Name, number: int) -> None:
        self._closed = closed
        self._tidy = tidy
        self._name = name
        self._number = number

    def close(self) -> None:
        """End it. Idempotent, does not block, may be called from any thread and by the garbage collector."""
        self._closed.append((self._name, self._number))
        self._tidy()

    __del__ = close


class Subscriptions:
    """The subscriptions to the records of one store. Safe to share between threads; replaced in a forked child.

    on_last is called when the last subscription to a record has ended, in any thread and also by the garbage collector:
    it must neither block nor raise.
    """

    def __init__(self, on_last: Callable[[Name], None] | None = None) -> None:
        self._on_last = on_last
        self._lock = threading.Lock()
        self._callbacks: dict[Name, dict[int, OnChange]] = {}
        self._closed: deque[tuple[Name, int]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Return how many records are subscribed to."""
        return len(self._callbacks)

    def __contains__(self, name: Name) -> bool:
        """Return whether anybody subscribes to a record."""
        return name in self._callbacks

    def names(self) -> set[Name]:
        """Return the records that are subscribed to."""
        with self._lock:
            names = set(self._callbacks)
        self._tidy()
        return names

    def add(self, name: Name, on_change: OnChange) -> tuple[Subscription, bool]:
        """Return a new subscription, and whether it is the only one to the record."""
        with self._lock:
            self._count += 1
            number = self._count
            callbacks = self._callbacks.setdefault(name, {})
            callbacks[number] = on_change
            is_first = len(callbacks) == 1
        self._tidy()
        return Subscription(self._closed, self._tidy, name, number), is_first

    def changed(self, name: Name, is_free: bool = False) -> None:
        """Call all who subscribe to a record. Must not be called under a lock that `subscribe` takes."""
        if name not in self._callbacks:
            return
        with self._lock:
            callbacks = [*self._callbacks.get(name, {}).values()]
        self._tidy()
        for on_change in callbacks:
            on_change(is_free)

    def changed_all(self) -> None:
        """Call everybody: any record may have changed."""
        for name in self.names():
            self.changed(name)

    def _tidy(self) -> None:
        """Remove what was closed. Whoever holds the lock comes here after it."""
        ended: list[Name] = []
        # a lock that is not taken is not this thread's, so it can be waited for
        while self._closed and not self._lock.locked():
            with self._lock:
                while self._closed:
                    name, number = self._closed.popleft()
                    callbacks = self._callbacks.get(name)
                    if callbacks is not None and callbacks.pop(number, None) is not None and not callbacks:
                        del self._callbacks[name]
                        ended.append(name)
        if self._on_last is not None:
            for name in ended:
                self._on_last(name)
