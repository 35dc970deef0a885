"""Connection pool: which connection serves a command, which thread writes next, when a connection is unusable.

Must not know commands or records, nor the statements that are executed.
"""

from __future__ import annotations

import ctypes
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lockstead.errors import StoreError, StoreUnavailable
from lockstead.stores.sqlite.file import check_place, check_schema, connect, failure, identity, is_unreadable, journals

WATCH_LIMIT: Final = 1.0
"""Seconds that reading the change counter may wait for the file."""

TURN_WITHIN: Final = 0.25
"""Seconds that a writer waits for the other writers of its process; a write takes less than a thousandth of it."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection; used by one thread at a time.

    opened: the paths of the file, its log and its index, with the identity of each when it was opened. readable,
    writable: the schema versions that were checked for reading and for writing.
    """

    connection: sqlite3.Connection
    opened: tuple[tuple[str, tuple[int, int] | None], ...]
    busy_ms: int
    readable: int = -1
    writable: int = -1

    def check(self, path: Path, *, writes: bool) -> None:
        """Raise StoreRefused if the schema would run foreign code. A write is checked in its transaction."""
        version = self.connection.execute("PRAGMA schema_version").fetchone()[0]
        if version == self.writable or (version == self.readable and not writes):
            return
        check_schema(self.connection, path, writes=writes)
        if writes:
            self.writable = version
        else:
            self.readable = version


class Pool:
    """The connections of one process to one file. Safe to share between threads; replaced in a forked child."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._path_text = str(path)
        self._is_open = True
        self._idle: list[_Link] = []
        self._every: set[_Link] = set()
        self._watch: _Link | None = None
        self._failed: _Link | None = None
        self._lock = threading.Lock()
        # These two are held during I/O. In SQLite, a writer that finds the file locked sleeps and retries, so threads
        # of one process would sleep for milliseconds where a lock hands over in microseconds.
        self.write_turn = threading.Lock()
        self._watch_turn = threading.Lock()

    def has_file(self) -> bool:
        """Return whether the file exists; connecting would create it. Raises StoreRefused if it cannot be there."""
        if identity(self._path_text) is not None:
            return True
        if not self._is_open:
            raise self._closed()
        check_place(self.path)
        return False

    def lend(self, limit: float) -> Loan:
        """Return a loan of a connection for reading."""
        return Loan(self, limit, writes=False)

    def write(self, limit: float) -> Loan:
        """Return a loan for a write: one thread of the process at a time, in a transaction that the caller must end."""
        return Loan(self, limit, writes=True)

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Lend the connection that never writes, so that its change counter counts every write of other connections."""
        with self._watch_turn:
            watch = self._watch
            if watch is None or not self._is_current(watch):
                self._watch = None
                if watch is not None:
                    self.drop(watch)
                watch = self._watch = self._open(WATCH_LIMIT)
            try:
                yield Watch(watch, self.path)
            except BaseException as error:
                self._watch = None
                self.retire(watch)
                if isinstance(error, sqlite3.Error):
                    raise self.failure(error, WATCH_LIMIT) from error
                raise

    def take(self, limit: float) -> _Link:
        """Return a connection to the file that is at the path now."""
        while self._idle:
            with suppress(IndexError):
                link = self._idle.pop()
                if self._is_current(link):
                    return link
                self.drop(link)
        return self._open(limit)

    def give_back(self, link: _Link) -> None:
        """Take back a connection that may be reused."""
        with self._lock:
            if self._is_open:
                self._idle.append(link)
                return
        self.drop(link)

    def _is_current(self, link: _Link) -> bool:
        # A removed or moved file still exists for its open connections: a lock written there would be invisible to
        # other processes. The same holds for its journals, until their last connection is closed and checkpoints them.
        return all(identity(name) == was for name, was in link.opened)

    def _open(self, limit: float) -> _Link:
        if not self._is_open:
            raise self._closed()
        before = identity(self._path_text)
        connection = connect(self.path, limit)
        after = identity(self._path_text)
        link: _Link | None = None
        failed: _Link | None = None
        with self._lock:
            if self._is_open and after is not None and before in (None, after):
                beside = [(name, identity(name)) for name in journals(self._path_text)]
                link = _Link(connection, ((self._path_text, after), *beside), _milliseconds(limit))
                self._every.add(link)
                failed, self._failed = self._failed, None
        if failed is not None:
            self.drop(failed)
        if link is not None:
            return link
        connection.close()
        raise StoreUnavailable(f"{self.path} was closed or replaced while it was opened; nothing was changed")

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"the store of {self.path} is closed")

    def retire(self, link: _Link) -> None:
        """Take back a connection that had an error: it is not reused, but stays open until another one is opened.

        The last connection to close removes the journal, and a full disk has no room for a new one; then holders could
        not even be read.
        """
        with suppress(sqlite3.Error):
            link.connection.rollback()
        with self._lock:
            is_kept = self._is_open and self._failed is None and not link.connection.in_transaction
            if is_kept:
                self._failed = link
        if not is_kept:
            self.drop(link)

    def drop(self, link: _Link) -> None:
        """Close a connection. Uncommitted changes are rolled back."""
        with self._lock:
            self._every.discard(link)
        with suppress(sqlite3.Error):
            link.connection.close()

    def failure(self, error: sqlite3.Error, limit: float) -> StoreError:
        """Return the StoreError for an error of SQLite before a commit."""
        return failure(error, self.path, limit, may_be_applied=False)

    def forget(self) -> Pool:
        """Return a new pool for a forked child, in which the inherited connections are never closed."""
        for link in self._every:
            # Closing an inherited connection releases locks and may remove the journal that the parent uses. Python
            # closes it with its last reference, so add one that is never dropped.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(link.connection))
        fresh = Pool(self.path)
        fresh._is_open = self._is_open
        return fresh

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back."""
        self._is_open = False
        self.empty()

    def empty(self) -> None:
        """Close all idle connections, because one opened while the file was read-only can never write."""
        with self._watch_turn, self._lock:
            links = [*self._idle, *(link for link in (self._watch, self._failed) if link is not None)]
            self._idle.clear()
            self._watch = self._failed = None
        for link in links:
            self.drop(link)


class Watch:
    """The connection that never writes."""

    __slots__ = ("_link", "_path")

    def __init__(self, link: _Link, path: Path) -> None:
        self._link = link
        self._path = path

    def counter(self) -> tuple[object, int]:
        """Return the connection, to distinguish it from others, and its change counter."""
        return self._link, int(self._link.connection.execute("PRAGMA data_version").fetchone()[0])

    def rows(self, statement: str, values: Iterable[tuple[str, ...]]) -> list[tuple[Any, ...] | None]:
        """Return the first row of the query for each set of values; () for an unreadable row."""
        self._link.check(self._path, writes=False)
        return [self._row(statement, one) for one in values]

    def _row(self, statement: str, values: tuple[str, ...]) -> tuple[Any, ...] | None:
        try:
            found: tuple[Any, ...] | None = self._link.connection.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            if not is_unreadable(error):
                raise
            return ()
        return found


class Loan:
    """One use of a connection: for a write, one transaction, one thread at a time. After an error it is retired.

    An interrupt may come at the first line of `__exit__`: then the turn is not released. SQLite itself keeps writers
    apart, so one that has waited for long goes on without its turn, and those behind it have a new one.

    Errors of SQLite are raised as StoreError: nothing was changed. A lock cycle has two uses, and a generator's
    context manager would take a tenth of it.
    """

    __slots__ = ("_limit", "_link", "_pool", "_turn", "_writes")

    def __init__(self, pool: Pool, limit: float, *, writes: bool) -> None:
        self._pool = pool
        self._limit = limit
        self._writes = writes
        self._turn: threading.Lock | None = None
        self._link: _Link | None = None

    def __enter__(self) -> sqlite3.Connection:
        limit, writes = self._limit, self._writes
        if writes:
            turn = self._pool.write_turn
            if turn.acquire(blocking=False):
                self._turn = turn
            else:
                limit = self._wait_for(turn)
        try:
            link = self._link = self._pool.take(limit)
            busy_ms = _milliseconds(limit)
            if link.busy_ms != busy_ms:
                link.connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
                link.busy_ms = busy_ms
            if writes:
                link.connection.execute("BEGIN IMMEDIATE")
            link.check(self._pool.path, writes=writes)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return link.connection

    def _wait_for(self, turn: threading.Lock) -> float:
        """Wait for a turn, and return the seconds that are left."""
        began_at = time.monotonic()
        if turn.acquire(timeout=min(self._limit, TURN_WITHIN)):
            self._turn = turn
        elif self._pool.write_turn is turn:
            self._pool.write_turn = threading.Lock()
        return max(0.001, self._limit - (time.monotonic() - began_at))

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        link, turn, pool = self._link, self._turn, self._pool
        try:
            if link is not None and error is None:
                pool.give_back(link)
            elif link is not None:
                pool.retire(link)
        finally:
            if turn is not None:
                turn.release()
        if isinstance(error, sqlite3.Error):
            raise pool.failure(error, self._limit) from error


def _milliseconds(limit: float) -> int:
    # SQLite treats a value that does not fit into 31 bits as no wait
    return min(max(1, int(limit * 1000)), 2**31 - 1)
