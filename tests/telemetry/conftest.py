"""What tests of metrics and traces share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lockstead
from lockstead.stores.memory import MemoryStore


@pytest.fixture
def client() -> Iterator[lockstead.Client]:
    """Return a client with a store of its own."""
    with lockstead.Client(MemoryStore()) as one:
        yield one
