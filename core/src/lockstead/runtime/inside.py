"""Detecting that a clean-up runs inside code of ours, where it must not wait for a lock.

The garbage collector may close a generator that is suspended in a `with` block of ours in any thread, at any
allocation: also in a thread that holds a lock of the engine, of a store or of a client library, and in the keeper's. A
signal handler may run there, too. Such a clean-up takes no lock and sends no request: it is passed to the keeper. It is
detected from the stack, so there is no mark to reset, which an interrupt could prevent.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_OURS: Final = ("lockstead.runtime.", "lockstead.stores.")
"""Modules whose functions hold locks, or are called while locks are held."""

THREADS: Final = {
    f"lockstead-{name}"
    for name in (
        *(
            "keeper",
            "renewal",
            "task",
            "callback",
            "give-back",
            "call",
            "watch",
            "aside",
            "close",
            "interrupt",
            "election",
        ),
        *("dial", "listen", "redis-watch", "etcd", "cassandra-connect", "cassandra-end"),
        *("zookeeper", "zookeeper-watch", "zookeeper-close"),
    )
}
"""The names of our threads, in which code of client libraries must not wait either."""

_BOOTSTRAP: Final[CodeType] = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]

_LOCKLESS: Final = {f"lockstead.runtime.{name}" for name in ("aside", "held", "give_back", "aio_give_back")}
"""Modules between the facades and the engine, which hold no lock."""

_DOORS: Final[set[CodeType]] = set()


def holds_no_lock(function: F) -> F:
    """Mark a function of ours that calls other code, such as the user's, without holding a lock."""
    _DOORS.add(function.__code__)
    return function


def is_inside(skip: int = 0) -> bool:
    """Return whether the caller runs within code of ours; the innermost frame of ours or marked one decides.

    skip: number of callers of this function to ignore.
    """
    frame = sys._getframe(1 + skip)
    while True:
        name = frame.f_globals.get("__name__")
        if type(name) is str and name.startswith(_OURS) and name not in _LOCKLESS:
            return frame.f_code not in _DOORS
        if frame.f_back is None:
            break
        frame = frame.f_back
    # a thread of ours that is still starting counts, too: its starter waits, and may hold a lock
    thread = frame.f_locals.get("self") if frame.f_code is _BOOTSTRAP else None
    return isinstance(thread, threading.Thread) and thread.name in THREADS
