"""The store on Cassandra keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from lockstead.stores import url
from lockstead.stores.cassandra.store import CassandraStore
from lockstead.stores.port import Store
from lockstead.testing.conformance import StoreConformance
from lockstead.testing.conformance.base import Suite
from tests.conformance.later import LaterSpaces
from tests.servers.cassandra.place import CassandraPlace


class OnCassandra(Suite):
    scheme = "cassandra"

    @pytest.fixture
    def store(self, cassandra_place: CassandraPlace) -> Iterator[Store]:
        store = cassandra_place.open(f"s{uuid4().hex[:11]}")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


@pytest.mark.cassandra
@pytest.mark.xdist_group("cassandra node")
class TestCassandra(OnCassandra, StoreConformance, LaterSpaces):
    pass


CONFORMING = {TestCassandra: CassandraStore}
