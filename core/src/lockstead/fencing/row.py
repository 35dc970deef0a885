"""Fencing by the highest token in a row of a SQL table, in the transaction that writes the data.

Must not know any driver: it uses a DB-API connection of the caller, and neither begins nor commits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol

from lockstead.values import SHARED, Sequencer

PLACES: Final = {
    "qmark": ("?", "?", "?"),
    "numeric": (":1", ":2", ":3"),
    "format": ("%s", "%s", "%s"),
    "pyformat": ("%s", "%s", "%s"),
}
"""How a statement names its three parameters, by the paramstyle of the driver (PEP 249)."""

_LOCKS_FOR_SHARE: Final = ("format", "pyformat")
"""The paramstyles of PostgreSQL's own drivers. SQLite, which cannot lock a row, has another."""

_IDLE: Final = 0
"""psycopg's `transaction_status` of a connection outside a transaction."""


class Cursor(Protocol):
    """The part of a DB-API cursor that is used."""

    def execute(self, statement: str, parameters: Sequence[object] = ..., /) -> object:
        """Run one statement."""
        ...

    def fetchone(self) -> Sequence[Any] | None:
        """Return the next row."""
        ...

    def close(self) -> object:
        """Free it."""
        ...


class Connection(Protocol):
    """The part of a DB-API connection that is used."""

    def cursor(self) -> Cursor:
        """Open a cursor."""
        ...


class SqlFenceStore:
    """The highest token of each fence, as rows of a table beside the data. SQLite (3.35 and later) and PostgreSQL.

    Admit first in a transaction, before you read; then write, and commit. The row stays locked until the commit, so a
    later holder waits for it, and an earlier one finds the later token. Readers share the row in PostgreSQL, once the
    first of them has committed; in SQLite they wait for each other. A rollback also undoes the admission, which neither
    begins nor commits. A connection in autocommit mode gives no atomicity; if the driver reports it (sqlite3, psycopg),
    `advance` raises ValueError.
    """

    def __init__(
        self, connection: Connection, table: str = "lockstead_fence", *, paramstyle: str | None = None
    ) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table, re.ASCII):
            raise ValueError(f"the table of a fence must be a plain name, or schema.name, not {table!r}")
        self._connection = connection
        self._table = table
        style = _paramstyle(connection, paramstyle)
        self._places = PLACES[style]
        self._locks_for_share = style in _LOCKS_FOR_SHARE

    def create_table(self) -> None:
        """Create the table if there is none."""
        self._run(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            "(fence TEXT PRIMARY KEY, token BIGINT NOT NULL, mode TEXT NOT NULL)",
            (),
            False,
        )

    def advance(self, sequencer: Sequencer) -> Sequencer:
        """Keep the sequencer, unless one of its fence with a higher rank is kept; return what is kept."""
        given = (sequencer.fence, *sequencer.rank)
        row = None
        if sequencer.mode == SHARED and self._locks_for_share:
            row = self._run(self._sharing(), given, True)
        row = row or self._run(self._raising(), given, True)
        if _is_in_no_transaction(self._connection):
            raise ValueError(
                "the connection commits each statement by itself: begin a transaction, admit, write and commit, "
                "or an earlier holder may write after a later one was admitted"
            )
        return sequencer if row is None else Sequencer(sequencer.key, int(row[0]), str(row[1]))

    def _sharing(self) -> str:
        """Return what locks the row against writers, unless it must be raised, and returns it."""
        fence, token, mode = self._places  # two readers with a lock on a row that both must raise would deadlock
        return (
            f"SELECT token, mode FROM {self._table} "  # noqa: S608 - a checked name
            f"WHERE fence = {fence} AND (token, mode) >= ({token}, {mode}) FOR SHARE"
        )

    def _raising(self) -> str:
        """Return what locks the row, raises it if it is lower, and returns it."""
        kept = self._table.rpartition(".")[2]
        is_higher = f"(excluded.token, excluded.mode) > ({kept}.token, {kept}.mode)"
        return (
            f"INSERT INTO {self._table} (fence, token, mode) VALUES ({', '.join(self._places)}) "  # noqa: S608 - checked
            "ON CONFLICT (fence) DO UPDATE SET "
            f"token = CASE WHEN {is_higher} THEN excluded.token ELSE {kept}.token END, "
            f"mode = CASE WHEN {is_higher} THEN excluded.mode ELSE {kept}.mode END RETURNING token, mode"
        )

    def _run(self, statement: str, parameters: Sequence[object], answers: bool) -> Sequence[Any] | None:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, parameters)
            return cursor.fetchone() if answers else None
        except Exception as error:
            error.add_note(f"the table {self._table} must exist: SqlFenceStore(connection).create_table() creates it")
            raise
        finally:
            cursor.close()


def _paramstyle(connection: Connection, given: str | None) -> str:
    module = sys.modules.get(type(connection).__module__.partition(".")[0])
    found = given or getattr(module, "paramstyle", None)
    if found not in PLACES:
        raise TypeError(
            f"{type(connection).__module__}.{type(connection).__qualname__} is not a DB-API connection that names its "
            f"paramstyle; give the driver's own connection, or paramstyle= one of {', '.join(PLACES)}"
        )
    return found


def _is_in_no_transaction(connection: Connection) -> bool:
    """Return whether the driver says that no transaction is open; False where it does not say."""
    in_transaction = getattr(connection, "in_transaction", None)
    if isinstance(in_transaction, bool):
        return not in_transaction
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return status is not None and int(status) == _IDLE
