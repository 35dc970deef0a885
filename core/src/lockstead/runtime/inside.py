"""Whether this thread is inside code of ours, so that a clean-up which begins here must not wait for a lock.

The garbage collector closes a generator that is suspended in a `with` block of ours in whatever thread collects, at any
allocation: also where that thread holds a lock of the engine, of a store or of a client library, and in the thread that
keeps time. A signal handler comes as unexpectedly. Such a clean-up enters no lock and asks no store: it is handed to
the keeper. The stack says whether it is one, so there is no mark to reset, which an interrupt could prevent.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_OURS: Final = ("lockstead.runtime.", "lockstead.stores.")
"""Modules whose functions hold locks, or are called while others do."""

THREADS: Final = {
    f"lockstead-{name}"
    for name in (
        *("keeper", "renewal", "callback", "give-back", "call", "watch", "aside", "close", "interrupt"),
        *("dial", "listen", "redis-watch", "etcd", "cassandra-connect", "cassandra-end"),
        *("zookeeper", "zookeeper-watch", "zookeeper-close"),
    )
}
"""The names of our threads. What a client library runs in one of them waits for nobody either."""

_BOOTSTRAP: Final[CodeType] = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]

_LOCKLESS: Final = {f"lockstead.runtime.{name}" for name in ("aside", "held", "give_back", "aio_give_back")}
"""Modules between the facades and the engine: what they hold tells nothing."""

_DOORS: Final[set[CodeType]] = set()


def holds_no_lock(function: F) -> F:
    """Mark a function of ours that calls others, as the user's, outside every lock: they may do what they like."""
    _DOORS.add(function.__code__)
    return function


def is_inside(skip: int = 0) -> bool:
    """Return whether the caller was called within code of ours; what was called last decides.

    skip: callers of this function that do not count.
    """
    frame = sys._getframe(1 + skip)
    while True:
        name = frame.f_globals.get("__name__")
        if type(name) is str and name.startswith(_OURS) and name not in _LOCKLESS:
            return frame.f_code not in _DOORS
        if frame.f_back is None:
            return _begins_thread_of_ours(frame)
        frame = frame.f_back


def _begins_thread_of_ours(outermost: FrameType) -> bool:
    """Whether this is a thread of ours that has not come to its task: who starts it waits, and may hold a lock."""
    if outermost.f_code is not _BOOTSTRAP:
        return False
    thread = outermost.f_locals.get("self")
    return isinstance(thread, threading.Thread) and thread.name in THREADS
