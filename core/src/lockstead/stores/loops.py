"""Resources per event loop: created in the loop that asks for one, closed when that loop or the store ends.

Must not know what the resources are, nor any store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

CLEANUP_LIMIT: Final = 1.0
"""Seconds that `close` waits for another event loop to close its resource."""


class PerLoop(Generic[T]):
    """One resource for each event loop. Safe to share between threads."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._kept: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[None, None]]] = {}

    async def get(self) -> T:
        """Return the resource of the running loop; create it if there is none."""
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._kept.get(loop)
            if known is not None:
                return known[0]
            made = self._make()
            life = self._until_closed(loop, made)
            self._kept = dict(filter(lambda kept: not kept[0].is_closed(), self._kept.items()))
            self._kept[loop] = (made, life)
        # a loop that ends closes its asynchronous generators, so the resource is closed with its loop
        await anext(life)
        return made

    async def _until_closed(self, loop: asyncio.AbstractEventLoop, made: T) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self._lock:
                self._kept.pop(loop, None)
            await self._close(made)

    def close(self) -> None:
        """Close every resource in its own loop, if that still runs; may take 1 s for each."""
        with self._lock:
            kept = list(self._kept.items())
            self._kept.clear()
        for loop, (_made, life) in kept:
            _close_in(loop, life)


def _close_in(loop: asyncio.AbstractEventLoop, life: AsyncGenerator[None, None]) -> None:
    if not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(life.aclose(), loop)
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        try:
            closing.result(timeout=CLEANUP_LIMIT)
        except TimeoutError:
            closing.cancel()
