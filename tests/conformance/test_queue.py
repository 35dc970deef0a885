"""The suite of queues holds for the smallest store that keeps one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstead.stores.port import Store
from lockstead.testing.conformance import QueueConformance
from tests.runtime.fifo import FifoStore


class TestQueueInMemory(QueueConformance):
    scheme = "memory"

    @pytest.fixture
    def fifo(self) -> Iterator[FifoStore]:
        store = FifoStore()
        yield store
        store.close()

    @pytest.fixture
    def store(self, fifo: FifoStore) -> Store:
        return fifo

    @pytest.fixture
    def twin(self, fifo: FifoStore) -> Store:
        return fifo.beside()
