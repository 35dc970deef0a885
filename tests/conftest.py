"""Decides what tests of several folders share: a server that takes seconds to start is started once a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.cassandra.place import CassandraPlace


@pytest.fixture(scope="session")
def cassandra_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraPlace]:
    """Give a node of Cassandra, with a keyspace for each test."""
    from tests.servers.cassandra.place import CassandraPlace

    place = CassandraPlace(tmp_path_factory.mktemp("cassandra"))
    yield place
    place.stop()
