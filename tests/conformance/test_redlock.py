"""The store on several independent Redis masters keeps the contract of a store: on three, and on five."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.redlock.store import RedlockStore
from lockstead.testing.conformance import BatchConformance, StoreConformance
from lockstead.testing.conformance.base import Suite
from tests.conformance.later import LaterSpaces
from tests.servers.redlock import RedlockPlace


@pytest.fixture(scope="session")
def three_masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedlockPlace]:
    place = RedlockPlace(tmp_path_factory.mktemp("redlock"))
    yield place
    place.stop()


@pytest.fixture(scope="session")
def five_masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedlockPlace]:
    place = RedlockPlace(tmp_path_factory.mktemp("redlock5"), 5)
    yield place
    place.stop()


class OnRedlock(Suite):
    scheme = "redlock"

    @pytest.fixture
    def store(self, three_masters: RedlockPlace) -> Iterator[Store]:
        store = three_masters.open(uuid4().hex)
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


class OnFive(OnRedlock):
    @pytest.fixture
    def store(self, five_masters: RedlockPlace) -> Iterator[Store]:
        store = five_masters.open(uuid4().hex)
        yield store
        store.close()


class TestRedlock(OnRedlock, StoreConformance, LaterSpaces):
    pass


class TestRedlockBatches(OnRedlock, BatchConformance):
    pass


class TestRedlockOfFive(OnFive, StoreConformance):
    pass


class TestRedlockOfFiveBatches(OnFive, BatchConformance):
    pass


CONFORMING = {
    TestRedlock: RedlockStore,
    TestRedlockBatches: RedlockStore,
    TestRedlockOfFive: RedlockStore,
    TestRedlockOfFiveBatches: RedlockStore,
}
