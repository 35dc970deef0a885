"""The PostgreSQL store: what is known after a failure, on a real server that is stopped, killed and filled up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any

import psycopg
import pytest

import lockstead
from lockstead.errors import LossReason, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Create, Extend, List, Read, Remove, Removed, Replace, Snapshot
from lockstead.stores import url
from lockstead.stores.bounds import Bounds
from lockstead.stores.port import Store, SupportsBatching
from lockstead.stores.postgres.libpq import received
from lockstead.stores.postgres.operations import Operation, Request
from lockstead.stores.postgres.statements import statements as statements_of
from lockstead.stores.postgres.store import PostgresStore
from lockstead.values import Name, Space
from tests.servers.postgres import PostgresServer, reachable_folder

APT = Name("apt")
LIMIT = 30.0
SHORT = 0.5
CALLED_BACK = 2.5
"""Seconds; the server has the last half second to say that it stopped the statement."""
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(settings={"log_statement": "all"}).start()
    yield server
    server.remove()


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    server = PostgresServer(settings={"max_connections": "20"})
    yield server.start()
    server.remove()


@pytest.fixture
def schema() -> str:
    return f"fault{next(NUMBERS)}"


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[Store]:
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as store:
        yield store


def made(store: Store, name: Name = APT) -> Snapshot:
    answer = store.perform(Create(name, {"v": "1", "identity": "me"}), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


def seen(store: Store, name: Name = APT) -> Snapshot:
    answer = store.perform(Read(name), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


@contextmanager
def in_the_way(server: PostgresServer, schema: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A transaction of another client that locks every row of a schema."""
    with psycopg.connect(server.url()) as other:
        other.execute(f"SELECT FROM {schema}.record FOR UPDATE")
        yield other


def until_waiting(server: PostgresServer, words: str, backends: int = 1) -> list[int]:
    """Wait until so many statements with these words wait for a lock; give their backends."""
    ends_at = time.monotonic() + LIMIT
    asked = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND query LIKE '%{words}%' AND pid <> pg_backend_pid()"
    )
    while len(found := server.tell(asked)) < backends:
        assert time.monotonic() < ends_at, "nothing waits"
        time.sleep(0.01)
    return [row[0] for row in found]


def asked_apart(job: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Ask in a thread, and keep the answer or the error."""
    said: list[object] = []

    def run() -> None:
        try:
            said.append(job())
        except StoreError as error:
            said.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, said


# --- statements that do not end ----------------------------------------------------------------------------------


def test_h28_a_statement_that_waits_too_long_is_cancelled(server: PostgresServer, store: Store, schema: str) -> None:
    first = made(store)
    with in_the_way(server, schema) as other:
        for command in (Extend(APT, {"n": "1"}, first.incarnation), Remove(APT, first.incarnation)):
            with pytest.raises(StoreUnavailable, match="nothing was changed"):
                store.perform(command, CALLED_BACK)  # type: ignore[misc] # a command of any kind
        extends = [Extend(APT, {}, first.incarnation), Extend(Name("no"), {}, None)]
        answers = batches(store).perform_many(extends, CALLED_BACK)
        assert [type(answer) for answer in answers] == [StoreUnavailable, Absent]
        other.rollback()
    assert seen(store).revision == first.revision


def test_rows_that_somebody_keeps_locked_hold_up_no_other_of_a_batch(
    server: PostgresServer, store: Store, schema: str
) -> None:
    locked, freed, good, gone = (Name(f"key-{number}") for number in range(4))
    extends = [Extend(name, {}, made(store, name).incarnation) for name in (locked, freed, good)]
    with psycopg.connect(server.url()) as keeps, psycopg.connect(server.url()) as passing:
        keeps.execute(f"SELECT FROM {schema}.record WHERE key = '{locked.key}' FOR UPDATE")
        passing.execute(f"SELECT FROM {schema}.record WHERE key = '{freed.key}' FOR UPDATE")
        thread, said = asked_apart(
            lambda: batches(store).perform_many([*extends, Extend(gone, {}, None)], 2 * CALLED_BACK)
        )
        until_waiting(server, "UPDATE")
        assert seen(store, good).revision == "2", "its renewal waits for nobody"
        passing.rollback()
        thread.join(LIMIT)
        (answers,) = said
        assert [type(answer) for answer in answers] == [StoreUnavailable, Snapshot, Snapshot, Absent]  # type: ignore[attr-defined] # a list
        keeps.rollback()
    assert isinstance(batches(store).perform_many(extends, LIMIT)[0], Snapshot)


def batches(store: Store) -> SupportsBatching:
    assert isinstance(store, SupportsBatching)
    return store


def test_h13_a_stalled_statement_sets_no_earlier_time(server: PostgresServer, store: Store, schema: str) -> None:
    """Rule 13: `now()`, or a clock that was read before the wait, would be earlier than what was written meanwhile."""
    first = made(store)
    with in_the_way(server, schema) as other:
        thread, said = asked_apart(lambda: store.perform(Extend(APT, {}, first.incarnation), LIMIT))
        until_waiting(server, "UPDATE")
        other.execute(f"UPDATE {schema}.record SET updated = clock_timestamp() RETURNING updated")
        (meanwhile,) = other.execute(f"SELECT extract(epoch FROM updated) FROM {schema}.record").fetchone() or (0,)
        other.commit()
    thread.join(LIMIT)
    (answer,) = said
    assert isinstance(answer, Snapshot)
    assert answer.updated_at is not None
    assert answer.updated_at >= float(str(meanwhile))
    # and a clock that was set back altogether
    server.tell(f"UPDATE {schema}.record SET updated = clock_timestamp() + interval '1 hour'")
    ahead = seen(store)
    for command in (
        Extend(APT, {}, first.incarnation),
        Extend(APT, {"n": "1"}, None),
    ):
        later = store.perform(command, LIMIT)
        assert isinstance(later, Snapshot)
        assert later.updated_at == ahead.updated_at
        assert later.store_now is not None
        assert later.store_now < (later.updated_at or 0.0), "the clock is shown as it is"
    (batched, _) = batches(store).perform_many([Extend(APT, {}, None), Extend(Name("no"), {}, None)], LIMIT)
    assert batched.updated_at == ahead.updated_at
    now = seen(store)
    replaced = store.perform(Replace(APT, {}, now.incarnation, now.revision), LIMIT)
    assert isinstance(replaced, Snapshot)
    assert replaced.updated_at == ahead.updated_at
    assert isinstance(store.perform(Remove(APT, replaced.incarnation), LIMIT), Removed)
    assert made(store).updated_at == ahead.updated_at


def test_a_statement_judges_the_row_after_its_wait(server: PostgresServer, store: Store, schema: str) -> None:
    changes = {
        f"UPDATE {schema}.record SET fields = NULL": Absent,
        f"UPDATE {schema}.record SET granted = granted + 1": Conflict,
        f"UPDATE {schema}.record SET revision = revision + 1": Conflict,
    }
    for change, kind in changes.items():
        for number, ask in enumerate((_replace, _extend, _remove, _extend_among_others)):
            first = made(store)
            with in_the_way(server, schema) as other:
                thread, said = asked_apart(lambda ask=ask, first=first: ask(store, first))  # type: ignore[misc]
                until_waiting(server, "UPDATE")
                other.execute(change)
                other.commit()
            thread.join(LIMIT)
            assert [type(answer) for answer in said] == [kind], (change, number)
            server.tell(f"UPDATE {schema}.record SET fields = NULL")


def _replace(store: Store, first: Snapshot) -> object:
    return store.perform(Replace(APT, {}, first.incarnation, first.revision), LIMIT)


def _extend(store: Store, first: Snapshot) -> object:
    return store.perform(Extend(APT, {}, first.incarnation, first.revision), LIMIT)


def _remove(store: Store, first: Snapshot) -> object:
    return store.perform(Remove(APT, first.incarnation, first.revision), LIMIT)


def _extend_among_others(store: Store, first: Snapshot) -> object:
    other = Extend(Name("no"), {}, None)
    return batches(store).perform_many([Extend(APT, {}, first.incarnation, first.revision), other], LIMIT)[0]


@pytest.mark.parametrize("statement", ["INSERT", "UPDATE"])
def test_a_grant_has_a_greater_token_than_the_previous_holder(
    server: PostgresServer, store: Store, schema: str, statement: str
) -> None:
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as other_store:
        # who gave it back itself takes it by another statement
        before = store if statement == "UPDATE" else other_store
        before.perform(Remove(APT, made(before).incarnation), LIMIT)
    with in_the_way(server, schema) as other:
        thread, said = asked_apart(lambda: store.perform(Create(APT, {}), LIMIT))
        until_waiting(server, statement)
        # granted and given back meanwhile, by a server whose clock is ahead
        other.execute(f"UPDATE {schema}.record SET granted = granted + 1000000000000")
        (granted,) = other.execute(f"SELECT granted FROM {schema}.record").fetchone() or (0,)
        other.commit()
    thread.join(LIMIT)
    (answer,) = said
    assert isinstance(answer, Snapshot)
    assert answer.token == int(str(granted)) + 1


def test_two_batches_in_opposite_order_never_deadlock(server: PostgresServer, store: Store, schema: str) -> None:
    names = [Name(f"key-{number:03}") for number in range(200)]
    incarnations = {name: made(store, name).incarnation for name in names}
    with closing(url.open_store(store.url + f"&user={server.url().split('//')[1].split('@')[0]}")) as twin:

        def renew(one: Store, order: list[Name]) -> list[object]:
            asked = [Extend(name, {"n": "1"}, incarnations[name]) for name in order]
            return [answer for _ in range(15) for answer in batches(one).perform_many(asked, LIMIT)]

        pairs = [asked_apart(lambda: renew(store, names)), asked_apart(lambda: renew(twin, names[::-1]))]
        for thread, said in pairs:
            thread.join(2 * LIMIT)
            assert all(isinstance(answer, Snapshot) for answer in said[0])  # type: ignore[attr-defined] # a list
    assert {entry[1].revision for entry in store.perform(List(Space.LOCK), LIMIT).entries} == {"31"}


def test_a_conflict_in_a_batch_is_asked_again_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL 18.0 and 18.1 answer so if another client writes to the row meanwhile."""
    apt, yum = made(store), made(store, Name("yum"))

    def conflicts(asked: Sequence[Extend]) -> Operation[list[Conflict]]:
        yield from ()
        return [Conflict() for _ in asked]

    assert isinstance(store, PostgresStore)
    monkeypatch.setattr(store._operations, "extend_many", conflicts)
    asked = [Extend(APT, {"n": "1"}, apt.incarnation), Extend(Name("yum"), {"n": "1"}, apt.incarnation + "0")]
    answers = batches(store).perform_many(asked, LIMIT)
    assert [type(answer) for answer in answers] == [Snapshot, Conflict]
    assert seen(store, Name("yum")).revision == yum.revision


def test_a_refused_command_of_a_batch_spares_the_others(store: Store) -> None:
    first = made(store)
    bad = Extend(APT, {"n": "\0"}, first.incarnation)
    good = Extend(Name("no"), {}, None)
    other = made(store, Name("yum"))
    answers = batches(store).perform_many([bad, Extend(Name("yum"), {"n": "1"}, other.incarnation), good], LIMIT)
    assert [type(answer) for answer in answers] == [StoreRefused, Snapshot, Absent]


# --- connections that end ----------------------------------------------------------------------------------------


def test_a_terminated_backend_leaves_an_unknown_outcome(server: PostgresServer, store: Store, schema: str) -> None:
    first = made(store)
    with in_the_way(server, schema):
        thread, said = asked_apart(lambda: store.perform(Extend(APT, {}, first.incarnation), LIMIT))
        (backend,) = until_waiting(server, "UPDATE")
        server.tell(f"SELECT pg_terminate_backend({backend})")
        thread.join(LIMIT)
    assert isinstance(said[0], OutcomeUnknown), said
    assert seen(store).revision == first.revision


def test_a_connection_closed_while_idle_is_replaced(server: PostgresServer, store: Store, schema: str) -> None:
    first = made(store)
    server.tell(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        f"WHERE query LIKE '%{schema}.record%' AND pid <> pg_backend_pid()"
    )
    time.sleep(0.05)  # what the server said goes through the loopback
    assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)


def test_a_statement_cancelled_by_an_admin_was_not_applied(server: PostgresServer, store: Store, schema: str) -> None:
    first = made(store)
    with in_the_way(server, schema):
        thread, said = asked_apart(lambda: store.perform(Remove(APT, first.incarnation), LIMIT))
        (backend,) = until_waiting(server, "UPDATE")
        server.tell(f"SELECT pg_cancel_backend({backend})")
        thread.join(LIMIT)
    assert isinstance(said[0], StoreUnavailable), said
    assert "nothing was changed" in str(said[0])
    assert seen(store).revision == first.revision


@pytest.mark.parametrize("word", [b"INSERT 0 1", b"UPDATE 1"])
def test_h03_a_connection_cut_after_the_result_is_unknown(server: PostgresServer, schema: str, word: bytes) -> None:
    """The result is sent before the commit: who took it for the answer would believe in what may not be there."""
    there = f"{server.url()}?schema={schema}"
    with closing(url.open_store(there)) as store:
        first = made(store, Name("yum"))
    with (
        Cut(server.port, word, behind=b"record") as cut,
        closing(url.open_store(f"{server.url(port=cut.port)}?schema={schema}")) as store,
    ):
        with pytest.raises(OutcomeUnknown):
            if word.startswith(b"INSERT"):
                store.perform(Create(APT, {}), LIMIT)
            else:
                store.perform(Remove(Name("yum"), first.incarnation), LIMIT)
    assert cut.changes == 1, "a statement was sent twice"


def test_an_error_after_the_result_leaves_the_outcome_unknown(
    server: PostgresServer, store: Store, schema: str
) -> None:
    first = made(store)
    server.tell(
        f"CREATE FUNCTION {schema}.fails() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''at the end''; END'",
        f"CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON {schema}.record DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.fails()",
    )
    with pytest.raises(OutcomeUnknown, match="at the end"):
        store.perform(Extend(APT, {}, first.incarnation), LIMIT)


# --- a change that found nothing to change --------------------------------------------------------------------------


def test_a_record_created_between_write_and_read_is_changed(
    server: PostgresServer, schema: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as other:
        other.perform(Read(APT), LIMIT)
        looks = before_looks(store, monkeypatch, lambda: made(other))
        answer = store.perform(Extend(APT, {"n": "1"}, None), LIMIT)
    assert isinstance(answer, Snapshot), "there was a record, and any would do"
    assert answer.fields["n"] == "1"
    assert len(looks) == 1


def test_a_conflict_is_certain_even_if_the_read_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(store)
    store.perform(Remove(APT, first.incarnation), LIMIT)

    def fail() -> None:
        raise OutcomeUnknown("the answer was lost")

    before_looks(store, monkeypatch, fail)
    with pytest.raises(StoreUnavailable, match="the answer was lost"):
        store.perform(Remove(APT, first.incarnation), LIMIT)


def test_a_write_suppressed_by_a_trigger_ends_with_its_limit(server: PostgresServer, schema: str, store: Store) -> None:
    first = made(store)
    with server.asked() as connection:
        connection.execute(
            f"CREATE FUNCTION {schema}.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
            f"CREATE TRIGGER keep BEFORE UPDATE ON {schema}.record FOR EACH ROW EXECUTE FUNCTION {schema}.keep()"
        )
    with pytest.raises(StoreUnavailable, match="changes nothing"):
        store.perform(Remove(APT, first.incarnation), 2.0)


def before_looks(store: Store, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> list[bytes]:
    """Do something before each look of a change that found nothing; give the looks."""
    assert isinstance(store, PostgresStore)
    ask, look, looks = store._driver.exchange, store._statements.state, list[bytes]()

    def asked(bounds: Bounds, request: Request) -> list[list[str | None]]:
        if request[0] == look:
            looks.append(request[0])
            work()
        return ask(bounds, request)

    monkeypatch.setattr(store._driver, "exchange", asked)
    return looks


@pytest.mark.parametrize("name", ["remove", "extend", "replace"])
def test_a_change_starts_up_nothing_but_itself_while_nobody_waits(
    server: PostgresServer, store: Store, schema: str, name: str
) -> None:
    made(store)
    text = getattr(statements_of(schema), name).decode()
    asked = ", ".join(["NULL"] * (6 if name == "remove" else 7))
    with server.asked() as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute("SET enable_seqscan = off")
        connection.execute(f"PREPARE change AS {text}")
        plan = [str(row[0]) for row in connection.execute(f"EXPLAIN EXECUTE change ({asked})").fetchall()]
    assert sum("->" in line for line in plan) == 1, plan
    assert not any("Plan" in line for line in plan), plan


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_a_page_of_a_listing_is_read_by_the_index_and_not_sorted(
    server: PostgresServer, store: Store, schema: str, plans: str
) -> None:
    made(store)
    with server.asked() as connection:
        connection.execute(
            f"INSERT INTO {schema}.record SELECT space, 'key-' || n, part, granted, revision, updated, clock, fields "
            f"FROM {schema}.record, pg_catalog.generate_series(1, 5000) AS n"
        )
        connection.execute(f"ANALYZE {schema}.record")
        connection.execute(f"SET plan_cache_mode = {plans}")
        connection.execute(f"PREPARE page AS {statements_of(schema).list.decode()}")
        plan = str(connection.execute("EXPLAIN EXECUTE page ('lock', 'key-3', '', 100)").fetchall())
    assert "Index Scan" in plan, plan
    assert "Sort" not in plan, plan


class Cut:
    """A relay that ends a connection right after a reply of the server, once the client has requested a change."""

    def __init__(self, port: int, word: bytes, behind: bytes) -> None:
        self._to = port
        self._word = word
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.changes = 0

    def __enter__(self) -> Cut:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            asked = threading.Event()
            threading.Thread(target=self._forth, args=(client, server, asked), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client, asked), daemon=True).start()

    def _forth(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        try:
            while said := client.recv(65536):
                if b".record AS r" in said and (b"INSERT INTO" in said or b"UPDATE" in said):
                    self.changes += 1
                    asked.set()
                server.sendall(said)
        except OSError:
            pass
        server.close()

    def _back(self, server: socket.socket, client: socket.socket, asked: threading.Event) -> None:
        try:
            while said := server.recv(65536):
                at = said.find(self._word)
                if asked.is_set() and at >= 0:
                    client.sendall(said[: at + len(self._word) + 1])
                    break
                client.sendall(said)
        except OSError:
            pass
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


# --- servers that stop -------------------------------------------------------------------------------------------


def test_a_stopped_server_costs_a_command_its_limit(own: PostgresServer) -> None:
    with closing(url.open_store(own.url())) as store:
        first = made(store)
        own.pause()
        try:
            with pytest.raises(OutcomeUnknown, match="did not answer within"):
                store.perform(Extend(APT, {}, first.incarnation), SHORT)
            with pytest.raises(StoreUnavailable, match="no answer within"):
                store.perform(Extend(APT, {}, first.incarnation), SHORT)  # a new connection: it never was sent
        finally:
            own.resume()
        assert isinstance(store.perform(Extend(APT, {"n": "2"}, first.incarnation), LIMIT), Snapshot)


def test_h21_a_grant_survives_a_crash_and_another_clock(own: PostgresServer) -> None:
    with closing(url.open_store(own.url())) as store:
        first = made(store)
        own.kill()
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):  # the old connection may not know yet
            store.perform(Read(APT), LIMIT)
        with pytest.raises(StoreUnavailable):
            store.perform(Read(APT), LIMIT)
        own.start()
        again = seen(store)
        assert (again.incarnation, again.revision) == (first.incarnation, first.revision)
        # another run of the server, perhaps on another machine: its clock says nothing of the old one's
        assert (again.updated_at, again.store_now) == (None, None)
        extended = store.perform(Extend(APT, {}, first.incarnation), LIMIT)
        assert isinstance(extended, Snapshot)
        assert extended.updated_at is not None


def test_h21_a_change_that_no_standby_confirms_is_not_believed(own: PostgresServer) -> None:
    with closing(url.open_store(own.url())) as store:
        made(store, Name("yum"))
        own.tell("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        own.until(lambda: own.tell("SHOW synchronous_standby_names") == [("nobody",)], "it does not load")
        with pytest.raises(OutcomeUnknown):
            store.perform(Create(APT, {}), 2 * SHORT)
        thread, said = asked_apart(lambda: store.perform(Create(Name("dpkg"), {}), LIMIT))
        asked = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

        def is_over() -> bool:  # the earlier one may still be there, and be the one that is stopped
            own.tell(f"SELECT pg_cancel_backend(pid) FROM ({asked}) AS waiting")
            return not thread.is_alive()

        own.until(is_over, "it waits for a standby for ever")
        assert isinstance(said[0], OutcomeUnknown), said  # the server said success, and warned


def test_too_many_connections_are_a_passing_thing(own: PostgresServer) -> None:
    others: list[psycopg.Connection[tuple[object, ...]]] = []
    with closing(url.open_store(own.url())) as store:
        try:
            with pytest.raises(psycopg.OperationalError):
                while True:
                    others.append(psycopg.connect(own.url()))
            with pytest.raises(StoreUnavailable, match="put PgBouncer in front"):
                store.perform(Read(APT), LIMIT)
        finally:
            for other in others:
                other.close()
        ends_at = time.monotonic() + LIMIT
        while True:  # a backend takes a moment to go
            try:
                assert store.perform(Read(APT), LIMIT) == Absent()
                break
            except StoreUnavailable:
                assert time.monotonic() < ends_at


def test_a_full_disk_is_refused_and_looking_still_works(own: PostgresServer) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = reachable_folder()
    owner = disk.stat().st_uid
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=16m,uid={owner},mode=700", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        disk.rmdir()
        pytest.skip("a small disk cannot be mounted here")
    try:
        own.tell(f"CREATE TABLESPACE small LOCATION '{disk}'", "CREATE DATABASE full_soon TABLESPACE small")
        with closing(url.open_store(own.url("full_soon"))) as store:
            first = made(store)
            # a first look reads catalogs, for which a server whose few buffers are all dirty would have to write
            seen(store)
            with own.asked("full_soon") as other:
                other.execute("CREATE TABLE filler (text text)")
                rows = 100_000
                while rows:
                    try:
                        other.execute(f"INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, {rows})")
                    except psycopg.errors.DiskFull:
                        rows //= 4
            with pytest.raises(StoreRefused, match="the disk is full"):
                for number in range(1000):
                    made(store, Name(f"key-{number}-" + "x" * 300))
            assert seen(store).incarnation == first.incarnation
    finally:
        own.kill()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a backend that was killed takes a moment
        disk.rmdir()


# --- somebody else's hands ---------------------------------------------------------------------------------------


def test_h12_a_dropped_schema_is_a_lost_lease_and_tokens_grow_over_it(server: PostgresServer, schema: str) -> None:
    there = f"{server.url()}?schema={schema}"
    with closing(url.open_store(there)) as store:
        first = made(store)
        server.tell(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(StoreUnavailable, match="are gone"):
            store.perform(Extend(APT, {}, first.incarnation), LIMIT)
        assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Absent)
        again = made(store)
        assert (again.token or 0) > (first.token or 0)
        assert isinstance(store.perform(Remove(APT, first.incarnation), LIMIT), Conflict)
    with lockstead.connect(there) as client:
        lost = threading.Event()
        with pytest.raises(lockstead.LeaseLost) as caught:
            with client.lock("yum", ttl=30, renew_every=0.6, request_timeout=0.5).hold() as lease:
                lease.on_lost(lost.set)
                server.tell(f"DROP SCHEMA {schema} CASCADE")
                assert lost.wait(LIMIT)
                lease.check()
        assert caught.value.reason is LossReason.GONE


def test_fields_of_another_program_are_neither_free_nor_anybodys(
    server: PostgresServer, store: Store, schema: str
) -> None:
    first = made(store)
    server.tell(f"UPDATE {schema}.record SET fields = '{{\"identity\": 7}}'")
    odd = seen(store)
    assert dict(odd.fields) == {"v": "1", "damage": "its fields are not a map of text"}
    assert isinstance(store.perform(Create(APT, {}), LIMIT), Conflict)
    assert isinstance(store.perform(Remove(APT, first.incarnation), LIMIT), Removed)


# --- how much is asked -------------------------------------------------------------------------------------------


def statements(server: PostgresServer) -> int:
    log = (server.directory / "log").read_text("utf-8", errors="replace")
    return sum(line.count("LOG:  execute") + line.count("LOG:  statement:") for line in log.splitlines())


def test_a_cycle_is_two_statements_and_a_thousand_renewals_are_one(server: PostgresServer, schema: str) -> None:
    with lockstead.connect(f"{server.url()}?schema={schema}") as client:
        lock = client.lock("apt", ttl=300)
        lock.acquire().release()
        before = statements(server)
        for _ in range(50):
            lock.acquire().release()
        assert statements(server) - before == 100
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as store:
        names = [Name(f"key-{number}") for number in range(1000)]
        extends = [Extend(name, {}, made(store, name).incarnation) for name in names]
        before = statements(server)
        answers = batches(store).perform_many(extends, LIMIT)
        assert statements(server) - before == 1
        assert all(isinstance(answer, Snapshot) for answer in answers)


def test_no_statement_is_sent_twice_when_it_fails(server: PostgresServer, store: Store, schema: str) -> None:
    first = made(store)
    with in_the_way(server, schema):
        before = statements(server)
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            store.perform(Extend(APT, {}, first.incarnation), SHORT)
        assert statements(server) - before == 1


def is_interrupted(work: Callable[[], object], at: int) -> bool:
    """Do something and interrupt it at its step with this number; return whether it had as many."""
    left = at

    def trace(_frame: FrameType, _event: str, _arg: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the copy was left to the collector
def test_h34_ctrl_c_while_counting_keeps_libpqs_descriptor() -> None:
    """Its number may be a file of the program a moment later, which libpq would write to and close."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = 0
        while is_interrupted(lambda: received(ours.fileno()), number):
            number += 1
            theirs.send(b"x")
            assert ours.recv(1) == b"x"
        assert number > 10, "it was not interrupted at each step"
