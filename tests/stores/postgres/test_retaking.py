"""The PostgreSQL store: a lock that this process released is acquired again with fewer statements, and never
wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from lockstead.protocol.commands import Conflict, Create, Read, Remove, Removed, Snapshot
from lockstead.stores import url
from lockstead.stores.bounds import Bounds
from lockstead.stores.port import Store
from lockstead.stores.postgres import operations
from lockstead.stores.postgres.operations import Request
from lockstead.stores.postgres.statements import bucket, lock_class, statements
from lockstead.stores.postgres.store import PostgresStore
from lockstead.values import Name
from tests.servers.postgres import PostgresServer

APT = Name("apt")
LIMIT = 30.0
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def schema() -> str:
    return f"retaking{next(NUMBERS)}"


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[Store]:
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as store:
        yield store


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The statements that the store has asked."""
    assert isinstance(store, PostgresStore)
    ask, asked = store._driver.exchange, list[bytes]()

    def noted(bounds: Bounds, request: Request) -> list[list[str | None]]:
        asked.append(request[0])
        return ask(bounds, request)

    monkeypatch.setattr(store._driver, "exchange", noted)
    return asked


def made(store: Store, name: Name = APT) -> Snapshot:
    answer = store.perform(Create(name, {"v": "1", "identity": "me"}), LIMIT)
    assert isinstance(answer, Snapshot)
    return answer


def left(store: Store, name: Name = APT) -> Snapshot:
    """Take a record and give it back; what it was."""
    was = made(store, name)
    assert isinstance(store.perform(Remove(name, was.incarnation), LIMIT), Removed)
    return was


def test_a_row_left_free_is_acquired_by_a_plain_update(store: Store, schema: str, asked: list[bytes]) -> None:
    was = left(store)
    asked.clear()
    again = made(store)
    assert asked == [statements(schema).retake]
    assert (again.token or 0) > (was.token or 0)
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert (seen.fields, seen.incarnation, seen.revision) == (again.fields, again.incarnation, again.revision)
    assert seen.updated_at == again.updated_at == pytest.approx(again.store_now, abs=30)


def test_what_was_left_free_and_taken_by_somebody_else_is_theirs(
    server: PostgresServer, schema: str, store: Store, asked: list[bytes]
) -> None:
    left(store)
    with closing(url.open_store(f"{server.url()}?schema={schema}")) as other:
        theirs = made(other)
    for _ in range(2):
        assert isinstance(store.perform(Create(APT, {"v": "1"}), LIMIT), Conflict)
    assert asked[-3:] == [statements(schema).retake, *[statements(schema).create] * 2], "it was tried more than once"
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert seen.incarnation == theirs.incarnation


def test_what_was_left_free_and_swept_away_is_made_anew(server: PostgresServer, schema: str, store: Store) -> None:
    was = left(store)
    server.tell(f"DELETE FROM {schema}.record")
    assert (made(store).token or 0) > (was.token or 0)


def test_what_others_wait_for_is_not_taken_for_free(
    server: PostgresServer, store: Store, schema: str, asked: list[bytes]
) -> None:
    was = made(store)
    with server.asked() as waiter:
        waiter.execute("SELECT pg_advisory_lock_shared(%s, %s)", (lock_class(schema), bucket(APT.key)))
        assert isinstance(store.perform(Remove(APT, was.incarnation), LIMIT), Removed)
    asked.clear()
    made(store)
    assert asked == [statements(schema).create]


def test_what_was_left_free_is_not_remembered_without_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LEFT_MAX", 3)
    assert isinstance(store, PostgresStore)
    for number in range(10):
        left(store, Name(f"key-{number}"))
        assert 0 < len(store._operations._left) <= 3
