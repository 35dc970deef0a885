"""Change notifications for the records of one file: one thread per store polls it while there are subscriptions.

It reads the file's change counter, and the records only when the counter has changed. Must not know what a record
means.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

from lockstead.stores.sqlite.file import is_unreadable
from lockstead.stores.sqlite.pool import NoFile, Pool
from lockstead.stores.subscriptions import OnChange, Subscription, Subscriptions, join, started
from lockstead.values import TURN, Name

POLL_MIN: Final = 0.002
POLL_MAX: Final = 0.005
"""Seconds between two reads of the file's change counter while there are subscriptions."""

DOWN: Final = 0.1
"""Seconds until an unreadable file is read again."""

LIMIT: Final = 1.0
"""Seconds that a read may wait for the file."""

_NEW: Final = ("not looked at yet",)
_STATE: Final = "SELECT granted, revision FROM record WHERE space = ? AND key = ? AND part = ?"
_SLOTS: Final = "SELECT part, granted, revision FROM record WHERE space = ? AND key = ? AND part <> ?"

State: TypeAlias = "tuple[Any, ...] | None"
"""What identifies the current version of a topic's records; () if one is unreadable, None if there is none."""


class Changes:
    """The subscriptions of one store. Replaced in a forked child."""

    def __init__(self, path: Path) -> None:
        self.subscriptions = Subscriptions[Name]()
        self._path = path
        # the connection here never writes, so its change counter counts every write of other connections
        self._pool = Pool(path)
        # the last seen state of each topic
        self._states: dict[Name, State] = {}
        self._seen: tuple[object, int] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._wake = threading.Event()

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Return a subscription to a record, as specified by `stores.port.SupportsWatch`."""
        topic = name.topic
        subscription, is_first = self.subscriptions.add(topic, on_change)
        if is_first:
            self._look_soon()
        if _calls_at_once(topic, self._states.get(topic, _NEW)):
            on_change(False)  # its state is known already, so the thread does not notify it again
        return subscription

    def _look_soon(self) -> None:
        self._wake.set()
        with self._lock:
            if self._thread is None and not self._is_closed:
                thread = self._thread = threading.Thread(target=self._run, name="lockstead-watch", daemon=True)
                if not started(thread):
                    self._thread = None

    def forget(self) -> Changes:
        """Return a fresh one for a forked child, where the thread does not exist."""
        self._pool.forget()
        fresh = Changes(self._path)
        fresh._is_closed = self._is_closed
        return fresh

    def close(self) -> None:
        """Stop the thread, and wait briefly for it to leave the file."""
        self._is_closed = True
        self._wake.set()
        join(self._thread, LIMIT)
        self._pool.close()

    def _run(self) -> None:
        pause = POLL_MIN
        while self._goes_on():
            try:
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
            if self.subscriptions and not self._is_closed:
                return True
            self._thread = None
            return False

    def _look(self) -> list[Name]:
        """Return the topics that have changed, and new ones whose subscribers are to be called at once."""
        states, names = self._states, self.subscriptions.names()
        for name in [*states]:
            if name not in names:
                del states[name]
        try:
            seen, found = self._pool.read(self._read, names, LIMIT)
        except NoFile:
            seen, found = None, dict.fromkeys(names)
        changed: list[Name] = []
        for name, state in found.items():
            before = states.get(name, _NEW)
            # set the state first: a concurrent new subscriber is then called here or by `subscribe`
            states[name] = state
            if state != before and (before is not _NEW or _calls_at_once(name, state)):
                changed.append(name)
        self._seen = seen
        return changed

    def _read(
        self, connection: sqlite3.Connection, names: Iterable[Name]
    ) -> tuple[tuple[object, int], dict[Name, State]]:
        """Return the connection with its change counter, and the states of the records that may have changed."""
        seen = connection, int(connection.execute("PRAGMA data_version").fetchone()[0])
        looked = names if seen != self._seen else [name for name in names if name not in self._states]
        return seen, {name: _state(connection, name) for name in looked}


def _calls_at_once(topic: Name, state: State) -> bool:
    """Return whether a subscriber may have missed a change before this state was read: of slots, any."""
    return state is not _NEW and (state is None or topic.is_slot)


def _state(connection: sqlite3.Connection, topic: Name) -> State:
    try:
        if topic.is_slot:
            return tuple(connection.execute(_SLOTS, (topic.space.value, topic.key, TURN)).fetchall()) or None
        found: State = connection.execute(_STATE, (topic.space.value, topic.key, topic.part)).fetchone()
    except sqlite3.Error as error:
        if not is_unreadable(error):
            raise
        return ()
    return found
