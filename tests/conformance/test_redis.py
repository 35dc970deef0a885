"""The store on Redis keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from uuid import uuid4

import pytest
import redis

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.redis.store import RedisStore
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
from tests.servers.redis import ClusterPlace, RedisPlace, SecureRedisPlace, SentinelPlace


class Opens(Protocol):
    def open(self, space: str) -> Store: ...


@pytest.fixture(scope="session")
def redis_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    place = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield place
    place.stop()


@pytest.fixture(scope="session")
def secure_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRedisPlace]:
    place = SecureRedisPlace(tmp_path_factory.mktemp("rediss"))
    yield place
    place.stop()


@pytest.fixture(scope="session")
def sentinel_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelPlace]:
    place = SentinelPlace(tmp_path_factory.mktemp("sentinel"))
    yield place
    place.stop()


@pytest.fixture(scope="session")
def cluster_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPlace]:
    place = ClusterPlace(tmp_path_factory.mktemp("cluster"))
    yield place
    place.stop()


class _OnPlace(Suite):
    @pytest.fixture
    def store(self, place: Opens) -> Iterator[Store]:
        store = place.open(f"s{uuid4().hex[:10]}")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


class OnRedis(_OnPlace):
    scheme = "redis"

    @pytest.fixture
    def damage(self, redis_place: RedisPlace, store: Store) -> Iterator[Damage]:
        assert isinstance(store, RedisStore)
        keys, admin = store._keys, redis.Redis(port=redis_place.ports[0])
        kinds = iter(("whole", "fields", "list") * 100)

        def write(name: Name, garbage: bytes) -> bool:
            key = keys.record(name)
            match next(kinds):
                case "whole":
                    admin.set(key, garbage)
                case "fields":
                    admin.set(key, admin.get(key).partition(b"\n")[0] + b"\n" + garbage)
                case _:
                    admin.delete(key)
                    admin.rpush(key, garbage)
            return True

        yield write
        admin.close()

    @pytest.fixture
    def place(self, redis_place: RedisPlace) -> Opens:
        return redis_place


class OnSecureRedis(_OnPlace):
    scheme = "rediss"

    @pytest.fixture
    def place(self, secure_place: SecureRedisPlace) -> Opens:
        return secure_place


class OnSentinel(_OnPlace):
    scheme = "redis+sentinel"

    @pytest.fixture
    def place(self, sentinel_place: SentinelPlace) -> Opens:
        return sentinel_place


class OnCluster(_OnPlace):
    scheme = "redis+cluster"

    @pytest.fixture
    def place(self, cluster_place: ClusterPlace) -> Opens:
        return cluster_place


class TestRedis(OnRedis, StoreConformance, LaterSpaces):
    pass


class TestRedisHostile(OnRedis, HostileConformance):
    pass


class TestRedisAwaiting(OnRedis, AwaitingConformance):
    pass


class TestRedisWaiting(OnRedis, WaitingConformance):
    pass


class TestRedisBatches(OnRedis, BatchConformance):
    pass


class TestSecureRedis(OnSecureRedis, StoreConformance):
    pass


class TestSecureRedisAwaiting(OnSecureRedis, AwaitingConformance):
    pass


class TestSecureRedisWaiting(OnSecureRedis, WaitingConformance):
    pass


class TestSentinel(OnSentinel, StoreConformance):
    pass


class TestSentinelAwaiting(OnSentinel, AwaitingConformance):
    pass


class TestSentinelWaiting(OnSentinel, WaitingConformance):
    pass


class TestCluster(OnCluster, StoreConformance):
    pass


class TestClusterAwaiting(OnCluster, AwaitingConformance):
    pass


class TestClusterWaiting(OnCluster, WaitingConformance):
    pass


class TestClusterBatches(OnCluster, BatchConformance):
    pass


ON_ONE = (TestRedis, TestRedisAwaiting, TestRedisWaiting, TestRedisBatches)
ON_TLS = (TestSecureRedis, TestSecureRedisAwaiting, TestSecureRedisWaiting)
ON_SENTINELS = (TestSentinel, TestSentinelAwaiting, TestSentinelWaiting)
ON_CLUSTER = (TestCluster, TestClusterAwaiting, TestClusterWaiting, TestClusterBatches)

CONFORMING: dict[type, type] = dict.fromkeys((*ON_ONE, *ON_TLS, *ON_SENTINELS, *ON_CLUSTER), RedisStore)
