"""The SQL of every command, one statement each that both checks and changes; and the tables.

It is written for autocommit at READ COMMITTED. There, an UPDATE that had to wait for another transaction reads the row
again as that one left it, but every other part of the statement still sees the state when it began. So a second read
decides nothing, except through a row lock, which also shows the row as it is now.

Users who may create functions or operators in a schema of the caller's search path must not be able to run code by them
(CVE-2018-1058). So every function is named with its schema, every operator has operands of exactly its types (then
PostgreSQL takes that of pg_catalog), and our own function has a search path of its own. Must not know connections.
"""

# ruff: noqa: S608 - the name of the schema is checked, and every value is a parameter

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from typing import Final

from lockstead.reading import COUNTER_MAX, EPOCH_MAX, RECORD_BYTES_MAX
from lockstead.values import TURN, Name, Space

SCHEMA_VERSION: Final = 4
"""The version of the tables below."""

BUCKETS: Final = 256
"""Number of advisory locks that waiters hold; a key's lock is found by its CRC."""

EVERYBODY: Final = 0
"""In a notification, in place of the process id of its only receiver."""

SETTING_UP: Final = -1
"""The advisory lock, beside those, under which the tables are created."""

SWEEP_EVERY: Final = 3600.0
"""Seconds between two sweeps of the whole table by any client."""

REMEMBERED: Final = "1 day"
"""How long the row of a removed record is kept, so that its counter continues: far longer than any request is late."""

_CLOCK: Final = "pg_catalog.clock_timestamp()"
_SANE: Final = (
    f"{{0}} >= pg_catalog.to_timestamp(0::float8) AND {{0}} <= pg_catalog.to_timestamp({EPOCH_MAX:.0f}::float8)"
)
"""Whether a time is in range: another program may have set it to infinity, or too far away for a number."""
_US: Final = f"CASE WHEN {_SANE} THEN (pg_catalog.date_part('epoch', {{0}}) * 1000000::float8)::bigint END"
_MS: Final = f"(pg_catalog.date_part('epoch', {_CLOCK}) * 1000::float8)::bigint"
_NAMED: Final = "{}.space = $1::text AND {}.key = $2::text AND {}.part = $3::text"
_PERMIT: Final = f"{{}} = '{Space.PERMIT.value}'::text"
_HERE: Final = "pg_catalog.pg_postmaster_start_time()"
"""Identifies one run of one server. Times are compared only within one: after a failover, times of another machine's
clock mean nothing here."""

_STAMPED: Final = (
    f"updated = CASE WHEN r.clock = {_HERE} AND {_SANE.format('r.updated')} THEN greatest(r.updated, {_CLOCK}) "
    f"ELSE {_CLOCK} END, "
    f"clock = {_HERE}"
)

_UPDATED: Final = _US.format("r.updated")
_NOW: Final = _US.format(_CLOCK)
_WRITTEN: Final = f"r.granted, r.revision, {_UPDATED} AS updated, {_NOW} AS now"
"""The columns of a row that the statement itself has changed."""

_FIELDS: Final = (
    f"CASE WHEN pg_catalog.pg_column_size(r.fields) <= {RECORD_BYTES_MAX} "
    f"AND pg_catalog.octet_length(r.fields::text) <= {RECORD_BYTES_MAX} THEN r.fields END"
)
"""The fields, unless they are larger than a record can be: first the stored size is checked, which may be compressed,
and only if that is small enough they are unpacked and checked as they are sent."""

_NEXT: Final = f"({{0}} + {(1 << 63) - COUNTER_MAX} - {(1 << 63) - COUNTER_MAX - 1})"
"""A counter's next number. It is out of range, an error of the server, if the counter is beyond COUNTER_MAX: then
another program has set it, and no greater number could follow."""

_GRANTED: Final = f"greatest({_NEXT.format('r.granted')}, {{}})"
_RENEWED: Final = f"revision = {_NEXT.format('r.revision')}"

_SHOWN: Final = (
    f"r.granted, r.revision, CASE WHEN r.clock = {_HERE} THEN {_UPDATED} END AS updated, "
    f"CASE WHEN r.clock = {_HERE} THEN {_NOW} END AS now, {_FIELDS} AS fields"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one schema, encoded."""

    create: bytes
    retake: bytes
    read: bytes
    replace: bytes
    extend: bytes
    remove: bytes
    list: bytes
    list_key: bytes
    extend_many: bytes
    read_many: bytes
    state: bytes
    states: bytes
    check: bytes
    set_up: bytes
    sweep: bytes
    listen: bytes
    pass_on: bytes


def lock_class(schema: str) -> int:
    """Return the first of the two numbers of every advisory lock of a schema."""
    number = zlib.crc32(f"lockstead:{schema}".encode())
    return number - (1 << 32) if number >= 1 << 31 else number


def topic(name: Name) -> str:
    """Return what a notification of a change names: the key, and of permits whether it is a slot or the turn."""
    return name.key if name.space is not Space.PERMIT else f"{name.key}\t{'slot' if name.is_slot else TURN}"


def bucket(topic: str) -> int:
    """Return the second of the two numbers of the advisory lock of a topic's waiters."""
    return zlib.crc32(topic.encode()) % BUCKETS


def statements(schema: str) -> Statements:
    """Return the statements for a schema, whose name must be checked."""
    record, at = f"{schema}.record", _NAMED.format("r", "r", "r")
    ring = partial(_ring, schema, "$1::text", "$2::text", "$3::text")
    texts = {
        "create": _create(record, at),
        "retake": f"UPDATE {record} AS r SET granted = {_GRANTED.format(_MS)}, revision = 1, {_STAMPED}, "
        f"fields = $4::jsonb WHERE {at} AND r.fields IS NULL RETURNING {_WRITTEN}",
        "read": f"SELECT {_SHOWN} FROM {record} AS r WHERE {at} AND fields IS NOT NULL",
        "replace": _change(
            record,
            at,
            f"granted = {_GRANTED.format(_MS)}, revision = 1, fields = $6::jsonb",
            f"{_WRITTEN}, {ring('$7::int')}",
        ),
        "extend": _change(
            record,
            at,
            f"{_RENEWED}, fields = r.fields || $6::jsonb",
            f"{_WRITTEN}, {_FIELDS}, {ring('$7::int')}",
        ),
        # the counter that a damaged record leaves can continue
        "remove": _change(
            record,
            at,
            f"granted = CASE WHEN r.granted < {COUNTER_MAX} THEN r.granted ELSE {_MS} END, "
            f"revision = least(r.revision, {COUNTER_MAX}) + 1, fields = NULL",
            f"{_NOW}, {ring('$6::int')}",
        ),
        "list": _list(record, ""),
        # not in a listing of all keys: the planner would take it for so rare that it reads and sorts the whole table
        "list_key": _list(
            record, "AND key = $5::text AND pg_catalog.left(part, pg_catalog.length($6::text)) = $6::text "
        ),
        "extend_many": _extend_many(record, _ring(schema, "w.space", "w.key", "w.part", "w.bucket")),
        "read_many": f"SELECT g.n, {_SHOWN} FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS g(n int, space text, "
        f"key text, part text) JOIN {record} AS r USING (space, key, part) WHERE fields IS NOT NULL",
        "state": f"SELECT granted, revision FROM {record} AS r WHERE {at} AND fields IS NOT NULL",
        "states": "WITH g AS (SELECT * FROM pg_catalog.jsonb_to_recordset($1::jsonb) "
        "AS g(n int, space text, key text, part text)) "
        f"SELECT g.n, r.part, r.granted, r.revision FROM g JOIN {record} AS r USING (space, key, part) "
        "WHERE fields IS NOT NULL UNION ALL "
        f"SELECT g.n, r.part, r.granted, r.revision FROM g JOIN {record} AS r USING (space, key) "
        f"WHERE fields IS NOT NULL AND {_PERMIT.format('space')} AND g.part = ''::text AND r.part <> '{TURN}'::text",
        "check": "SELECT version, least, pg_catalog.pg_is_in_recovery(), pg_catalog.version(), "
        f"pg_catalog.date_part('epoch', {_CLOCK} - swept), pg_catalog.pg_backend_pid(), ({_added(schema)}) "
        f"FROM {schema}.meta",
        "set_up": _set_up(schema),
        "sweep": _sweep(schema, record),
        "listen": f"LISTEN {schema}",
        "pass_on": f"SELECT {schema}.tell('{Space.LOCK.value}', $1::text, $2::int, $3::int[])",
    }
    return Statements(**{name: text.encode() for name, text in texts.items()})


def _added(schema: str) -> str:
    """Return the SQL that counts added triggers and rules, which would run with the permissions of every client."""
    return (
        "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
        f"ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND c.relname IN ('record', 'meta') "
        "AND (c.relhasrules OR EXISTS (SELECT FROM pg_catalog.pg_trigger AS t "
        "WHERE t.tgrelid = c.oid AND NOT t.tgisinternal))"
    )


def _create(record: str, at: str) -> str:
    # A number drawn before the row is locked may come late: the first to draw may be the last to be granted. So it is
    # made from the row itself, which outlives its record. The first SELECT saves a refused Create a write.
    return (
        f"INSERT INTO {record} AS r (space, key, part, granted, revision, updated, clock, fields) "
        f"SELECT $1::text, $2::text, $3::text, {_MS}, 1, {_CLOCK}, {_HERE}, $4::jsonb "
        f"WHERE NOT EXISTS (SELECT FROM {record} AS r WHERE {at} AND r.fields IS NOT NULL) "
        f"ON CONFLICT (space, key, part) DO UPDATE SET granted = {_GRANTED.format('excluded.granted')}, "
        f"revision = 1, {_STAMPED}, fields = excluded.fields WHERE r.fields IS NULL "
        f"RETURNING {_WRITTEN}"
    )


def _change(record: str, at: str, change: str, shown: str) -> str:
    # No row: nothing was changed. Whether there is another record or none is the question of a second statement
    # (`state`), which is rarely needed; as a part of this one it would cost every change more than the change itself.
    return (
        f"UPDATE {record} AS r SET {change}, {_STAMPED} "
        f"WHERE {at} AND r.fields IS NOT NULL AND ($4::text IS NULL OR r.granted::text = $4::text) "
        f"AND ($5::text IS NULL OR r.revision::text = $5::text) RETURNING {shown}"
    )


def _list(record: str, of_key: str) -> str:
    # in the order of the primary key; the name ($2, $3) is the last one of the page before, and the limit may be null
    return (
        f"SELECT key, part, {_SHOWN} FROM {record} AS r WHERE space = $1::text AND fields IS NOT NULL {of_key}"
        "AND (key, part) > ($2::text, $3::text) ORDER BY key, part LIMIT $4::bigint"
    )


def _extend_many(record: str, ring: str) -> str:
    # It changes the rows that are not locked, so that a locked row delays no other, and two batches never wait for each
    # other. A row of NULL: there is a record, but not the expected one; with the last column true, it was locked or its
    # counter is out of range, and it must be sent alone. No row: there is no record.
    same = "r.space = {0}.space AND r.key = {0}.key AND r.part = {0}.part"
    return (
        "WITH g AS (SELECT * FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS g(n int, space text, key text, "
        "part text, fields jsonb, granted text, revision text, bucket int)), "
        f"there AS (SELECT g.* FROM {record} AS r JOIN g ON {same.format('g')} WHERE r.fields IS NOT NULL "
        f"AND r.revision < {COUNTER_MAX} "
        "FOR NO KEY UPDATE OF r SKIP LOCKED), "
        f"w AS (UPDATE {record} AS r SET {_RENEWED}, fields = r.fields || t.fields, "
        f"{_STAMPED} FROM there AS t WHERE {same.format('t')} "
        "AND (t.granted IS NULL OR r.granted::text = t.granted) "
        "AND (t.revision IS NULL OR r.revision::text = t.revision) "
        f"RETURNING t.n, t.bucket, r.space, r.key, r.part, {_FIELDS} AS fields, {_WRITTEN}) "
        f"SELECT g.n, w.granted, w.revision, w.updated, w.now, w.fields, {ring}, there.n IS NULL "
        "FROM g LEFT JOIN there ON there.n = g.n LEFT JOIN w ON w.n = g.n WHERE there.n IS NOT NULL "
        f"OR EXISTS (SELECT FROM {record} AS r WHERE {same.format('g')} AND r.fields IS NOT NULL)"
    )


def _ring(schema: str, space: str, key: str, part: str, number: str) -> str:
    # A notification makes all commits of the whole server queue up for a moment, so it is sent only if there are
    # waiters. A waiter holds the lock of the bucket and reads the record *afterwards*; we try to lock it before the
    # commit and keep it until then. So either we see the waiter, or the waiter sees the change. The receiver is chosen
    # by a function: as a part of the statement it would cost time even without waiters. Permits are told as locks are,
    # under the name of their `topic`.
    permit = _PERMIT.format(space)
    told = f"CASE WHEN {permit} THEN '{Space.LOCK.value}'::text ELSE {space} END"
    kind = f"CASE WHEN {part} = '{TURN}'::text THEN E'\\t{TURN}'::text ELSE E'\\tslot'::text END"
    about = f"{key} || CASE WHEN {permit} THEN {kind} ELSE ''::text END"
    return (
        f"CASE WHEN {number} IS NOT NULL AND NOT pg_catalog.pg_try_advisory_xact_lock({lock_class(schema)}, {number}) "
        f"THEN {schema}.tell({told}, {about}, {number}, '{{}}')::text END"
    )


def _tell(schema: str) -> str:
    # One waiter for a lock is notified, since only one can acquire it: a random one, or the first would be notified of
    # every release. Changes of members are for everybody. passed: the processes that were notified before and did not
    # use it; at most a hundred, because a notification has room for 8,000 bytes.
    return (
        f"CREATE OR REPLACE FUNCTION {schema}.tell(space text, key text, bucket int, passed int[]) RETURNS void "
        f"LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $tell$ "
        f"DECLARE one int; BEGIN IF space <> '{Space.LOCK.value}' THEN "
        f"PERFORM pg_notify('{schema}', '{EVERYBODY} ' || key); RETURN; END IF; "
        "SELECT l.pid INTO one FROM pg_catalog.pg_locks AS l WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' "
        f"AND l.granted AND l.objsubid = 2 AND l.classid = ({lock_class(schema)}::bigint & 4294967295)::oid "
        "AND l.objid = bucket::oid AND l.database = "
        "(SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()) "
        "AND l.pid <> ALL (passed) ORDER BY random() LIMIT 1; IF FOUND THEN "
        f"PERFORM pg_notify('{schema}', array_to_string((one || passed)[1:100], ',') || ' ' || key); "
        "END IF; END $tell$"
    )


def tables(schema: str) -> tuple[str, ...]:
    """Return the statements that create the tables of a schema, as an administrator may run them."""
    return (
        # by bytes: an index in the order of a language breaks when its rules are updated
        f'CREATE TABLE {schema}.record (space text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, '
        'part text COLLATE "C" NOT NULL, granted bigint NOT NULL, revision bigint NOT NULL, '
        "updated timestamptz NOT NULL, clock timestamptz, fields jsonb CHECK (jsonb_typeof(fields) = 'object'), "
        # room in each page for the next version of a row, so that the index is left alone
        "PRIMARY KEY (space, key, part)) WITH (fillfactor = 50)",
        f"CREATE TABLE {schema}.meta (one int PRIMARY KEY CHECK (one = 1), version int NOT NULL, least int NOT NULL, "
        "swept timestamptz NOT NULL)",
        _tell(schema),
        f"INSERT INTO {schema}.meta VALUES (1, {SCHEMA_VERSION}, 1, {_CLOCK})",
    )


def _migrations(schema: str) -> str:
    # Processes of an older version continue meanwhile, so a column is added and none is changed. They leave `clock`
    # as it was, and a record without it is observed for its ttl.
    return (
        f"IF (SELECT version FROM {schema}.meta) < 2 THEN ALTER TABLE {schema}.record ADD COLUMN clock timestamptz; "
        f"UPDATE {schema}.meta SET version = 2; END IF; "
        # in version 3 the function had no search path of its own
        f"IF (SELECT version FROM {schema}.meta) < 4 THEN {_tell(schema)}; "
        f"UPDATE {schema}.meta SET version = 4; END IF;"
    )


def _set_up(schema: str) -> str:
    # The catalogs are read by queries: to_regclass would use a cache that a wait for the lock does not refresh.
    made = "; ".join(tables(schema))
    return (
        f"DO $lockstead$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock({lock_class(schema)}, {SETTING_UP}); "
        f"IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{schema}') "
        f"THEN CREATE SCHEMA {schema}; END IF; "
        "IF NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
        f"ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND c.relname = 'meta') "
        f"THEN {made}; END IF; {_migrations(schema)} END $lockstead$"
    )


def _sweep(schema: str, record: str) -> str:
    return (
        f"WITH turn AS (UPDATE {schema}.meta SET swept = {_CLOCK} "
        f"WHERE swept < {_CLOCK} - interval '{SWEEP_EVERY} seconds' RETURNING 1) "
        f"DELETE FROM {record} WHERE EXISTS (SELECT FROM turn) AND ctid = ANY (ARRAY(SELECT ctid FROM {record} "
        f"WHERE fields IS NULL AND updated < {_CLOCK} - interval '{REMEMBERED}' "
        "LIMIT 10000 FOR UPDATE SKIP LOCKED))"
    )
