"""The store on PostgreSQL keeps the contract of a store, on a server and through a pooler in transaction mode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import cast

import psycopg
import pytest

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.postgres.store import PostgresStore
from lockstead.testing.conformance import (
    AwaitingConformance,
    BatchConformance,
    HostileConformance,
    StoreConformance,
    WaitingConformance,
)
from lockstead.testing.conformance.base import Suite
from lockstead.testing.conformance.hostile import Damage
from lockstead.values import Name
from tests.conformance.later import LaterSpaces
from tests.servers.places import place
from tests.servers.postgres import USER, BouncerServer, PostgresPlace

SPACES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresPlace]:
    running = cast(PostgresPlace, place("postgresql", Path()))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def bouncer(server: PostgresPlace) -> Iterator[BouncerServer]:
    bouncer = BouncerServer(server.server)
    with bouncer:
        yield bouncer
    bouncer.remove()


@pytest.fixture(autouse=True)
def who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", USER)


class OnPostgres(Suite):
    scheme = "postgresql"

    @pytest.fixture
    def store(self, server: PostgresPlace) -> Iterator[Store]:
        store = server.open(f"space{next(SPACES)}")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()

    @pytest.fixture
    def damage(self, server: PostgresPlace, store: Store) -> Damage:
        schema = store.url.partition("schema=")[2]

        def write(name: Name, garbage: bytes) -> bool:
            at = (name.space.value, name.key, name.part)
            with server.server.asked() as connection:
                try:
                    connection.execute(
                        f"UPDATE {schema}.record SET fields = %s::jsonb WHERE space = %s AND key = %s AND part = %s",
                        (garbage.decode("utf-8", "replace"), *at),
                    )
                except psycopg.Error:
                    return False  # a constraint of ours, or no JSON
            return True

        return write


class ThroughPgBouncer(OnPostgres):
    scheme = "postgres"

    @pytest.fixture
    def store(self, server: PostgresPlace, bouncer: BouncerServer) -> Iterator[Store]:
        there = server.url(f"pooled{next(SPACES)}", ports=[bouncer.port])
        store = url.open_store(there.replace("postgresql:", "postgres:"))
        yield store
        store.close()


class TestPostgres(OnPostgres, StoreConformance, LaterSpaces):
    pass


class TestPostgresHostile(OnPostgres, HostileConformance):
    pass


class TestPostgresAwaiting(OnPostgres, AwaitingConformance):
    pass


class TestPostgresWaiting(OnPostgres, WaitingConformance):
    pass


class TestPostgresBatches(OnPostgres, BatchConformance):
    pass


class TestPgBouncer(ThroughPgBouncer, StoreConformance):
    pass


class TestPgBouncerAwaiting(ThroughPgBouncer, AwaitingConformance):
    pass


class TestPgBouncerWaiting(ThroughPgBouncer, WaitingConformance):
    pass


class TestPgBouncerBatches(ThroughPgBouncer, BatchConformance):
    pass


CONFORMING = {
    TestPostgres: PostgresStore,
    TestPostgresAwaiting: PostgresStore,
    TestPostgresWaiting: PostgresStore,
    TestPostgresBatches: PostgresStore,
    TestPgBouncer: PostgresStore,
    TestPgBouncerAwaiting: PostgresStore,
    TestPgBouncerWaiting: PostgresStore,
    TestPgBouncerBatches: PostgresStore,
}
