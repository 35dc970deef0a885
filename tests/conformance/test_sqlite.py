"""The SQLite store keeps the contract of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstead.stores.port import Store
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.testing.conformance import HostileConformance, StoreConformance, WaitingConformance
from lockstead.testing.conformance.base import Suite
from lockstead.testing.conformance.hostile import Damage
from lockstead.values import Name
from tests.conformance.later import LaterSpaces


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

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        def write(name: Name, garbage: bytes) -> bool:
            connection = sqlite3.connect(tmp_path / "locks.db", isolation_level=None)
            at = (name.space.value, name.key, name.part)
            connection.execute(
                "UPDATE record SET fields = CAST(? AS TEXT) WHERE space = ? AND key = ? AND part = ?", (garbage, *at)
            )
            connection.close()
            return True

        return write


class TestSqlite(OnSqlite, StoreConformance, LaterSpaces):
    pass


class TestSqliteHostile(OnSqlite, HostileConformance):
    pass


class TestSqliteWaiting(OnSqlite, WaitingConformance):
    pass


CONFORMING = {TestSqlite: SqliteStore, TestSqliteWaiting: SqliteStore}
