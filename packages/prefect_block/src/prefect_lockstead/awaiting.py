"""The awaiting counterpart of `blocking`: cancelling a wait from another thread, and reading a block."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from lockstead import LeaseLostInterrupt

if TYPE_CHECKING:
    from prefect_lockstead.places import Place

LOSS_SIGNS: Final = (TimeoutError, LeaseLostInterrupt)
"""What a body may raise for a lost lease besides LeaseLost. A cancellation may have another cause, so it stays one."""


async def find_lock(block: str) -> Place:
    """Return the lock of a saved block, read from Prefect's API. ValueError, with one line, if it cannot be used."""
    from prefect_lockstead import blocks

    return await blocks.find_lock(block)


async def find_store(block: str) -> Place:
    """Return the store of a saved block; as `find_lock`."""
    from prefect_lockstead import blocks

    return await blocks.find_store(block)


class Wait:
    """An `async with` block in which this asyncio task waits, until `cancel`."""

    INTERRUPT: Final = asyncio.CancelledError

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._is_armed = False
        self.is_cancelled = False

    async def __aenter__(self) -> Self:
        self._is_armed = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_armed = False
        if not self.is_cancelled or self._task is None:
            return
        self._task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            # sent as the wait ended: our cancellation must arrive here, and not in later code
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._task.cancelling():
                    raise

    def cancel(self) -> None:
        """Cancel the wait. From any thread; once."""
        with suppress(RuntimeError):  # of a loop that is closed, and the task with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._is_armed and self._task is not None and not self._task.cancelling():
            self._is_armed = False
            self.is_cancelled = True
            self._task.cancel("the run was stopped")
