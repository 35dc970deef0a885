"""The PostgreSQL store: what a URL means, whom the server accepts, and how the tables are created."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Create, Extend, Read, Remove, Snapshot
from lockstead.stores import url
from lockstead.stores.postgres.statements import REMEMBERED, SCHEMA_VERSION
from lockstead.stores.postgres.store import PostgresStore
from lockstead.stores.postgres.url import target_of
from lockstead.testing.conformance.races import in_child
from lockstead.values import Name
from tests.servers.postgres import USER, PostgresServer, StandbyServer

APT = Name("apt")
LIMIT = 30.0
NUMBERS = count()
RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    server.tell(
        "CREATE ROLE guarded LOGIN PASSWORD 'open sesame'",
        "CREATE ROLE guest LOGIN",
        "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
        "CREATE DATABASE narrow CONNECTION LIMIT 0",
    )
    rules = server.cluster / "pg_hba.conf"
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.tell("SELECT pg_reload_conf()")
    yield server
    server.remove()


@pytest.fixture
def schema() -> str:
    return f"setup{next(NUMBERS)}"


def refused(text: str) -> StoreError:
    store = url.open_store(text)
    try:
        with pytest.raises(StoreError) as caught:
            store.perform(Read(APT), LIMIT)
    finally:
        store.close()
    assert "\n" not in str(caught.value)
    assert "sesame" not in str(caught.value)
    return caught.value


# --- the URL -----------------------------------------------------------------------------------------------------


def test_h22_a_shown_url_has_no_credentials_and_the_same_store() -> None:
    given = "postgres://me:open%20sesame@one:1,two:2/db?sslmode=require&schema=mine&password=sesame&user=me"
    target = target_of(given)
    assert target.url == "postgresql://one:1,two:2/db?schema=mine&sslmode=require"
    assert target_of(target.url).url == target.url
    assert url.printable(given) == target.url
    for text in (repr(target), repr(PostgresStore(target)), str(url.parse_store(given))):
        assert "sesame" not in text
    assert target_of(target.url).schema == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://host",
        "postgresql://host/",
        "postgresql:db",
        "postgresql://a:sesame@b@c/db/x",
        "postgresql://me:ses/ame@host/db",
        "postgresql://host/db?schema=Bad",
        "postgresql://host/db?schema=pg_x",
        "postgresql://host/db?schema=a;drop",
        "postgresql://host/db?listen=maybe",
        "postgresql://me:sesame@host:port/db",
        "postgresql://one:5432,two:sesame/db",
        "postgresql://[::1]:x/db",
        "postgresql://host:0/db",
        "postgresql://host:65536/db",
        "postgresql://host/db?listen_port=x",
    ],
)
def test_what_is_no_url_of_a_database_is_told_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        url.open_store(text)
    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_invalid_port_is_reported_and_valid_ones_accepted() -> None:
    with pytest.raises(ValueError, match=r"a port .* must be a number from 1 to 65535"):
        url.open_store("postgresql://host:5432x/db")
    for hosts in ("host", "host:", "one:1,two:65535", "[::1]", "[::1]:5432", "", "%2Fvar%2Frun", "%2Fvar%2Frun:5433"):
        assert target_of(f"postgresql://{hosts}/db").url == f"postgresql://{hosts}/db"


def test_a_client_of_the_callers_own_is_refused() -> None:
    with pytest.raises(TypeError, match="accepts no client"):
        url.open_store("postgresql://host/db", object())


def test_credentials_come_from_the_environment(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.tell("GRANT CREATE ON DATABASE postgres TO guarded")
    shown = url.printable(f"postgresql://guarded:wrong@127.0.0.1:{server.port}/postgres?schema=guarded")
    monkeypatch.setenv("PGUSER", "guarded")
    monkeypatch.setenv("PGPASSWORD", "open sesame")
    store = url.open_store(shown)
    assert store.perform(Read(APT), LIMIT) == Absent()
    store.close()


# --- the way there -----------------------------------------------------------------------------------------------


def test_who_is_not_let_in_is_told_why(server: PostgresServer) -> None:
    at = f"127.0.0.1:{server.port}"
    never = {
        f"postgresql://guarded:wrong-sesame@{at}/postgres": "password authentication failed",
        f"postgresql://guarded@{at}/postgres": "no password supplied",
        f"postgresql://nobody@{at}/postgres": 'role "nobody" does not exist',
        f"postgresql://{USER}@{at}/nowhere": 'database "nowhere" does not exist',
        f"postgresql://{USER}@{at}/latin": "ENCODING 'UTF8'",
        f"postgresql://{USER}@{at}/postgres?sslmode=require": "?sslmode=",
    }
    for text, words in never.items():
        error = refused(text)
        assert isinstance(error, StoreRefused), error
        assert words in str(error)


def test_what_may_pass_is_unavailable(server: PostgresServer) -> None:
    error = refused(f"postgresql://guest@127.0.0.1:{server.port}/narrow")
    assert isinstance(error, StoreUnavailable)
    assert "put PgBouncer in front" in str(error)
    error = refused("postgresql://me@127.0.0.1:1/db")
    assert isinstance(error, StoreUnavailable)
    assert "refused" in str(error)


def test_another_server_behind_the_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(100)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        error = refused(f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/db?gssencmode=disable")
        assert isinstance(error, StoreRefused), error
        assert "not a PostgreSQL server" in str(error)


def test_a_server_that_accepts_and_is_silent_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = url.open_store(f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/db")
        with pytest.raises(StoreUnavailable, match="no answer within"):
            store.perform(Read(APT), 0.3)
        store.close()


@pytest.mark.parametrize("where", ["URL", "environment", "service file"])
def test_connect_timeout_bounds_a_silent_host_wherever_it_is_set(
    server: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "services").write_text("[locks]\nconnect_timeout=1\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    if where == "environment":
        monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")
    option = {"URL": "&connect_timeout=1", "service file": "&service=locks"}.get(where, "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        with closing(url.open_store(f"postgresql://{USER}@{hosts}/postgres?schema={schema}{option}")) as store:
            began_at = time.monotonic()
            assert store.perform(Read(APT), LIMIT) == Absent()
            assert time.monotonic() - began_at < LIMIT / 3, "it was given half of the time for both hosts"
    # one that is longer than the limit does not prolong it
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "services").write_text("[locks]\nconnect_timeout=3600\n")
        there = f"postgresql://{USER}@127.0.0.1:{silent.getsockname()[1]}/postgres?service=locks"
        with closing(url.open_store(there)) as store, pytest.raises(StoreUnavailable, match="no answer within"):
            store.perform(Read(APT), 0.3)


def test_a_standby_is_named_and_the_primary_found_among_several(server: PostgresServer, schema: str) -> None:
    standby = StandbyServer(server)
    try:
        standby.start()
        with_tables = url.open_store(f"{server.url()}?schema={schema}")
        made = with_tables.perform(Create(APT, {"v": "1"}), LIMIT)
        standby.until(lambda: standby.tell(f"SELECT to_regclass('{schema}.meta')") != [(None,)], "it does not follow")
        for name in (schema, "nowhere"):
            error = refused(f"{standby.url()}?schema={name}")
            assert isinstance(error, StoreUnavailable)
            assert "is a standby" in str(error)
            assert "target_session_attrs=read-write" in str(error)
        hosts = f"postgresql://{USER}@127.0.0.1:{standby.port},127.0.0.1:{server.port}/postgres"
        store = url.open_store(f"{hosts}?schema={schema}&target_session_attrs=read-write")
        assert isinstance(made, Snapshot)
        assert isinstance(store.perform(Extend(APT, {}, made.incarnation), LIMIT), Snapshot)
        error = refused(f"{standby.url()}?schema={schema}&target_session_attrs=read-write")
        assert isinstance(error, StoreUnavailable)
        assert "is a standby" in str(error)
        store.close()
        with_tables.close()
    finally:
        standby.remove()


# --- the tables --------------------------------------------------------------------------------------------------


def test_many_processes_make_the_tables_at_once(server: PostgresServer, schema: str) -> None:
    there = f"{server.url()}?schema={schema}"

    def begin(number: int) -> None:
        store = url.open_store(there)
        answer = store.perform(Create(Name(f"key-{number}"), {}), LIMIT)
        assert isinstance(answer, Snapshot), answer

    children = [in_child(partial(begin, number)) for number in range(16)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 16
    assert server.tell(f"SELECT count(*) FROM {schema}.record") == [(16,)]


def test_who_may_not_make_the_tables_is_shown_the_sql_for_who_may(server: PostgresServer, schema: str) -> None:
    there = f"{server.url(user='guest')}?schema={schema}"
    error = refused(there)
    assert isinstance(error, StoreRefused)
    before, _, sql = str(error).partition("To be run by an administrator: ")
    assert before.startswith("no right")
    server.tell(sql)
    assert isinstance(refused(there), StoreRefused)
    server.tell(f"GRANT USAGE ON SCHEMA {schema} TO guest")
    server.tell(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO guest")
    store = url.open_store(there)
    assert isinstance(store.perform(Create(APT, {}), LIMIT), Snapshot)
    store.close()


def test_tables_of_another_program_are_left_alone(server: PostgresServer, schema: str) -> None:
    server.tell(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.meta (something text)")
    error = refused(f"{server.url()}?schema={schema}")
    assert isinstance(error, StoreRefused)
    assert "name another schema" in str(error)
    assert server.tell(f"SELECT to_regclass('{schema}.record')") == [(None,)]


def test_tables_of_version_1_are_carried_on_with_their_locks(server: PostgresServer) -> None:
    server.tell((RECORDED / "postgresql-1.sql").read_text("utf-8").split("\n", 1)[1])
    try:
        store = url.open_store(server.url())
        held = store.perform(Read(Name("held")), LIMIT)
        assert isinstance(held, Snapshot)
        assert held.fields["owner"] == "recorder"
        assert held.incarnation == "1795260647776"
        assert held.updated_at is None  # nothing tells whose clock it was
        extended = store.perform(Extend(Name("held"), {"n": "1"}, held.incarnation), LIMIT)
        assert isinstance(extended, Snapshot)
        assert extended.updated_at is not None
        again = store.perform(Create(Name("released"), {}), LIMIT)
        assert isinstance(again, Snapshot)
        assert again.token is not None
        assert again.token > 1795260647773
        assert server.tell("SELECT version, least FROM lockstead.meta") == [(SCHEMA_VERSION, 1)]
        # a process of version 1 goes on: what it writes is kept, and nobody judges by its clock
        server.tell(
            "INSERT INTO lockstead.record (space, key, part, granted, revision, updated, fields) "
            "VALUES ('lock', 'old', '', 1, 1, clock_timestamp(), '{\"v\": \"1\"}')"
        )
        old = store.perform(Read(Name("old")), LIMIT)
        assert isinstance(old, Snapshot)
        assert old.updated_at is None
        store.close()
    finally:
        server.tell("DROP SCHEMA IF EXISTS lockstead CASCADE")


def test_a_role_that_cannot_migrate_is_shown_the_sql(server: PostgresServer, schema: str) -> None:
    first = url.open_store(f"{server.url()}?schema={schema}")
    first.perform(Read(APT), LIMIT)
    first.close()
    server.tell(
        f"DROP FUNCTION {schema}.tell",
        f"UPDATE {schema}.meta SET version = 2",
        f"GRANT USAGE ON SCHEMA {schema} TO guest",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO guest",
    )
    there = f"{server.url(user='guest')}?schema={schema}"
    error = refused(there)
    assert isinstance(error, StoreRefused)
    server.tell(str(error).partition("To be run by an administrator: ")[2])
    store = url.open_store(there)
    assert isinstance(store.perform(Create(APT, {}), LIMIT), Snapshot)
    store.close()


def test_h30_later_tables_are_used_if_they_allow_it(server: PostgresServer, schema: str) -> None:
    there = f"{server.url()}?schema={schema}"
    first = url.open_store(there)
    first.perform(Create(APT, {}), LIMIT)
    first.close()
    server.tell(f"UPDATE {schema}.meta SET version = 99")
    second = url.open_store(there)
    assert isinstance(second.perform(Read(APT), LIMIT), Snapshot)
    second.close()
    server.tell(f"UPDATE {schema}.meta SET least = 99")
    error = refused(there)
    assert isinstance(error, StoreRefused)
    assert "upgrade lockstead" in str(error)


def test_removed_rows_are_deleted_after_a_day_and_tokens_grow(server: PostgresServer, schema: str) -> None:
    there = f"{server.url()}?schema={schema}"
    store = url.open_store(there)
    tokens = []
    for name in (APT, Name("yum")):
        made = store.perform(Create(name, {}), LIMIT)
        assert isinstance(made, Snapshot)
        tokens.append(made.token or 0)
        store.perform(Remove(name, made.incarnation), LIMIT)
    store.perform(Create(Name("held"), {}), LIMIT)
    store.close()
    table = f"{schema}.record"
    server.tell(
        f"UPDATE {table} SET updated = updated - interval '{REMEMBERED}' - interval '1 minute' WHERE key <> 'yum'",
        f"UPDATE {schema}.meta SET swept = swept - interval '2 hours'",
    )
    again = url.open_store(there)
    made = again.perform(Create(APT, {}), LIMIT)
    assert isinstance(made, Snapshot)
    assert (made.token or 0) > max(tokens)
    keys = server.tell(f"SELECT key, revision FROM {table} ORDER BY key")
    assert keys == [("apt", 1), ("held", 1), ("yum", 2)]
    again.close()
    assert server.tell(f"SELECT clock_timestamp() - swept < interval '1 hour' FROM {schema}.meta") == [(True,)]


def test_an_endless_greeting_uses_bounded_memory() -> None:
    notice = b"SNOTICE\0VNOTICE\0C00000\0M" + b"x" * 2000 + b"\0\0"
    piece = (b"N" + struct.pack("!I", len(notice) + 4) + notice) * 100

    def floods(listener: socket.socket) -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.recv(10_000)
                client.sendall(b"R" + struct.pack("!II", 8, 0))
                while True:
                    client.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=floods, args=(listener,), daemon=True).start()
        place = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/d?sslmode=disable&gssencmode=disable"
        with closing(url.open_store(place)) as store, pytest.raises(StoreUnavailable, match="more than 1 MiB"):
            store.perform(Read(APT), 5.0)
