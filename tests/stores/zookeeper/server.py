"""One ZooKeeper for the tests of a file, and what they ask of it behind the store's back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from lockstead.protocol.commands import Create, Snapshot
from lockstead.stores import url as store_urls
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.values import Name
from tests.servers.zookeeper import ZookeeperServer, four_letters

LIMIT = 20.0
APT = Name("apt")
_SPACES = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    settings = {"4lw.commands.whitelist": "*"}
    running = ZookeeperServer(tmp_path_factory.mktemp("zookeeper"), settings=settings).start()
    yield running
    running.resume()
    running.kill()


@pytest.fixture
def space(server: ZookeeperServer) -> str:
    """Return the URL of an empty store."""
    return f"zk://{server.address}/test{next(_SPACES)}"


@pytest.fixture
def store(space: str) -> Iterator[ZookeeperStore]:
    store = opened(space)
    yield store
    store.close()


def opened(url: str) -> ZookeeperStore:
    store = store_urls.open_store(url)
    assert isinstance(store, ZookeeperStore)
    return store


def taken(store: ZookeeperStore, holder: str = "holder", name: Name = APT) -> Snapshot:
    """Acquire a free lock as this holder."""
    answer = store.perform(Create(name, {"v": "1", "identity": holder}, 30.0, holder, 33.0), LIMIT)
    assert isinstance(answer, Snapshot), answer
    return answer


def packets(server: ZookeeperServer) -> int:
    """Return how many packets the server has received on sessions, pings included."""
    found = re.search(rb"Received: (\d+)", four_letters(server.port, b"srvr"))
    assert found is not None
    return int(found[1])


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition; the limit is for a broken build, not for a slow machine."""
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come about"
        time.sleep(0.01)
