"""Opening a store, and what else blocks, from an event loop: in a thread. Its twin is `loading`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TypeVar

from lockstead.runtime import fork
from lockstead.runtime.aside import aside

T = TypeVar("T")


async def call(job: Callable[[], T]) -> T:
    """Run a blocking call in a thread, and await its end."""
    return await aside(job)


async def load(opens: Callable[[], T]) -> T:
    """Import what asks a store, and open one, in a thread: it would hold up the event loop for 100 ms."""
    return await aside(partial(fork.loading, partial(_loaded, opens)))


def _loaded(opens: Callable[[], T]) -> T:
    import_module("lockstead.aio_batch")
    return opens()
