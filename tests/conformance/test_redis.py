"""The store on Redis keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.stores.redis import RedisStore
from lockstead.testing.conformance import BatchConformance, StoreConformance, WaitingConformance
from lockstead.testing.conformance.base import Suite
from tests.servers.redis import RedisPlace


@pytest.fixture(scope="session")
def redis_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    place = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield place
    place.stop()


class OnRedis(Suite):
    scheme = "redis"

    @pytest.fixture
    def store(self, redis_place: RedisPlace) -> Iterator[Store]:
        store = redis_place.open(uuid4().hex)
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


class TestRedis(OnRedis, StoreConformance):
    pass


class TestRedisWaiting(OnRedis, WaitingConformance):
    pass


class TestRedisBatches(OnRedis, BatchConformance):
    pass


CONFORMING = {TestRedis: RedisStore, TestRedisWaiting: RedisStore, TestRedisBatches: RedisStore}
