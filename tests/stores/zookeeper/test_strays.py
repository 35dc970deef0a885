"""A foreign node in a queue of ZooKeeper is not a place there, and blocks no waiter."""

from __future__ import annotations

import time

import pytest

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Create, Extend, List, Read, Remove, Removed, Replace, Snapshot
from lockstead.stores.kept import is_damaged
from lockstead.stores.zookeeper.requests import BELOW_MAX
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.testing.conformance.base import is_a
from lockstead.values import Space
from tests.servers.zookeeper import ZookeeperServer, asked
from tests.stores.zookeeper.server import APT, LIMIT, server, space, store, taken
from tests.stores.zookeeper.test_queue import Waiter, asks, places, until

__all__ = ["server", "space", "store"]

ZERO = "0" * 32 + "-0000000000"
NODES = {"no place": ["evil"], "like a place": [ZERO], "many": [ZERO, *(f"evil{number}" for number in range(250))]}


def put(server: ZookeeperServer, store: ZookeeperStore, nodes: list[str]) -> None:
    base = "/" + store.url.partition("?")[0].rpartition("/")[2]
    with asked(server.address) as client:
        for node in nodes:
            client.create(f"{base}/queue/apt/{node}", b"", makepath=True)


@pytest.mark.parametrize("nodes", NODES)
def test_a_stray_node_in_a_queue_blocks_nobody(server: ZookeeperServer, store: ZookeeperStore, nodes: str) -> None:
    put(server, store, NODES[nodes])
    first = is_a(Snapshot, asks(store, "anna/1"))
    put(server, store, NODES[nodes])
    waiter = Waiter(store, "ben/1")
    try:
        until(lambda: any(one not in NODES[nodes] for one in places(server, store.url)))
        is_a(Removed, store.perform(Remove(APT, first.incarnation), LIMIT))
        assert waiter.has_turn.wait(20.0)
        is_a(Snapshot, asks(store, "ben/1"))
    finally:
        waiter.end()


def test_who_waits_and_what_is_stray_is_shown(server: ZookeeperServer, store: ZookeeperStore) -> None:
    put(server, store, [ZERO, "evil"])
    is_a(Snapshot, store.perform(Create(APT, {"v": "1", "identity": "anna/1"}, 60.0), LIMIT))
    waiter = Waiter(store, "ben/1")
    try:
        until(lambda: "ben/1" in [one.who for one in store.standing(APT, LIMIT)])
        shown = {one.who: one for one in store.standing(APT, LIMIT)}
        assert set(shown) <= {"ben/1", ZERO, "evil"}
        assert shown["evil"].is_stray
        assert not shown["ben/1"].is_stray
        since = shown["ben/1"].since
        assert since is not None
        assert abs(since - time.time()) < LIMIT
    finally:
        waiter.end()


def test_a_stray_node_with_more_below_it_is_named_in_one_line(server: ZookeeperServer, store: ZookeeperStore) -> None:
    put(server, store, ["evil/below"])
    with pytest.raises(StoreRefused, match="queue/apt/evil in ZooKeeper is not an entry") as refused:
        asks(store, "anna/1")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("nodes", [["junk"], ["junk/deep/deeper", "more"]])
def test_h24_a_record_with_nodes_below_it_can_be_removed(
    server: ZookeeperServer, store: ZookeeperStore, nodes: list[str]
) -> None:
    held = taken(store)
    path = "/" + store.url.partition("?")[0].rpartition("/")[2] + "/lock/apt"
    with asked(server.address) as client:
        for node in nodes:
            client.create(f"{path}/{node}", b"", makepath=True)
    shown = is_a(Snapshot, store.perform(Read(APT), LIMIT))
    assert is_damaged(shown.fields)
    assert store.perform(List(Space.LOCK), LIMIT).entries == ((APT, shown),)
    # whoever holds it goes on holding it; nobody else gets it, and it cannot be given back
    renewed = is_a(Snapshot, store.perform(Extend(APT, {}, held.incarnation), LIMIT))
    for command in (Remove(APT, held.incarnation), Replace(APT, {"v": "1"}, held.incarnation, renewed.revision)):
        with pytest.raises(StoreRefused, match="break it with now=True") as refused:
            store.perform(command, LIMIT)
        assert "\n" not in str(refused.value)
    shown = is_a(Snapshot, store.perform(Read(APT), LIMIT))
    is_a(Removed, store.perform(Remove(APT, shown.incarnation, shown.revision), LIMIT))
    taken(store)


def test_h24_only_so_much_below_a_record_is_removed_with_it(server: ZookeeperServer, store: ZookeeperStore) -> None:
    taken(store)
    path = "/" + store.url.partition("?")[0].rpartition("/")[2] + "/lock/apt"
    with asked(server.address) as client:
        for number in range(BELOW_MAX):
            client.create_async(f"{path}/junk{number}", b"")
        client.sync(path)
    shown = is_a(Snapshot, store.perform(Read(APT), LIMIT))
    with pytest.raises(StoreRefused, match="more than 500 nodes"):
        store.perform(Remove(APT, shown.incarnation), LIMIT)


def test_h24_a_record_whose_mark_was_deleted_is_damaged(server: ZookeeperServer, store: ZookeeperStore) -> None:
    held = taken(store)
    path = "/" + store.url.partition("?")[0].rpartition("/")[2] + "/lock/apt"
    with asked(server.address) as client:
        client.delete(f"{path}/{held.incarnation}")
    shown = is_a(Snapshot, store.perform(Read(APT), LIMIT))
    assert is_damaged(shown.fields)
    with pytest.raises(StoreRefused, match="damaged"):
        store.perform(Extend(APT, {}, held.incarnation), LIMIT)
    is_a(Removed, store.perform(Remove(APT, shown.incarnation), LIMIT))
    taken(store)


def test_pruning_removes_strays_and_empty_queues_and_no_place(server: ZookeeperServer, store: ZookeeperStore) -> None:
    put(server, store, NODES["many"])
    base = "/" + store.url.partition("?")[0].rpartition("/")[2]
    with asked(server.address) as client:
        client.create(f"{base}/queue/left", b"", makepath=True)
    assert isinstance(store.perform(Create(APT, {"v": "1", "identity": "anna/1"}, 60.0), LIMIT), Snapshot)
    waiter = Waiter(store, "ben/1")
    try:
        until(lambda: "ben/1" in [one.who for one in store.standing(APT, LIMIT)])
        strays = {f"apt/{node}" for node in NODES["many"]} | {"left"}
        found = set(store.clear_queues(1000, LIMIT, dry_run=True))
        assert "left" in found <= strays
        assert len(store.clear_queues(5, LIMIT, dry_run=False)) == 5
        store.clear_queues(1000, LIMIT, dry_run=False)
        assert store.clear_queues(1000, LIMIT, dry_run=True) == []
        assert [one.who for one in store.standing(APT, LIMIT)] == ["ben/1"]
    finally:
        waiter.end()
