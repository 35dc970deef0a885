"""What the tests on a real Prefect share: one server for each process of pytest.

Prefect reads its settings when it is imported, so they are told here, before any test module is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.prefect import PrefectServer, told

HOME = tempfile.TemporaryDirectory(prefix="lockstead-prefect-")
SERVER = PrefectServer(Path(HOME.name) / "server")
os.environ.update(told(Path(HOME.name) / "home", SERVER.url))
os.environ["TEST_STORE"] = f"sqlite:///{HOME.name}/tickets.db"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all that stand in this folder, and give them time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.prefect)
            if item.get_closest_marker("timeout") is None:
                # the first that needs the server waits for its start, too
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def server() -> Iterator[PrefectServer]:
    """Return a running server; the flows of this process run against it."""
    try:
        yield SERVER.start()
    finally:
        SERVER.stop()
        HOME.cleanup()
