"""The stores that several processes can share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gcs_emulator import GcsServer
from tests.runtime.keeping import Alone, Told


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a new file."""
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """Run a bucket `b`, which child processes find as well."""
    with GcsServer(buckets=["b"]) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(params=["sqlite", "gs"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Return each store in turn."""
    if request.param == "gs":
        request.getfixturevalue("gcs")
        return "gs://b/locks"
    url: str = request.getfixturevalue("sqlite_url")
    return url


@pytest.fixture
def told() -> Iterator[Told]:
    """Return a keeper without an engine, and close it."""
    one = Told()
    yield one
    one.keeper.close()


@pytest.fixture
def alone() -> Iterator[Alone]:
    """Return an engine without a thread, and close it."""
    one = Alone()
    yield one
    one.engine.keeper._tasks.clear()
    one.engine.close()
