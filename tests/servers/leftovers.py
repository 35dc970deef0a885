"""What becomes of what other people's clients leave open: it is collected where they ran.

A socket that nobody closed is told of whenever it is collected, and then a later test is blamed for it.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _leftovers_are_collected() -> Iterator[None]:
    """Collect after each test, and say nothing."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
