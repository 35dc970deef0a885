"""Garbage collection after each test, for sockets that third-party clients leave open.

An unclosed socket emits a ResourceWarning whenever it is collected, and otherwise a later test would fail for it.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _leftovers_are_collected() -> Iterator[None]:
    """Run the garbage collector after each test, ignoring ResourceWarning."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
