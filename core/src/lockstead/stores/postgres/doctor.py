"""Diagnosis of a PostgreSQL server beyond the store's commands: durability, permissions, pooler.

Must not know commands or records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.stores.postgres.connection import Connection

BEHIND: Final[Mapping[Guarantee, str]] = {
    Guarantee.CREATE_RACE: "the primary key, and ON CONFLICT DO UPDATE of a locked row",
    Guarantee.EXTEND_UPDATED_MOVES: "clock_timestamp() of the server",
    Guarantee.EXTEND_RACE: "a locked row, looked at again at READ COMMITTED",
    Guarantee.FRESH_INCARNATION: "a counter in a row that outlives its record",
    Guarantee.TOKEN: "a counter in a row that outlives its record",
}

_SETTINGS: Final = (
    "server_version",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "autovacuum",
    "statement_timeout",
    "lock_timeout",
    "max_connections",
)
_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

CONNECTIONS_LOW: Final = 10


def examination(connection: Connection, schema: str, limit: float) -> Iterator[Finding]:
    """Yield the findings on the server of a connection. limit is seconds for each statement."""
    asked = ", ".join(f"pg_catalog.current_setting('{name}', true)" for name in _SETTINGS)
    (row,) = connection.ask(f"SELECT {asked}, current_user".encode(), (), limit)
    found = {name: value or "" for name, value in zip((*_SETTINGS, "user"), row, strict=True)}
    yield Finding(Severity.OK, "server", f"PostgreSQL {found['server_version']}, asked as {found['user']}")
    yield _pooler(connection)
    yield _crash(found)
    yield from _fail_over(connection, found, limit)
    yield from _transactions(found)
    yield _rights(connection, schema, found["user"], limit)
    yield _owners(connection, schema, limit)
    yield _room(connection, found, limit)
    if found["autovacuum"] != "on":
        text = "autovacuum is off: each renewal leaves a dead row, and the table grows"
        yield Finding(Severity.WARNING, "server.vacuum", text, "turn autovacuum on, or vacuum the table by yourself")


def _pooler(connection: Connection) -> Finding:
    check = "server.pooler"
    if connection.is_direct:
        return Finding(Severity.OK, check, "the server itself answers: releases are notified")
    text = "a pooler stands between: releases are not notified, and waiters look every half second"
    remedy = "give the server's own address as ?listen_host= and ?listen_port=; in session mode, ?listen=yes will do"
    return Finding(Severity.NOTE, check, text, remedy)


def _crash(found: Mapping[str, str]) -> Finding:
    check = "server.durability"
    lax = [f"{name} is off" for name in ("fsync", "full_page_writes", "synchronous_commit") if found[name] == "off"]
    if not lax:
        return Finding(Severity.OK, check, "what was committed survives a crash of the server")
    text = f"{' and '.join(lax)}: a crash of the server may forget a lock that somebody holds"
    return Finding(Severity.WARNING, check, text, "turn it on, or fence what must not suffer")


def _fail_over(connection: Connection, found: Mapping[str, str], limit: float) -> Iterator[Finding]:
    check = "server.replication"
    (row,) = connection.ask(b"SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication", (), limit)
    number = int(row[0] or 0)
    if not number:
        yield Finding(Severity.OK, check, "no standby is connected")
    elif found["synchronous_standby_names"] and found["synchronous_commit"] not in ("off", "local"):
        yield Finding(Severity.OK, check, "changes wait for a synchronous standby")
    else:
        text = f"{number} standby(s) follow asynchronously: a failover may forget a lock that somebody holds"
        yield Finding(Severity.NOTE, check, text, "name synchronous_standby_names, or fence what must not suffer")


def _transactions(found: Mapping[str, str]) -> Iterator[Finding]:
    level = found["default_transaction_isolation"]
    check = "server.isolation"
    if level == "read committed":
        yield Finding(Severity.OK, check, "statements run at READ COMMITTED")
    else:
        text = f"statements run at {level.upper()}: of those that meet, some fail instead of waiting"
        remedy = "ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
        yield Finding(Severity.WARNING, check, text, remedy)
    if found["default_transaction_read_only"] == "on":
        text = "default_transaction_read_only is on: no lock can be taken"
        remedy = "ALTER ROLE ... SET default_transaction_read_only = off"
        yield Finding(Severity.FAILURE, "server.read-only", text, remedy)
    for name in ("statement_timeout", "lock_timeout"):
        if found[name] not in ("0", ""):
            text = f"{name} is {found[name]}: the server ends statements before their own limit, and nothing is changed"
            yield Finding(Severity.NOTE, f"server.{name.replace('_', '-')}", text, "no harm if it is some seconds")


def _rights(connection: Connection, schema: str, user: str, limit: float) -> Finding:
    check = "schema.rights"
    asked = ", ".join(f"pg_catalog.has_table_privilege('{schema}.record', '{right}')" for right in _RIGHTS)
    (row,) = connection.ask(f"SELECT {asked}".encode(), (), limit)
    missing = [right for right, granted in zip(_RIGHTS, row, strict=True) if granted != "t"]
    if not missing:
        return Finding(Severity.OK, check, f"the role may do in the schema {schema} all that locks need")
    text = f"the role {user} lacks {', '.join(missing)} on {schema}.record"
    remedy = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    return Finding(Severity.FAILURE, check, text, remedy)


def _owners(connection: Connection, schema: str, limit: float) -> Finding:
    """Check who can change code that runs with the permissions of every client: our function, and what is beside it."""
    check = "schema.owners"
    asked = (  # the schema's name is checked
        "SELECT pg_catalog.pg_get_userbyid(c.relowner), "  # noqa: S608
        "(SELECT pg_catalog.min(pg_catalog.pg_get_userbyid(p.proowner)) FROM pg_catalog.pg_proc AS p "
        "WHERE p.pronamespace = n.oid AND p.proowner <> c.relowner), "
        "EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) AS a "
        "WHERE a.grantee = 0 AND a.privilege_type = 'CREATE') "
        "FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = '{schema}' AND c.relname = 'record'"
    )
    (row,) = connection.ask(asked.encode(), (), limit)
    owner, other, is_open = row
    if other is not None:
        text = f"a function in the schema {schema} belongs to {other}, and the tables to {owner}: it runs as who locks"
        return Finding(
            Severity.WARNING, check, text, f"ALTER FUNCTION ... OWNER TO {owner}, or drop it if it is not ours"
        )
    if is_open == "t":
        text = f"every role may put functions into the schema {schema}, which may then run as who locks"
        return Finding(Severity.WARNING, check, text, f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC")
    return Finding(Severity.OK, check, f"what the schema {schema} holds belongs to {owner}")


def _room(connection: Connection, found: Mapping[str, str], limit: float) -> Finding:
    check = "server.connections"
    (row,) = connection.ask(
        b"SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'", (), limit
    )
    used, most = int(row[0] or 0), int(found["max_connections"] or 0)
    figures = {"used_count": float(used), "most_count": float(most)}
    text = f"{used} of {most} connections are taken"
    if most - used < CONNECTIONS_LOW:
        remedy = "raise max_connections, or put PgBouncer in front"
        return Finding(Severity.WARNING, check, f"{text}: soon nobody gets in", remedy, figures)
    return Finding(Severity.OK, check, text, figures=figures)
