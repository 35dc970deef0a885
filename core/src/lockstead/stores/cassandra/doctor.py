"""Diagnosis of a cluster beyond the store's commands: replication, nodes, commit log, table.

It only reads the server's system tables. Must not know commands or records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import cassandra

from lockstead.stores.cassandra.errors import failure
from lockstead.stores.cassandra.rows import TABLE
from lockstead.stores.cassandra.url import Where
from lockstead.stores.examination import Finding, Guarantee, Severity

BEHIND: Final[Mapping[Guarantee, str]] = {
    Guarantee.CREATE_PRESENT: "INSERT ... IF NOT EXISTS",
    Guarantee.CREATE_RACE: "Paxos among the replicas of the row",
    Guarantee.EXTEND_REVISION: "UPDATE ... IF held AND incarnation AND revision",
    Guarantee.REPLACE_REVISION: "UPDATE ... IF held AND incarnation AND revision",
    Guarantee.REMOVE_INCARNATION: "UPDATE ... IF held AND incarnation",
    Guarantee.TOKEN: "a column that stays when the lock is free",
}

GRACE_LOW: Final = 3 * 3600
"""Seconds. Cassandra must remember votes and deleted rows for longer than a replica may be absent."""

Rows = list[Mapping[str, Any]]
Ask = Callable[..., Rows]


def examination(look: Callable[[str, Sequence[str], float], Rows], where: Where, limit: float) -> Iterator[Finding]:
    """Yield the findings on the cluster. limit is seconds for each request; raises the errors of `failure`."""

    def ask(cql: str, *values: str) -> Rows:
        return look(cql, values, limit)

    try:
        local = ask("SELECT release_version, data_center FROM system.local")[0]
        peers = ask("SELECT data_center FROM system.peers")
        nodes = 1 + len(peers)
        centres = {local["data_center"], *(peer["data_center"] for peer in peers)}
        text = (
            f"version {local['release_version']}, {nodes} node{'s' if nodes > 1 else ''} in {len(centres)} data centre"
        )
        yield Finding(
            Severity.OK, "cluster", text, figures={"nodes": float(nodes), "data_centres": float(len(centres))}
        )
        yield _consistency(where, len(centres))
        yield _copies(ask, where, nodes)
        yield _commit_log(ask)
        yield from _table(ask, where)
    except cassandra.DriverException as error:
        raise failure(error, where.url, writes=False) from error


def _consistency(where: Where, centres: int) -> Finding:
    check = "consistency"
    if where.consistency == "serial":
        return Finding(Severity.OK, check, "SERIAL: one lock for all data centres")
    text = "LOCAL_SERIAL: every data centre has a lock of its own"
    if centres > 1:
        return Finding(Severity.WARNING, check, text, "remove consistency=local_serial, or lock in one centre only")
    return Finding(Severity.NOTE, check, text, "never use both consistencies for one lock")


def _copies(ask: Ask, where: Where, nodes: int) -> Finding:
    check = "keyspace.copies"
    found = ask("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s", where.keyspace)
    replication = dict(found[0]["replication"]) if found else {}
    copies = sum(int(value) for name, value in replication.items() if name != "class" and value.isdigit())
    figures = {"copies": float(copies)}
    text = f"the keyspace has {copies} cop{'y' if copies == 1 else 'ies'} of every record"
    change = f'ALTER KEYSPACE "{where.keyspace}" with three copies, then nodetool repair'
    text += ": when one node stops, so do locks" if copies < 3 else ""
    if copies < 3 <= nodes:
        return Finding(Severity.WARNING, check, text, change, figures)
    if copies < 3:
        return Finding(Severity.NOTE, check, text, "three nodes with three copies tolerate one that stops", figures)
    return Finding(Severity.OK, check, text, figures=figures)


def _commit_log(ask: Ask) -> Finding:
    check = "commit_log"
    try:
        found = ask("SELECT value FROM system_views.settings WHERE name = %s", "commitlog_sync")
    except cassandra.RequestValidationException:
        found = []  # Cassandra before 4.0, ScyllaDB
    if not found:
        text = "whether nodes write to disk before they answer is unknown"
        return Finding(Severity.NOTE, check, text, "make sure that commitlog_sync is 'batch' or 'group'")
    mode = str(found[0]["value"])
    if mode == "periodic":
        text = "commitlog_sync is periodic: a node that loses power forgets votes that it gave, some 10 s of them"
        return Finding(Severity.WARNING, check, text, "set commitlog_sync: group (or batch) in cassandra.yaml")
    return Finding(Severity.OK, check, f"commitlog_sync is {mode}: a vote is on disk before it counts")


def _table(ask: Ask, where: Where) -> Iterator[Finding]:
    found = ask(
        "SELECT gc_grace_seconds, default_time_to_live FROM system_schema.tables "
        "WHERE keyspace_name = %s AND table_name = %s",
        where.keyspace,
        TABLE,
    )
    if not found:
        return
    grace, default_ttl = int(found[0]["gc_grace_seconds"] or 0), int(found[0]["default_time_to_live"] or 0)
    if default_ttl:
        text = f"rows of {TABLE} vanish after {default_ttl} s even while a lock is held, and its tokens with them"
        yield Finding(Severity.FAILURE, "table.lives", text, f"ALTER TABLE {TABLE} WITH default_time_to_live = 0")
    if grace < GRACE_LOW:
        text = f"gc_grace_seconds of {TABLE} is {grace}: votes are forgotten sooner than a node may be away"
        yield Finding(Severity.WARNING, "table.grace", text, "set it to the default of 864000 and repair in that time")
    else:
        yield Finding(Severity.OK, "table.grace", f"gc_grace_seconds is {grace}: repair within it")
