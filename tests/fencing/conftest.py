"""A bucket on a server of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from gcs_emulator import GcsServer


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(buckets=["b"]) as server:
        yield server


@pytest.fixture
def bucket(server: GcsServer) -> Iterator[storage.Bucket]:
    client = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    yield client.bucket("b")
    client.close()
