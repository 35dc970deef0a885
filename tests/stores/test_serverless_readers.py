"""What holds of readers and writers on stores without a server of their own: SQLite, and Cloud Storage's emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.bench import bench
from tests.servers.places import Place
from tests.servers.serverless import serverless
from tests.stores.test_all_stores_readers import (
    test_a_downgraded_lease_lets_readers_in_and_no_writer,
    test_m03_a_killed_reader_holds_a_writer_up_until_its_ttl_is_over,
    test_m05_a_group_outlives_the_process_that_founded_it,
    test_one_reader_is_broken_and_the_others_read_on,
    test_readers_and_writers_that_are_awaited,
    test_readers_share_and_the_last_one_wakes_the_writer,
)

__all__ = [
    "bench",
    "test_a_downgraded_lease_lets_readers_in_and_no_writer",
    "test_m03_a_killed_reader_holds_a_writer_up_until_its_ttl_is_over",
    "test_m05_a_group_outlives_the_process_that_founded_it",
    "test_one_reader_is_broken_and_the_others_read_on",
    "test_readers_and_writers_that_are_awaited",
    "test_readers_share_and_the_last_one_wakes_the_writer",
]


@pytest.fixture(params=["sqlite", "gs"])
def at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return each store in turn."""
    with serverless(request.param, tmp_path_factory.mktemp(request.param)) as there:
        yield there
