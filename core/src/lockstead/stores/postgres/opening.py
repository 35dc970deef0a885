# Generated from aio_opening.py by `make blocking`: edit that file instead.
"""How a connection is opened that leads to tables that this version can use.

Must not know commands or records.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.postgres.connection import Connection, connect
from lockstead.stores.postgres.errors import STANDBY, Forbidden, Missing
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.statements import SCHEMA_VERSION, SWEEP_EVERY, Statements, tables
from lockstead.stores.postgres.url import Target

CONNECTIONS_MAX: Final = 8
"""Connections of one process to one store at once; each command needs one for the time of one answer."""

SERVES: Final = 3600.0
"""Seconds after which a connection is replaced: what stands there is checked anew, and the server's memory freed."""

OLDEST: Final = 100000
"""The oldest that has all that is asked, by its documentation; ON CONFLICT and `||` of jsonb came with 9.5."""


def opened(target: Target, statements: Statements, ends_at: float) -> Connection:
    """Return a new connection that leads to tables that can be used. Raises StoreUnavailable or StoreRefused."""
    connection = connect(target.conninfo, target.url, _left(ends_at), may_be_clear=target.may_be_clear)
    try:
        prepare(connection, target, statements, ends_at)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: Connection, target: Target, statements: Statements, ends_at: float) -> None:
    """See to it that the tables stand, of a version that we can use. Raises StoreUnavailable or StoreRefused."""
    try:
        _check_server(connection)
        found = _found(connection, statements, ends_at)
        if found is None or int(found[0] or 0) < SCHEMA_VERSION:
            _set_up(connection, target, statements, ends_at, is_older=found is not None)
            found = _found(connection, statements, ends_at)
        if found is None:
            raise StoreRefused(f"the tables of the locks in {connection.place} are removed as soon as they are made")
        connection.learn(found[5])
        if float(found[4] or 0) > SWEEP_EVERY:
            with suppress(StoreError):
                connection.ask(statements.sweep, (), _left(ends_at))
    except OutcomeUnknown as error:
        # whatever came of it, the command itself was never sent
        raise StoreUnavailable(str(error)) from error


def _check_server(connection: Connection) -> None:
    if connection.version < OLDEST:
        raise StoreRefused(
            f"{connection.place} is PostgreSQL {connection.said('server_version')}: too old; "
            "lockstead needs 10 or later"
        )
    encoding = connection.said("server_encoding")
    if encoding != "UTF8":
        raise StoreRefused(
            f"the database {connection.place} keeps text as {encoding}; make one for the locks: "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


def _found(connection: Connection, statements: Statements, ends_at: float) -> Row | None:
    try:
        rows = connection.ask(statements.check, (), _left(ends_at))
    except Missing:
        return None
    if not rows:
        return None
    version, least, in_recovery, product = rows[0][:4]
    if not str(product).startswith("PostgreSQL"):
        raise StoreRefused(f"{connection.place} is not PostgreSQL but {str(product)[:40]!r}: unsupported")
    if rows[0][6] != "0":
        raise StoreRefused(
            f"the lock tables in {connection.place} have triggers or rules that were added; they would run with your "
            "rights; drop them, or use another ?schema="
        )
    if in_recovery == "t":
        raise StoreUnavailable(f"{connection.place} {STANDBY}")
    if int(least or 0) > SCHEMA_VERSION:
        raise StoreRefused(
            f"the tables of the locks in {connection.place} are of version {version}, newer than this one reads "
            f"({SCHEMA_VERSION}); upgrade lockstead"
        )
    return rows[0]


def _set_up(connection: Connection, target: Target, statements: Statements, ends_at: float, *, is_older: bool) -> None:
    try:
        connection.ask(statements.set_up, (), _left(ends_at))
    except Forbidden as error:
        made = "; ".join((f"CREATE SCHEMA {target.schema}", *tables(target.schema)))
        sql = statements.set_up.decode() if is_older else made
        raise StoreRefused(f"{error}. To be run by an administrator: {sql}") from error


def _left(ends_at: float) -> float:
    return max(0.001, ends_at - time.monotonic())
