"""How other locks on etcd behave when another client holds the lock, and what a lease does; what a cycle leaves
behind.

The peers are in the bench requirements; their failures are shown to prove that these scenarios are real.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import lockstead
from lockstead.errors import NotAcquired
from tests.servers.etcd import EtcdPlace, leases

Make = Callable[[], "AbstractContextManager[Any]"]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdPlace]:
    place = EtcdPlace(tmp_path_factory.mktemp("etcd"))
    yield place
    place.stop()


def gateway(etcd: EtcdPlace, name: str) -> Make:
    """The lock of etcd3gw, over the same gateway as ours."""
    client = pytest.importorskip("etcd3gw").client(host="127.0.0.1", port=etcd.server.port)
    return lambda: client.lock(name, ttl=30)


def sdk(etcd: EtcdPlace, name: str) -> Make:
    """The lock of etcd-sdk-python, over gRPC; it waits ten seconds at most, here one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its generated code is older than its protobuf
        client = pytest.importorskip("pyetcd").client(host="127.0.0.1", port=etcd.server.port)

    def made() -> AbstractContextManager[Any]:
        lock = client.lock(name, ttl=30)
        acquire = lock.acquire
        lock.acquire = lambda timeout=10: acquire(timeout=min(timeout, 1))
        return lock

    return made


PEERS = pytest.mark.parametrize("peer", [gateway, sdk])


@PEERS
def test_a_peers_block_is_entered_though_the_lock_is_held(
    etcd: EtcdPlace, peer: Callable[[EtcdPlace, str], Make]
) -> None:
    make = peer(etcd, f"entered-{peer.__name__}")
    inside = []
    with make(), make():
        inside.append("two at once")
    assert inside == ["two at once"]


@PEERS
def test_each_cycle_of_the_peers_leaves_a_lease_behind(etcd: EtcdPlace, peer: Callable[[EtcdPlace, str], Make]) -> None:
    make = peer(etcd, f"leaked-{peer.__name__}")
    before = leases(etcd.server.port)
    for _ in range(5):
        with make():
            pass
    assert len(leases(etcd.server.port) - before) == 5


def test_a_block_of_ours_is_not_entered_while_another_holds_the_lock(etcd: EtcdPlace) -> None:
    with lockstead.connect(etcd.url("one")) as one, lockstead.connect(etcd.url("one")) as other:
        with one.lock("apt", ttl=30).acquire():
            with pytest.raises(NotAcquired):
                with other.lock("apt", ttl=30).hold(timeout=0.3):
                    pytest.fail("two at once")


def test_our_cycles_leave_no_lease_after_closing_the_client(etcd: EtcdPlace) -> None:
    before = leases(etcd.server.port)
    with lockstead.connect(etcd.url("two")) as client:
        for _ in range(5):
            with client.lock("apt", ttl=30).hold():
                pass
        assert len(leases(etcd.server.port) - before) == 1
    assert leases(etcd.server.port) <= before
    assert etcd.left("two") == []
