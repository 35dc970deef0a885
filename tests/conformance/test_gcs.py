"""The store on Cloud Storage keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gcs_emulator import GcsServer
from lockstead.stores import url
from lockstead.stores.gcs.store import GcsStore
from lockstead.stores.port import Store
from lockstead.testing.conformance import AwaitingConformance, StoreConformance
from lockstead.testing.conformance.base import Suite
from tests.conformance.later import LaterSpaces


class OnGcs(Suite):
    scheme = "gs"

    @pytest.fixture
    def server(self) -> Iterator[GcsServer]:
        with GcsServer(buckets=["bucket"]) as server:
            yield server

    @pytest.fixture
    def store(self, server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        store = url.open_store("gs://bucket/locks")
        yield store
        store.close()

    @pytest.fixture
    def twin(self, store: Store) -> Iterator[Store]:
        twin = url.open_store(store.url)
        yield twin
        twin.close()


class TestGcs(OnGcs, StoreConformance, LaterSpaces):
    pass


class TestGcsAwaiting(OnGcs, AwaitingConformance):
    pass


CONFORMING = {TestGcs: GcsStore, TestGcsAwaiting: GcsStore}
