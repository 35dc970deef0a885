"""Where the tests of this folder find a storage server: ours, or the one STORAGE_EMULATOR_HOST names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from gcs_emulator import GcsServer
from tests.stores.gcs.server.driver import Driver

ELSEWHERE = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    if ELSEWHERE:
        yield ELSEWHERE if "://" in ELSEWHERE else f"http://{ELSEWHERE}"
        return
    with GcsServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def bucket(endpoint: str) -> str:
    name = f"lockstead-{uuid4().hex}"
    httpx.post(f"{endpoint}/storage/v1/b", params={"project": "test"}, json={"name": name}).raise_for_status()
    return name


@pytest.fixture(scope="session")
def driver(endpoint: str, bucket: str) -> Iterator[Driver]:
    with httpx.Client(base_url=endpoint, timeout=30) as http:
        yield Driver(http, bucket)


@pytest.fixture
def name() -> str:
    return f"test/{uuid4().hex}"


@pytest.fixture
def server() -> Iterator[GcsServer]:
    """A server of our own, with a bucket `bucket`: for what only ours can do."""
    if ELSEWHERE:
        pytest.skip("STORAGE_EMULATOR_HOST is set: faults can only be injected into our own server")
    with GcsServer(buckets=["bucket"]) as own:
        yield own


@pytest.fixture
def own(server: GcsServer) -> Iterator[Driver]:
    """The driver of a server of our own."""
    with httpx.Client(base_url=server.url, timeout=30) as http:
        yield Driver(http, "bucket")
