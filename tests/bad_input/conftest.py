"""A world for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bad_input.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "w", monkeypatch)
    # a name of its own, for the engines of a process are shared by URL
    made.slug = tmp_path.name[:60]
    try:
        yield made
    finally:
        made.close()
