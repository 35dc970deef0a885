"""Change notifications for the records of one file: one thread per store polls it while there are subscriptions.

It reads the file's change counter, and the records only when the counter has changed. Must not know what a record
means.

A fork waits until no such thread is inside SQLite, because SQLite's mutexes would stay locked in the child.
"""

from __future__ import annotations

import os
import threading
from typing import Final, TypeAlias

from lockstead.stores.sqlite.pool import Pool
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions
from lockstead.values import Name

POLL_MIN: Final = 0.002
POLL_MAX: Final = 0.005
"""Seconds between two reads of the file's change counter while there are subscriptions."""

DOWN: Final = 0.1
"""Seconds until an unreadable file is read again."""

_NEW: Final = ("not looked at yet",)
_STATE: Final = "SELECT granted, revision FROM record WHERE space = ? AND key = ? AND part = ?"

State: TypeAlias = "tuple[object, ...] | None"


class Changes:
    """The subscriptions of one store. Replaced in a forked child, with its pool."""

    def __init__(self, pool: Pool) -> None:
        self.subscriptions = Subscriptions[Name]()
        self._pool = pool
        # the last seen state of each record; None for an absent one
        self._states: dict[Name, State] = {}
        self._seen: tuple[object, int] | None = None
        self._lock = threading.Lock()
        self._is_looking = False
        self._is_closed = False
        self._wake = threading.Event()

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Return a subscription to a record, as specified by `stores.port.SupportsWatch`."""
        subscription, is_first = self.subscriptions.add(name, on_change)
        if is_first:
            self._look_soon()
        if self._states.get(name, _NEW) is None:
            on_change(False)  # its absence is known already, so the thread does not notify it again
        return subscription

    def _look_soon(self) -> None:
        with self._lock:
            starts = not self._is_looking and not self._is_closed
            self._is_looking = self._is_looking or starts
        self._wake.set()
        if starts:
            try:
                threading.Thread(target=self._run, name="lockstead-watch", daemon=True).start()
            except RuntimeError:  # no thread can be started: subscribers poll
                self._is_looking = False

    def close(self) -> None:
        """Stop the thread."""
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        pause = POLL_MIN
        while self._goes_on():
            try:
                with _INSIDE:
                    changed = self._look()
            except Exception:  # noqa: BLE001 - after any error subscribers poll, and the file is read again
                self._seen = None
                pause = DOWN
            else:
                for name in changed:
                    self.subscriptions.changed(name)
                pause = POLL_MIN if changed else min(POLL_MAX, pause * 1.2)
            if self._wake.wait(pause):
                self._wake.clear()

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_looking = bool(self.subscriptions) and not self._is_closed
            return self._is_looking

    def _look(self) -> list[Name]:
        """Return the records that have changed, and newly subscribed ones that are absent."""
        states, names = self._states, self.subscriptions.names()
        for name in [*states]:
            if name not in names:
                del states[name]
        changed: list[Name] = []
        with self._pool.watch() as watch:
            seen = watch.counter()
            looked = [*(names if seen != self._seen else names - states.keys())]
            rows = watch.rows(_STATE, [(name.space.value, name.key, name.part) for name in looked]) if looked else []
            for name, state in zip(looked, rows, strict=True):
                before = states.get(name, _NEW)
                # set the state first: a concurrent new subscriber is then called here or by `subscribe`
                states[name] = state
                if state != before and (before is not _NEW or state is None):
                    changed.append(name)
            self._seen = seen
        return changed


FORK_WAITS: Final = 1.0
"""Seconds that a fork waits for the thread to leave SQLite: a file that hangs must not block it indefinitely."""

_INSIDE: Final = threading.Lock()
_HELD: Final[list[bool]] = []
"""Whether the current fork holds the lock."""


def _before() -> None:
    _HELD.append(_INSIDE.acquire(timeout=FORK_WAITS))


def _in_parent() -> None:
    if _HELD.pop():
        _INSIDE.release()


def _in_child() -> None:
    _HELD.clear()
    if _INSIDE.locked():  # by a thread that does not exist in the child
        _INSIDE.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
