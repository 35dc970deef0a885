"""What an examination finds of a PostgreSQL server: each thing that is wrong, made wrong on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from lockstead.protocol.commands import Read
from lockstead.stores import url
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.port import SupportsDiagnostics
from lockstead.values import Name, Space
from tests.servers.postgres import BouncerServer, PostgresServer, StandbyServer

LIMIT = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(settings={"max_connections": "30"}).start()
    server.tell("CREATE ROLE guest LOGIN")
    with closing(url.open_store(server.url())) as store:
        store.perform(Read(Name("apt")), LIMIT)  # makes the tables
    yield server
    server.remove()


def examined(there: str) -> dict[str, Finding]:
    with closing(url.open_store(there)) as store:
        assert isinstance(store, SupportsDiagnostics)
        found = store.examine(lambda part: Name("scratch", Space.AUDIT, part), LIMIT)
        return {finding.check: finding for finding in found}


def test_a_server_that_forgets_is_a_warning_and_nothing_else_is(server: PostgresServer) -> None:
    found = examined(server.url())
    wrong = {check: finding.severity for check, finding in found.items() if finding.severity is not Severity.OK}
    # the server of the tests saves on both
    assert wrong == {"server.durability": Severity.WARNING, "server.vacuum": Severity.WARNING}
    assert "fsync is off" in found["server.durability"].text
    assert found["server"].text.startswith("PostgreSQL 1")
    assert found["server.connections"].figures["most_count"] == 30.0


def test_what_a_role_is_set_to_is_looked_at(server: PostgresServer) -> None:
    server.tell("GRANT USAGE ON SCHEMA lockstead TO guest", "GRANT SELECT ON ALL TABLES IN SCHEMA lockstead TO guest")
    settings = {
        "synchronous_commit": "off",
        "default_transaction_isolation": "'serializable'",
        "default_transaction_read_only": "on",
        "statement_timeout": "7000",
    }
    for name, value in settings.items():
        server.tell(f"ALTER ROLE guest SET {name} = {value}")
    found = examined(server.url(user="guest"))
    assert "fsync is off and synchronous_commit is off" in found["server.durability"].text
    assert "SERIALIZABLE" in found["server.isolation"].text
    assert found["server.read-only"].severity is Severity.FAILURE
    assert "7s" in found["server.statement-timeout"].text
    assert found["schema.rights"].severity is Severity.FAILURE
    assert "lacks INSERT, UPDATE, DELETE" in found["schema.rights"].text
    server.tell(found["schema.rights"].remedy)
    assert examined(server.url(user="guest"))["schema.rights"].severity is Severity.OK


def test_a_pooler_is_a_note_that_says_how_waiters_are_woken_again(server: PostgresServer) -> None:
    bouncer = BouncerServer(server)
    try:
        with bouncer:
            finding = examined(server.url(port=bouncer.port))["server.pooler"]
    finally:
        bouncer.remove()
    assert finding.severity is Severity.NOTE
    assert "listen_host" in finding.remedy


def test_an_asynchronous_standby_is_a_note(server: PostgresServer) -> None:
    standby = StandbyServer(server)
    try:
        standby.start()
        server.until(lambda: server.tell("SELECT count(*) FROM pg_stat_replication") == [(1,)], "it does not follow")
        finding = examined(server.url())["server.replication"]
        assert finding.severity is Severity.NOTE
        assert "may forget" in finding.text
        server.tell("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        server.until(lambda: server.tell("SHOW synchronous_standby_names") == [("*",)], "it does not load")
        assert examined(server.url())["server.replication"].severity is Severity.OK
    finally:
        server.tell("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        standby.remove()


def test_a_server_that_is_nearly_full_is_a_warning(server: PostgresServer) -> None:
    others = [psycopg.connect(server.url()) for _ in range(22)]
    try:
        finding = examined(server.url())["server.connections"]
    finally:
        for other in others:
            other.close()
    assert finding.severity is Severity.WARNING
    assert "max_connections" in finding.remedy
