"""A bucket whose time the test decides, and lockstead on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer
from gcs_emulator.clock import ManualClock
from lockstead.stores import url
from tests.interop.places import Place
from tests.interop.recordings import BUCKET


@pytest.fixture
def clock() -> ManualClock:
    """The server's clock: behind `Date`, `updated` and the generations."""
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server that child processes find as well."""
    with GcsServer(buckets=[BUCKET], clock=clock) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def client(server: GcsServer) -> Iterator[lockstead.Client]:
    """Lockstead in the folder where the others' objects stand."""
    with lockstead.connect(f"gs://{BUCKET}/locks") as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return each store in turn, in real time."""
    elapse = partial(time.sleep, 1.1)
    with ExitStack() as stack:
        if request.param == "gs":
            ahead = [0.0]
            running = stack.enter_context(GcsServer(buckets=[BUCKET], clock=lambda: time.time() + ahead[0]))
            elapse = partial(ahead.__setitem__, 0, 10.0)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        address = {
            "memory": f"memory:{tmp_path.name}-{os.getpid()}",
            "sqlite": f"sqlite:///{tmp_path}/locks.db",
            "gs": f"gs://{BUCKET}/locks",
        }[request.param]
        store = url.open_store(address)
        stack.callback(store.close)
        yield Place(stack.enter_context(lockstead.connect(address)), store, elapse)
