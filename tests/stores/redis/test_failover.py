"""Redis fails over and forgets, or moves slots: losses are notified, and tokens still grow (H21)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstead
from lockstead.errors import LeaseLost, LossReason, StoreError
from lockstead.protocol.commands import Create, Extend, List, Read, Remove, Removed, Snapshot
from lockstead.stores.redis.encoding import Keys
from lockstead.stores.redis.route import slot_of
from lockstead.stores.redis.store import RedisStore
from lockstead.testing.conformance.base import is_a
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import Name, Space
from tests.servers.redis import ClusterPlace, SentinelPlace
from tests.stores.redis.usage import APT, LIMIT, until


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelPlace]:
    place = SentinelPlace(tmp_path)
    yield place
    place.stop()


@pytest.mark.slow
def test_h21_a_failover_that_forgets_is_notified_and_tokens_grow(sentinels: SentinelPlace) -> None:
    with (
        lockstead.Client(sentinels.open("space")) as client,
        lockstead.Client(sentinels.open("space")) as other,
    ):
        # the replicas stand still and their connections are cut, so that the grant is forgotten with the master
        for replica in sentinels.replicas:
            replica.pause()
        sentinels.master.says("CLIENT", "KILL", "TYPE", "replica")
        lease = client.lock("apt", ttl=20).acquire()
        token = lease.token
        assert token is not None
        sentinels.master.kill()
        for replica in sentinels.replicas:
            replica.resume()
        with other.lock("apt", ttl=20).acquire(timeout=90) as taken:
            assert taken.token is not None
            assert taken.token > token
            until(lambda: not lease.is_held)
            with pytest.raises(LeaseLost) as lost:
                lease.check()
            assert lost.value.reason in (LossReason.TAKEN, LossReason.GONE, LossReason.EXPIRED)
            assert taken.is_held


@pytest.mark.slow
def test_a_master_that_was_demoted_is_asked_no_more(sentinels: SentinelPlace) -> None:
    store = sentinels.open("space")
    assert isinstance(store, RedisStore)
    made = store.perform(Create(APT, {"v": "1"}), LIMIT)
    assert isinstance(made, Snapshot)
    changes = Changed(store)
    until(lambda: sentinels.master.says("ZCARD", "space:{apt}:waiters") == b":1\r\n")
    assert sentinels.sentinels[0].says("SENTINEL", "FAILOVER", "locks").startswith(b"+OK")
    until(lambda: b"role:slave" in sentinels.master.says("INFO", "replication"))

    def renewed() -> bool:
        try:
            return isinstance(store.perform(Extend(APT, {}, made.incarnation), 5.0), Snapshot)
        except StoreError:
            return False

    until(renewed)
    # who subscribes is notified by the new master
    channel = store._watches.channel.decode()
    until(lambda: any(b":1\r\n" in one.says("PUBSUB", "NUMSUB", channel) for one in sentinels.replicas))
    until(lambda: any(one.says("ZCARD", "space:{apt}:waiters") == b":1\r\n" for one in sentinels.replicas))
    changes.settle()
    assert isinstance(store.perform(Remove(APT, made.incarnation), LIMIT), Removed)
    assert changes.called(LIMIT)
    store.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPlace]:
    place = ClusterPlace(tmp_path_factory.mktemp("cluster"))
    yield place
    place.stop()


def test_a_slot_that_moves_is_followed(cluster: ClusterPlace) -> None:
    store = cluster.open("moving")
    assert isinstance(store, RedisStore)
    keys = Keys("moving")
    slot = str(slot_of(keys.record(APT)))
    made = store.perform(Create(APT, {"v": "1"}, 30.0, "", 31.0), LIMIT)
    assert isinstance(made, Snapshot)
    twin, waiters = cluster.open("moving"), "moving:{apt}:waiters"
    assert isinstance(twin, RedisStore)
    changes = Changed(twin)
    until(lambda: any(node.says("ZCARD", waiters) == b":1\r\n" for node in cluster.nodes))
    ids = [node.says("CLUSTER", "MYID").split(b"\r\n")[1].decode() for node in cluster.nodes]
    source = next(
        n for n, node in enumerate(cluster.nodes) if b"MOVED" not in node.says("EXISTS", keys.record(APT).decode())
    )
    target = (source + 1) % 3
    old, new = cluster.nodes[source], cluster.nodes[target]
    assert new.says("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source]) == b"+OK\r\n"
    assert old.says("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target]) == b"+OK\r\n"
    # in the middle: what is there is served, and what is not is sent on
    assert isinstance(store.perform(Read(APT), LIMIT), Snapshot)
    moved = [keys.record(APT).decode(), keys.token(APT).decode(), waiters]
    said = old.says("MIGRATE", "127.0.0.1", str(new.port), "", "0", "5000", "KEYS", *moved)
    assert said == b"+OK\r\n"
    renewed = store.perform(Read(APT), LIMIT)
    assert isinstance(renewed, Snapshot)
    for node in (new, old, cluster.nodes[(source + 2) % 3]):
        assert node.says("CLUSTER", "SETSLOT", slot, "NODE", ids[target]) == b"+OK\r\n"
    assert isinstance(store.perform(Extend(APT, {"n": "1"}, made.incarnation), LIMIT), Snapshot)
    assert store._route.known(keys.record(APT)) == ("127.0.0.1", new.port), "it is sent on with every request"
    assert [name for name, _ in store.perform(List(Space.LOCK), LIMIT).entries] == [APT]
    # its list has moved as well; who subscribed listens there as soon as it was sent on
    assert isinstance(twin.perform(Read(APT), LIMIT), Snapshot)
    homes = twin._watches.homes
    until(lambda: (home := homes.get(APT)) is not None and home.address == ("127.0.0.1", new.port))
    changes.settle()
    answers = store.perform_many([Read(APT), Remove(APT, made.incarnation), Create(Name("b"), {})], LIMIT)
    assert changes.called(LIMIT)
    assert [type(answer) for answer in answers] == [Snapshot, Removed, Snapshot]
    store.close()
    twin.close()


def test_a_listing_is_of_all_masters(cluster: ClusterPlace) -> None:
    store = cluster.open("listing")
    names = {Name(f"key-{number}") for number in range(60)}
    for name in names:
        store.perform(Create(name, {}), LIMIT)
    assert {name for name, _ in store.perform(List(Space.LOCK), LIMIT).entries} == names
    assert all(node.says("DBSIZE") != b":0\r\n" for node in cluster.nodes)
    store.close()


def test_a_stopped_master_does_not_delay_the_others_batch(cluster: ClusterPlace) -> None:
    for node in cluster.nodes:
        node.says("CONFIG", "SET", "cluster-node-timeout", "60000")
    store = cluster.open("still")
    made: dict[int, list[Name]] = {}
    for name in (Name(f"key-{number}") for number in range(30)):
        is_a(Snapshot, store.perform(Create(name, {"v": "1"}), LIMIT))
        has_it = [b"MOVED" not in node.says("EXISTS", Keys("still").record(name).decode()) for node in cluster.nodes]
        made.setdefault(has_it.index(True), []).append(name)
    still, healthy = made.pop(0), [name for names in made.values() for name in names]
    cluster.nodes[0].pause()
    try:
        # the silent one is asked first
        answers = store.perform_many([Read(name) for name in (*still, *healthy)], 3.0)
    finally:
        cluster.nodes[0].resume()
    assert all(isinstance(answer, StoreError) for answer in answers[: len(still)])
    assert [type(answer) for answer in answers[len(still) :]] == [Snapshot] * len(healthy)
    store.close()


@pytest.mark.slow
def test_a_cluster_that_misses_a_master_serves_what_the_others_have(tmp_path: Path) -> None:
    cluster = ClusterPlace(tmp_path)
    try:
        for node in cluster.nodes:
            node.says("CONFIG", "SET", "cluster-require-full-coverage", "no")
        store = cluster.open("half")
        keys = Keys("half")
        names = [Name(f"key-{number}") for number in range(30)]
        dead = [name for name in names if slot_of(keys.record(name)) < 5461]
        alive = [name for name in names if name not in dead]
        for name in names:
            assert isinstance(store.perform(Create(name, {"v": "1"}), LIMIT), Snapshot)
        cluster.nodes[0].kill()
        with pytest.raises(StoreError):
            store.perform(Read(dead[0]), LIMIT)
        for name in alive:
            assert isinstance(store.perform(Read(name), LIMIT), Snapshot)
        answers = store.perform_many([Read(name) for name in (dead[0], alive[0])], LIMIT)
        assert isinstance(answers[0], StoreError)
        assert isinstance(answers[1], Snapshot)
        store.close()
    finally:
        cluster.stop()
