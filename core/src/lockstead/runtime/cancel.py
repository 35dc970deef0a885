"""Decides how a task is interrupted when its lease is lost: by a cancellation told apart from everybody else's."""

from __future__ import annotations

import asyncio


class TaskInterrupter:
    """Interrupts one block of an asyncio task, once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can guard a block of a task only")
        self._task = task
        # a task that is being cancelled may hold a lock while it cleans up
        self._cancelled_before = task.cancelling()
        self._is_armed = True
        self._is_fired = False

    def fire(self) -> None:
        """Cancel the task, unless the block is over. From any thread; does not block."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return  # the loop is closed, and the block with it

    def _cancel(self) -> None:
        if self._is_armed and not self._is_fired:
            self._is_fired = True
            self._task.cancel("lease lost")

    async def disarm(self, error: BaseException | None) -> tuple[bool, bool]:
        """End the block; give (it was fired, somebody else cancelled the task too).

        Whatever cancellation is on its way for our sake falls here and not on what follows the block. Somebody
        else's stays: it is delivered at the next await if the block ends otherwise.
        """
        self._is_armed = False
        if not self._is_fired:
            return False, False
        self._task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if error is not None and self._is_cancelled_too():
                    self._task.cancel()
                    self._task.uncancel()
        return True, self._is_cancelled_too()

    def _is_cancelled_too(self) -> bool:
        return self._task.cancelling() > self._cancelled_before
