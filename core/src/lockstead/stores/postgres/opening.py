"""Opening of a connection that leads to tables that this version can use, as a script.

Must not know commands or records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.postgres.errors import STANDBY, Forbidden, Missing
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.session import Exchange, Session, connect
from lockstead.stores.postgres.statements import SCHEMA_VERSION, SWEEP_EVERY, Statements, tables
from lockstead.stores.postgres.url import Target

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

S = TypeVar("S", bound=Session)

CONNECTIONS_MAX: Final = 8
"""Connections of one process to one store at once; each command needs one until it is answered."""

AGE_MAX: Final = 3600.0
"""Seconds after which a connection is replaced: the tables are checked anew, and the server's memory is freed."""

OLDEST: Final = 100000
"""The oldest version with all that is used, by its documentation; ON CONFLICT and `||` of jsonb came with 9.5."""


def opened(make: Callable[[PGconn, str], S], target: Target, statements: Statements, ends_at: float) -> Exchange[S]:
    """Return a new session, made by make(connection, place), with usable tables.

    Raises StoreUnavailable or StoreRefused.
    """
    session = yield from connect(make, target.conninfo, target.url, _left(ends_at), may_be_clear=target.may_be_clear)
    try:
        yield from _prepare(session, target, statements, ends_at)
    except OutcomeUnknown as error:
        session.finish()
        raise StoreUnavailable(str(error)) from error  # the command itself was never sent
    except BaseException:
        session.finish()
        raise
    return session


def _prepare(session: Session, target: Target, statements: Statements, ends_at: float) -> Exchange[None]:
    _check_server(session)
    found = yield from _found(session, statements, ends_at)
    if found is None or int(found[0] or 0) < SCHEMA_VERSION:
        try:
            yield from session.exchange(statements.set_up, (), _left(ends_at))
        except Forbidden as error:
            made = "; ".join((f"CREATE SCHEMA {target.schema}", *tables(target.schema)))
            sql = made if found is None else statements.set_up.decode()
            raise StoreRefused(f"{error}. To be run by an administrator: {sql}") from error
        found = yield from _found(session, statements, ends_at)
    if found is None:
        raise StoreRefused(f"the tables of the locks in {session.place} are removed as soon as they are made")
    session.learn(found[5])
    if float(found[4] or 0) > SWEEP_EVERY:
        with suppress(StoreError):
            yield from session.exchange(statements.sweep, (), _left(ends_at))


def _check_server(session: Session) -> None:
    if session.version < OLDEST:
        raise StoreRefused(
            f"{session.place} is PostgreSQL {session.parameter('server_version')}: too old; lockstead needs 10 or later"
        )
    encoding = session.parameter("server_encoding")
    if encoding != "UTF8":
        raise StoreRefused(
            f"the database {session.place} keeps text as {encoding}; make one for the locks: "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


def _found(session: Session, statements: Statements, ends_at: float) -> Exchange[Row | None]:
    """Return the row of the statement `check`; None if there are no tables. Raises StoreError if they are unusable."""
    try:
        rows = yield from session.exchange(statements.check, (), _left(ends_at))
    except Missing:
        return None
    if not rows:
        return None
    version, least, in_recovery, product = rows[0][:4]
    if not str(product).startswith("PostgreSQL"):
        raise StoreRefused(f"{session.place} is not PostgreSQL but {str(product)[:40]!r}: unsupported")
    if rows[0][6] != "0":
        raise StoreRefused(
            f"the lock tables in {session.place} have triggers or rules that were added; they would run with your "
            "rights; drop them, or use another ?schema="
        )
    if in_recovery == "t":
        raise StoreUnavailable(f"{session.place} {STANDBY}")
    if int(least or 0) > SCHEMA_VERSION:
        raise StoreRefused(
            f"the tables of the locks in {session.place} are of version {version}, newer than this one reads "
            f"({SCHEMA_VERSION}); upgrade lockstead"
        )
    return rows[0]


def _left(ends_at: float) -> float:
    return max(0.001, ends_at - time.monotonic())
