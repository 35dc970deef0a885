"""Every store keeps the contract of a store, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstead.stores import url
from lockstead.stores.gcs import GcsStore
from lockstead.stores.memory import Memory, MemoryStore
from lockstead.stores.port import Awaits, Store, Waits
from lockstead.stores.sqlite import SqliteStore
from lockstead.testing.conformance import AwaitingConformance, StoreConformance, WaitingConformance
from lockstead.testing.conformance.base import Suite
from lockstead.testing.gcs_server import GcsServer


class OnMemory(Suite):
    scheme = "memory"

    @pytest.fixture
    def memory(self) -> Memory:
        return Memory()

    @pytest.fixture
    def store(self, memory: Memory) -> Iterator[Store]:
        store = MemoryStore(memory)
        yield store
        store.close()

    @pytest.fixture
    def twin(self, memory: Memory) -> Iterator[Store]:
        twin = MemoryStore(memory)
        yield twin
        twin.close()


class TestMemory(OnMemory, StoreConformance):
    pass


class TestMemoryWaiting(OnMemory, WaitingConformance):
    pass


class OnSqlite(Suite):
    scheme = "sqlite"

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SqliteStore(tmp_path / "locks.db")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, tmp_path: Path) -> Iterator[Store]:
        twin = SqliteStore(tmp_path / "locks.db")
        yield twin
        twin.close()


class TestSqlite(OnSqlite, StoreConformance):
    pass


class TestSqliteWaiting(OnSqlite, WaitingConformance):
    pass


class OnGcs(Suite):
    scheme = "gs"

    @pytest.fixture
    def server(self) -> Iterator[GcsServer]:
        with GcsServer(buckets=["bucket"]) as server:
            yield server

    @pytest.fixture
    def store(self, server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        store = url.open_store("gs://bucket/locks")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


class TestGcs(OnGcs, StoreConformance):
    pass


class TestGcsAwaiting(OnGcs, AwaitingConformance):
    pass


CONFORMING = {
    TestMemory: MemoryStore,
    TestMemoryWaiting: MemoryStore,
    TestSqlite: SqliteStore,
    TestSqliteWaiting: SqliteStore,
    TestGcs: GcsStore,
    TestGcsAwaiting: GcsStore,
}


def test_every_store_that_a_scheme_opens_keeps_the_contract() -> None:
    conforming = {suite.scheme for suite in CONFORMING if issubclass(suite, StoreConformance)}
    assert conforming == set(url.OURS)


@pytest.mark.parametrize("suite", CONFORMING, ids=lambda suite: suite.__name__)
def test_a_store_that_awaits_or_waits_promises_it_in_a_suite_of_its_own(suite: type) -> None:
    store = CONFORMING[suite]
    suites = [one for one, other in CONFORMING.items() if other is store]
    for port, promises in ((Awaits, AwaitingConformance), (Waits, WaitingConformance)):
        assert issubclass(store, port) == any(issubclass(one, promises) for one in suites)
