"""Places of the stores that need no server of their own, for tests that only open clients there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from gcs_emulator import GcsServer
from tests.servers.places import Place


@dataclass(frozen=True)
class Somewhere:
    """A place that cannot be killed, paused or proxied: it has nothing of `Place` for that."""

    scheme: str
    stem: str
    wakes: bool
    is_fifo: bool = False

    def url(self, space: str, *, ports: None = None) -> str:
        """Return the URL of an empty store, without key."""
        return f"{self.stem}{space}"


@contextmanager
def serverless(scheme: str, directory: Path) -> Iterator[Place]:
    """Yield a place of SQLite or Cloud Storage."""
    if scheme == "sqlite":
        yield cast(Place, Somewhere(scheme, f"sqlite:///{directory}/", wakes=True))
        return
    with GcsServer(buckets=["bucket"]) as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield cast(Place, Somewhere(scheme, "gs://bucket/", wakes=False))
