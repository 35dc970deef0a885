"""Opening a store, and what else blocks, in the thread that asks for it. Its twin is `aio_loading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call(job: Callable[[], T]) -> T:
    """Call it."""
    return job()


def load(opens: Callable[[], T]) -> T:
    """Open a store."""
    return opens()
