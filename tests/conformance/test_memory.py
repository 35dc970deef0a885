"""The memory store keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstead.stores.memory.store import Memory, MemoryStore
from lockstead.stores.port import Store
from lockstead.testing.conformance import StoreConformance, WaitingConformance
from lockstead.testing.conformance.base import Suite
from tests.conformance.later import LaterSpaces


class OnMemory(Suite):
    scheme = "memory"

    @pytest.fixture
    def memory(self) -> Memory:
        return Memory()

    @pytest.fixture
    def store(self, memory: Memory) -> Iterator[Store]:
        store = MemoryStore(memory)
        yield store
        store.close()

    @pytest.fixture
    def twin(self, memory: Memory) -> Iterator[Store]:
        twin = MemoryStore(memory)
        yield twin
        twin.close()


class TestMemory(OnMemory, StoreConformance, LaterSpaces):
    pass


class TestMemoryWaiting(OnMemory, WaitingConformance):
    pass


CONFORMING = {TestMemory: MemoryStore, TestMemoryWaiting: MemoryStore}
