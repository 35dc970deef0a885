"""One etcd for all of these tests, each with its own prefix; and a proxy in front of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockstead.stores.port import Store
from tests.servers.etcd import EtcdPlace
from tests.servers.proxy import Proxy

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdPlace]:
    place = EtcdPlace(tmp_path_factory.mktemp("etcd"))
    yield place
    place.stop()


@pytest.fixture
def space() -> str:
    return f"s{next(NUMBERS)}"


@pytest.fixture
def store(etcd: EtcdPlace, space: str) -> Iterator[Store]:
    store = etcd.open(space)
    yield store
    store.close()


@pytest.fixture
def other(etcd: EtcdPlace, space: str) -> Iterator[Store]:
    """The store of another process, on the same place."""
    store = etcd.open(space)
    yield store
    store.close()


@pytest.fixture
def proxy(etcd: EtcdPlace) -> Iterator[Proxy]:
    with Proxy(etcd.ports) as proxy:
        yield proxy


@pytest.fixture
def far(etcd: EtcdPlace, space: str, proxy: Proxy) -> Iterator[Store]:
    """A store on the same place that reaches it through the proxy."""
    store = etcd.open(space, ports=proxy.ports)
    yield store
    store.close()
