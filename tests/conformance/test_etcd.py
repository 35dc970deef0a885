"""The store on etcd keeps the contract of a store."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest

from lockstead.stores.etcd.encoding import Root, b64
from lockstead.stores.etcd.store import EtcdStore
from lockstead.stores.port import Store
from lockstead.testing.conformance import (
    AwaitingConformance,
    BatchConformance,
    HostileConformance,
    QueueConformance,
    StoreConformance,
    WaitingConformance,
)
from lockstead.testing.conformance.base import Suite
from lockstead.testing.conformance.hostile import Damage
from lockstead.values import Name
from tests.conformance.later import LaterSpaces
from tests.servers.etcd import EtcdPlace, ask

SPACES = iter(range(1_000_000))


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdPlace]:
    place = EtcdPlace(tmp_path_factory.mktemp("etcd"))
    yield place
    place.stop()


class OnEtcd(Suite):
    scheme = "etcd"

    @pytest.fixture
    def space(self) -> str:
        return f"c{next(SPACES)}"

    @pytest.fixture
    def store(self, etcd: EtcdPlace, space: str) -> Iterator[Store]:
        store = etcd.open(space)
        yield store
        store.close()

    @pytest.fixture
    def twin(self, etcd: EtcdPlace, space: str, store: Store) -> Iterator[Store]:
        twin = etcd.open(space)
        yield twin
        twin.close()

    @pytest.fixture
    def damage(self, etcd: EtcdPlace, space: str) -> Damage:
        def write(name: Name, garbage: bytes) -> bool:
            key = Root.at(space).slot(name, "a")
            ask(etcd.server.port, "kv/put", {"key": b64(key), "value": b64encode(garbage).decode()})
            return True

        return write


class TestEtcd(OnEtcd, StoreConformance, LaterSpaces):
    pass


class TestEtcdHostile(OnEtcd, HostileConformance):
    pass


class TestEtcdAwaiting(OnEtcd, AwaitingConformance):
    pass


class TestEtcdWaiting(OnEtcd, WaitingConformance):
    pass


class TestEtcdQueue(OnEtcd, QueueConformance):
    pass


class TestEtcdBatches(OnEtcd, BatchConformance):
    pass


CONFORMING = dict.fromkeys((TestEtcd, TestEtcdAwaiting, TestEtcdWaiting, TestEtcdQueue, TestEtcdBatches), EtcdStore)
