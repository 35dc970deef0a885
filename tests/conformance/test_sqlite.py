"""The SQLite store keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstead.stores.port import Store
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.testing.conformance import StoreConformance, WaitingConformance
from lockstead.testing.conformance.base import Suite


class OnSqlite(Suite):
    scheme = "sqlite"

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SqliteStore(tmp_path / "locks.db")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, tmp_path: Path) -> Iterator[Store]:
        twin = SqliteStore(tmp_path / "locks.db")
        yield twin
        twin.close()


class TestSqlite(OnSqlite, StoreConformance):
    pass


class TestSqliteWaiting(OnSqlite, WaitingConformance):
    pass


CONFORMING = {TestSqlite: SqliteStore, TestSqliteWaiting: SqliteStore}
