"""Subscriptions of one process: the callbacks for changes of records. Shared by stores; must not know any store.

A subscription may end in the garbage collector, in a thread that holds any lock (also the one here), and at a line
where a signal handler raises. So its end is recorded by C code only, and the next call processes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

K = TypeVar("K", bound=Hashable)
"""The key of a subscription: the name of a record, or that name and a waiter."""

OnChange: TypeAlias = Callable[[bool], None]


class Subscription:
    """One caller's subscription to one record. Ended by `close`, or when it is no longer referenced."""

    __slots__ = ("__weakref__", "_end")

    def __init__(self) -> None:
        self._end: Callable[[], None] = _nothing

    def close(self) -> None:
        """End it. Idempotent, non-blocking; may be called from any thread and by the garbage collector."""
        self._end()


def _nothing() -> None:
    pass


def started(thread: threading.Thread) -> bool:
    """Start a thread; return False if none can be started, so that subscribers poll."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def join(thread: threading.Thread | None, limit: float) -> None:
    """Wait for a thread, at most `limit` seconds.

    Returns at once in that thread itself, and if its start was interrupted: a signal handler may raise in `start`.
    """
    if thread is not None and thread is not threading.current_thread():
        with suppress(RuntimeError):  # it has not started yet
            thread.join(limit)


class _Entry(ref[Subscription]):
    """A weak reference to a subscription, with its record and callback."""

    __slots__ = ("name", "on_change")
    name: Any
    on_change: OnChange


class Subscriptions(Generic[K]):
    """The subscriptions to the records of one store. Safe to share between threads; replaced in a forked child.

    on_last is called when the last subscription to a record has ended, in any thread and also by the garbage collector;
    it must neither block nor raise. A subscription dropped without `close` is noticed at the next call.
    """

    def __init__(self, on_last: Callable[[K], None] | None = None) -> None:
        self._on_last = on_last
        self._lock = threading.Lock()
        self._entries: dict[K, dict[int, _Entry]] = {}
        self._closed: deque[_Entry] = deque()

    def __len__(self) -> int:
        """Return the number of records that have subscriptions."""
        self._tidy()
        return len(self._entries)

    def __contains__(self, name: K) -> bool:
        """Return whether a record has subscriptions."""
        self._tidy()
        return name in self._entries

    def names(self) -> set[K]:
        """Return the records that have subscriptions."""
        self._tidy()
        with self._lock:
            names = set(self._entries)
        self._tidy()
        return names

    def add(self, name: K, on_change: OnChange) -> tuple[Subscription, bool]:
        """Return a new subscription, and whether it is the only one to the record."""
        subscription = Subscription()
        entry = _Entry(subscription, self._closed.append)
        entry.name, entry.on_change = name, on_change
        subscription._end = lambda: self._close(entry)
        with self._lock:
            entries = self._entries.setdefault(name, {})
            entries[id(entry)] = entry
            is_first = len(entries) == 1
        self._tidy()
        return subscription, is_first

    def changed(self, name: K, is_free: bool = False) -> None:
        """Call the callbacks of a record's subscriptions. Must not be called under a lock that `subscribe` takes."""
        if not self._entries or name not in self._entries:
            return
        with self._lock:
            entries = [*self._entries.get(name, {}).values()]
        self._tidy()
        for entry in entries:
            entry.on_change(is_free)

    def _close(self, entry: _Entry) -> None:
        self._closed.append(entry)
        self._tidy()

    def _tidy(self) -> None:
        """Remove ended subscriptions. A caller that held the lock calls this afterwards."""
        if not self._closed:
            return
        ended: list[K] = []
        # a lock that is not held is not held by this thread, so waiting for it cannot deadlock
        while self._closed and not self._lock.locked():
            with self._lock:
                ended += self._removed()
        if self._on_last is not None:
            for name in ended:
                self._on_last(name)

    def _removed(self) -> list[K]:
        """Remove ended subscriptions and return the records that have none left. The caller holds the lock."""
        # not inside the `with` statement: Ctrl-C in a loop there would leave the lock held
        ended: list[K] = []
        while self._closed:
            entry = self._closed.popleft()
            entries = self._entries.get(entry.name)
            if entries is not None and entries.pop(id(entry), None) is not None and not entries:
                del self._entries[entry.name]
                ended.append(entry.name)
        return ended
