"""Process-wide listeners: they receive the events of all clients.

Wrappers, decorators and the command line open clients of their own, which have no listener of the user's. A listener
must be quick, and must not wait for a lock of its caller. What it raises is ignored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from lockstead.events import ProcessEvent

ProcessListener: TypeAlias = Callable[[ProcessEvent, str], None]
"""Called with an event and the URL of its store, which contains no password."""

TraceSource: TypeAlias = Callable[[str, str, str], str | None]
"""Called with key, holder and store when an acquisition begins; returns the `traceparent` for its record."""


class Listeners:
    """The listeners of this process. `every` is empty while nobody listens, which costs one check for each event."""

    def __init__(self) -> None:
        self.every: tuple[ProcessListener, ...] = ()
        self._sources: dict[ProcessListener, TraceSource] = {}
        self._make_lock()

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    def add(self, listener: ProcessListener, traceparent: TraceSource | None) -> None:
        """Add a listener; nothing if it was added before."""
        with self._lock:
            if listener not in self.every:
                self.every = (*self.every, listener)
                if traceparent is not None:
                    self._sources = {**self._sources, listener: traceparent}

    def remove(self, listener: ProcessListener) -> None:
        """Remove a listener; nothing if it was never added."""
        with self._lock:
            # without a loop here, from whose end a signal would skip the release of the lock
            self._take_out(listener)

    def _take_out(self, listener: ProcessListener) -> None:
        self.every = tuple(one for one in self.every if one != listener)
        self._sources = {one: source for one, source in self._sources.items() if one != listener}

    def notify(self, event: ProcessEvent, store: str) -> None:
        """Call every listener."""
        for listener in self.every:
            try:  # noqa: SIM105 - a context manager takes longer
                listener(event, store)
            except Exception:  # noqa: BLE001, S110 - a listener must never harm a lease
                pass

    def traceparent(self, key: str, holder: str, store: str) -> str | None:
        """Return the trace that an acquisition belongs to: the first one that a listener names."""
        found: str | None = None
        for source in self._sources.values():
            try:
                named = source(key, holder, store)
            except Exception:  # noqa: BLE001, S112 - as above
                continue
            found = found or named
        return found


LISTENERS: Final = Listeners()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LISTENERS._make_lock)


def add_listener(listener: ProcessListener, *, traceparent: TraceSource | None = None) -> None:
    """Call `listener(event, store)` for every event of every client in this process, also of those open already.

    The store is given by its URL. Adding a listener again changes nothing. traceparent: called in the acquiring thread
    or task as an acquisition begins, with key, holder and store; returns the W3C `traceparent` for its record.
    """
    LISTENERS.add(listener, traceparent)


def remove_listener(listener: ProcessListener) -> None:
    """Call a listener no more."""
    LISTENERS.remove(listener)
