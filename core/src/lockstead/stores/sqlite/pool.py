"""Connection pool: which connection serves a command, which thread writes next, when a connection is unusable.

A fork waits until no other thread is inside SQLite, whose mutexes would stay locked in the child. Must not know
commands or records, nor the statements that are executed.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from lockstead.errors import StoreRefused, StoreUnavailable
from lockstead.stores.sqlite.file import (
    Identity,
    check_foreign,
    check_place,
    connect,
    create,
    failure,
    identities,
    is_read_only,
    journals,
)

Q = TypeVar("Q")
A = TypeVar("A")

TURN_WITHIN: Final = 0.25
"""Seconds that a writer waits for the other writers of its process; a write takes less than a thousandth of it."""

AT_ONCE: Final = 0.001
"""Seconds that are not subtracted from a limit: setting a connection's busy timeout anew takes a statement."""

Work: TypeAlias = Callable[[sqlite3.Connection, Q], A]


class NoFile(Exception):  # noqa: N818 - not an error: a file that does not exist holds no records
    """Raised for a read if the file does not exist."""


@dataclass(eq=False, slots=True)
class PooledConnection:
    """One connection; used by one thread at a time.

    paths: the file, its log and its index; opened: the identity of each when the connection was opened. limit: seconds
    that it waits for the file. readable, writable: the schema versions that were checked for reading and for writing.
    """

    connection: sqlite3.Connection
    paths: tuple[str, ...]
    opened: list[Identity]
    limit: float
    readable: int = -1
    writable: int = -1

    def is_current(self) -> bool:
        """Return whether the file and its journals are still those at their paths.

        A removed or moved file still exists for its open connections: a lock written there would be invisible to other
        processes. The same holds for its journals, until their last connection is closed and checkpoints them.
        """
        return identities(self.paths) == self.opened

    def begin(self, path: Path, limit: float, *, writes: bool) -> None:
        """Begin a use of `limit` seconds, with a transaction if it writes.

        Raises StoreRefused if the schema would run foreign code. A write is checked in its transaction.
        """
        execute = self.connection.execute
        if self.limit != limit:
            # milliseconds; SQLite treats a value that does not fit into 31 bits as no wait
            execute(f"PRAGMA busy_timeout = {min(max(1, int(limit * 1000)), 2**31 - 1)}")
            self.limit = limit
        if writes:
            execute("BEGIN IMMEDIATE")
        version = execute("PRAGMA schema_version").fetchone()[0]
        if version == self.writable or (version == self.readable and not writes):
            return
        check_foreign(self.connection, path, writes=writes)
        if writes:
            self.writable = version
        else:
            self.readable = version


class Pool:
    """The connections of one process to one file. Safe to share between threads; replaced in a forked child."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_open = True
        # No lock guards these: each step on a list is atomic, and an interrupt cannot leave it held.
        self._idle: list[PooledConnection] = []
        self._failed: list[PooledConnection] = []
        self._every: set[PooledConnection] = set()
        # Held during I/O. In SQLite, a writer that finds the file locked sleeps and retries, so threads of one process
        # would sleep for milliseconds where a lock hands over in microseconds.
        self._write_turn = threading.Lock()

    def has_file(self) -> bool:
        """Return whether the file exists. Raises StoreRefused if it cannot be there."""
        if identities((str(self._path),)) != [None]:
            return True
        check_place(self._path)
        return False

    def read(self, work: Work[Q, A], value: Q, limit: float) -> A:
        """Return work(connection, value), within `limit` seconds.

        Raises NoFile, StoreUnavailable or StoreRefused.
        """
        return self._use(work, value, limit, writes=False)

    def write(self, work: Work[Q, A], value: Q, limit: float) -> A:
        """Return work(connection, value), called in a transaction that is committed afterwards, within `limit` seconds.

        One thread of the process at a time. Raises StoreUnavailable, StoreRefused (both: nothing was changed) or
        OutcomeUnknown (the commit itself failed).
        """
        try:
            return self._use(work, value, limit, writes=True)
        except StoreRefused as refused:
            if not is_read_only(refused.__cause__):
                raise
        # the file system is read-only, or only was so when the connection was opened: that one can never write
        self._close_idle()
        return self._use(work, value, limit, writes=True)

    def _use(self, work: Work[Q, A], value: Q, limit: float, *, writes: bool) -> A:
        used: PooledConnection | None = None
        turn: threading.Lock | None = None
        is_committing, me, began_at = False, threading.get_ident(), time.monotonic()
        try:
            _INSIDE.add(me)
            if _FORKING.locked():
                _wait_for_fork(me)
            if writes:
                turn = self._take_turn(limit)
            used = self._take(began_at + limit, creates=writes)
            waited = time.monotonic() - began_at
            used.begin(self._path, limit if waited < AT_ONCE else limit - waited, writes=writes)
            answer = work(used.connection, value)
            if writes:
                is_committing = True
                used.connection.execute("COMMIT")
        except BaseException as error:
            if used is not None:
                self._retire(used)
            if isinstance(error, sqlite3.Error):
                raise failure(error, self._path, limit, may_be_applied=is_committing) from error
            raise
        else:
            self._give_back(used)
            return answer
        finally:
            if turn is not None:
                turn.release()
            _INSIDE.discard(me)

    def _take_turn(self, limit: float) -> threading.Lock | None:
        """Wait for a writer's turn and return it; None if it took too long.

        An interrupt may keep a turn from being released. SQLite itself keeps writers apart, so one that has waited for
        long goes on without its turn, and those behind it have a new one.
        """
        turn = self._write_turn
        if turn.acquire(blocking=False) or turn.acquire(timeout=min(limit, TURN_WITHIN)):
            return turn
        if self._write_turn is turn:
            self._write_turn = threading.Lock()
        return None

    def _take(self, ends_at: float, *, creates: bool) -> PooledConnection:
        """Return a connection to the file that is at the path now."""
        while (idle := _popped(self._idle)) is not None:
            if idle.is_current():
                return idle
            self._close(idle)
        return self._open(max(0.001, ends_at - time.monotonic()), creates=creates)

    def _give_back(self, used: PooledConnection) -> None:
        self._idle.append(used)
        if not self._is_open:
            self._close_all(self._idle)

    def _open(self, limit: float, *, creates: bool) -> PooledConnection:
        if not self._is_open:
            raise StoreUnavailable(f"the store of {self._path} is closed")
        check_place(self._path)
        if creates:
            create(self._path)
        name = str(self._path)
        before = identities((name,))
        if before == [None] and not creates:
            raise NoFile
        connection = connect(self._path, limit)
        paths = (name, *journals(name))
        made = PooledConnection(connection, paths, identities(paths), limit)
        if not self._is_open or before == [None] or made.opened[:1] != before:
            self._close(made)
            raise StoreUnavailable(f"{self._path} was closed or replaced while it was opened; nothing was changed")
        self._every.add(made)
        self._close_all(self._failed)
        return made

    def _retire(self, used: PooledConnection) -> None:
        """Take back a connection that had an error: it is not reused, but stays open until another one is opened.

        The last connection to close removes the journal, and a full disk has no room for a new one; then holders could
        not even be read.
        """
        with suppress(sqlite3.Error):
            used.connection.rollback()
        if used.connection.in_transaction:
            self._close(used)
        else:
            self._failed.append(used)
            self._close_all(self._failed, keeps=1 if self._is_open else 0)

    def forget(self) -> Pool:
        """Return a new pool for a forked child, in which the inherited connections are never closed."""
        for inherited in self._every:
            # Closing an inherited connection releases locks and may remove the journal that the parent uses. Python
            # closes it with its last reference, so add one that is never dropped.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited.connection))
        fresh = Pool(self._path)
        fresh._is_open = self._is_open
        return fresh

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back."""
        self._is_open = False
        self._close_idle()

    def _close_idle(self) -> None:
        me = threading.get_ident()
        try:
            _INSIDE.add(me)
            _wait_for_fork(me)
            self._close_all(self._idle)
            self._close_all(self._failed)
        finally:
            _INSIDE.discard(me)

    def _close_all(self, connections: list[PooledConnection], keeps: int = 0) -> None:
        while len(connections) > keeps and (one := _popped(connections)) is not None:
            self._close(one)

    def _close(self, used: PooledConnection) -> None:
        """Close a connection. Uncommitted changes are rolled back."""
        self._every.discard(used)
        with suppress(sqlite3.Error):
            used.connection.close()


def _popped(connections: list[PooledConnection]) -> PooledConnection | None:
    try:
        return connections.pop()
    except IndexError:
        return None


# --- forks -------------------------------------------------------------------------------------------------------

FORK_WAITS: Final = 1.0
"""Seconds that a fork waits for the threads inside SQLite: a file that hangs must not block it indefinitely."""

_INSIDE: Final[set[int]] = set()
"""The threads that are inside SQLite, or about to be."""

_FORKING: Final = threading.Lock()
"""Held while a process forks; nobody enters SQLite meanwhile."""

_FORKERS: Final[list[int]] = []
"""The thread that holds the lock for its fork. It may enter SQLite: other hooks of the fork may close a store."""


def _wait_for_fork(me: int) -> None:
    """Leave SQLite for as long as another thread forks."""
    while _FORKING.locked() and me not in _FORKERS:
        _INSIDE.discard(me)
        with _FORKING:
            _INSIDE.add(me)


def _before() -> None:
    ends_at = time.monotonic() + FORK_WAITS
    if _FORKING.acquire(timeout=FORK_WAITS):
        _FORKERS.append(threading.get_ident())
    while _INSIDE - {threading.get_ident()} and time.monotonic() < ends_at:
        time.sleep(0.0001)


def _in_parent() -> None:
    me = threading.get_ident()
    if me in _FORKERS:
        _FORKERS.remove(me)
        _FORKING.release()


def _in_child() -> None:
    _FORKERS.clear()
    _INSIDE.clear()
    if _FORKING.locked():  # perhaps by a thread that does not exist in the child
        _FORKING.release()


def _interruptible() -> None:
    """Do nothing: a signal that came during the fork is handled at the first line of Python, and may raise here."""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_interruptible)  # runs before the next one
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
