"""What the dashboard saw of each lock, in an SQLite file of its own: bounded, and of one dashboard at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Final

from lockstead.dashboard.changes import Event

EVENTS_MAX: Final = 100_000
"""Events that a file keeps; the oldest go first."""

OF_A_LOCK_MAX: Final = 1_000
"""Events that are kept of one lock, so that a busy one leaves room for the others."""

IN_MEMORY_MAX: Final = 20_000
SHOWN_MAX: Final = 200

MAGIC: Final = b"SQLite format 3\0"
"""What every SQLite file begins with."""

APPLICATION: Final = 0x6C6B6873
VERSION: Final = 1

TABLES: Final = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, store TEXT NOT NULL, key TEXT NOT NULL, what TEXT NOT NULL,
    owner TEXT NOT NULL, holder TEXT NOT NULL, token TEXT, part TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX events_of_a_lock ON events (store, key, id);
CREATE TABLE watched (store TEXT PRIMARY KEY, until REAL NOT NULL);
"""


class History:
    """The events of all stores. path: None keeps them in memory. Thread-safe; every method may block."""

    def __init__(self, path: str | None, most: int | None = None) -> None:
        self._most = most or (IN_MEMORY_MAX if path is None else EVENTS_MAX)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False) if path is None else opened(path)
        if path is None:
            self._database.executescript(TABLES)

    def add(self, store: str, at: float, events: Sequence[Event]) -> None:
        """Add what happened until a listing, and that the store was watched until then. Raises sqlite3.Error."""
        rows = [(e.at, store, e.key, e.what, e.owner, e.holder, _text(e.token), e.part, e.text) for e in events]
        with self._lock, self._database as database:
            database.execute("INSERT OR REPLACE INTO watched VALUES (?, ?)", (store, at))
            database.executemany(
                "INSERT INTO events (at, store, key, what, owner, holder, token, part, text) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            if events:
                self._bound(database, store, {one.key for one in events})

    def _bound(self, database: sqlite3.Connection, store: str, keys: Iterable[str]) -> None:
        of_a_lock = (
            "DELETE FROM events WHERE store = ? AND key = ? AND id <= "
            "(SELECT id FROM events WHERE store = ? AND key = ? ORDER BY id DESC LIMIT 1 OFFSET ?)"
        )
        database.executemany(of_a_lock, [(store, key, store, key, OF_A_LOCK_MAX) for key in keys])
        # by number: the ids have gaps, and a busy lock makes them
        oldest = "SELECT id FROM events ORDER BY id LIMIT MAX(0, (SELECT COUNT(*) FROM events) - ?)"
        database.execute(f"DELETE FROM events WHERE id IN ({oldest})", (self._most,))  # noqa: S608 - a constant

    def watched_until(self, store: str) -> float | None:
        """Return when the store was listed last, by any process that used the file."""
        with self._lock:
            found = self._database.execute("SELECT until FROM watched WHERE store = ?", (store,)).fetchone()
        return None if found is None else float(found[0])

    def of(self, store: str, key: str, most: int = SHOWN_MAX) -> list[Event]:
        """Return the last events of a lock, the newest first, with those of its whole store in between."""
        with self._lock:
            rows = self._database.execute(
                "SELECT at, key, what, owner, holder, token, part, text FROM events "
                "WHERE store = ? AND key IN (?, '') ORDER BY id DESC LIMIT ?",
                (store, key, most),
            ).fetchall()
        return [
            Event(at, key, what, owner, holder, None if token is None else int(token), part, text)
            for at, key, what, owner, holder, token, part, text in rows
        ]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def opened(path: str) -> sqlite3.Connection:
    """Open a file of events for this process alone; ValueError if that is not possible."""
    try:
        with suppress(FileExistsError):
            # it repeats texts of records, so it is for its owner alone
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with open(path, "rb") as file:  # noqa: PTH123 - as it was given
            begins = file.read(len(MAGIC))
    except OSError as error:
        raise ValueError(f"the history {path!r} cannot be opened: {error.strerror}") from None
    if begins not in (b"", MAGIC):
        raise ValueError(f"{path!r} is not a dashboard's history: give a new file")
    database = sqlite3.connect(path, timeout=0, check_same_thread=False, isolation_level="IMMEDIATE")
    try:
        _prepared(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ValueError(f"another dashboard uses the history {path!r}: give each a file of its own") from None
        raise ValueError(f"the history {path!r} cannot be opened: {error}") from None
    except BaseException:
        database.close()
        raise
    return database


def _prepared(database: sqlite3.Connection, path: str) -> None:
    # the lock on the file stays until it is closed
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("BEGIN EXCLUSIVE")
    with closing(database.cursor()) as cursor:
        (application,) = cursor.execute("PRAGMA application_id").fetchone()
        (version,) = cursor.execute("PRAGMA user_version").fetchone()
        is_new = cursor.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,)
        if not is_new and application != APPLICATION:
            raise ValueError(f"{path!r} is not a dashboard's history: give a new file")
        if version > VERSION:
            raise ValueError(f"the history {path!r} is of a newer version of lockstead: give a new file")
        if is_new:
            for statement in TABLES.split(";"):
                cursor.execute(statement)
            cursor.execute(f"PRAGMA application_id = {APPLICATION}")
            cursor.execute(f"PRAGMA user_version = {VERSION}")
    database.commit()


def _text(token: int | None) -> str | None:
    """Return a token as text: it may be larger than SQLite's numbers."""
    return None if token is None else str(token)
