"""The store on ZooKeeper keeps the contract of a store, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.testing.conformance import BatchConformance, QueueConformance, StoreConformance, WaitingConformance
from lockstead.testing.conformance.base import Suite
from tests.conformance.later import LaterSpaces
from tests.servers.places import Place, place

SPACES = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    running = place("zk", Path(tmp_path_factory.mktemp("zookeeper")))
    yield running
    running.stop()


class OnZookeeper(Suite):
    scheme = "zk"

    @pytest.fixture
    def store(self, server: Place) -> Iterator[Store]:
        store = server.open(f"space{next(SPACES)}")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


class TestZookeeper(OnZookeeper, StoreConformance, LaterSpaces):
    pass


class TestZookeeperWaiting(OnZookeeper, WaitingConformance):
    pass


class TestZookeeperQueue(OnZookeeper, QueueConformance):
    pass


class TestZookeeperBatches(OnZookeeper, BatchConformance):
    pass


CONFORMING = {
    TestZookeeper: ZookeeperStore,
    TestZookeeperWaiting: ZookeeperStore,
    TestZookeeperQueue: ZookeeperStore,
    TestZookeeperBatches: ZookeeperStore,
}
