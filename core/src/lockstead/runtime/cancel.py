"""How a task is interrupted when its lease is lost: by a cancellation told apart from everybody else's.

Which block is interrupted, and when, is decided by `runtime.nest`: there is never more than one cancellation of ours.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Final

from lockstead.runtime.nest import Block, Nest

LEAVE_WITHIN: Final = 0.01
"""Seconds that a task which found the loss by itself has to leave its block, before it is cancelled."""


class _TaskNest(Nest):
    """The guarded blocks of one task. Its own thread alone touches it."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        super().__init__()
        self.task = task

    def cancel(self) -> None:
        """Cancel the task if it is the turn of one of its blocks."""
        block = self.due()
        if block is not None:
            self.raised.append(block.number)
            self.task.cancel("lease lost")


_NEST: ContextVar[_TaskNest | None] = ContextVar("lockstead_task_nest", default=None)


class TaskInterrupter(Block):
    """Interrupts one block of an asyncio task, once."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can guard a block of a task only")
        self._task = task
        # a task that is being cancelled may hold a lock while it cleans up
        self._cancelled_before = task.cancelling()
        around = _NEST.get()
        # a task begins with a copy of the context of the one that made it
        if around is None or around.task is not task:
            around = _TaskNest(task)
            _NEST.set(around)
        self._around = around
        around.enter(self)

    def fire(self, found_in: int | None = None) -> None:
        """Cancel the task, unless the block is over. From any thread; does not block."""
        self.is_lost = True
        try:
            if found_in == self._thread:
                self._loop.call_soon_threadsafe(self._loop.call_later, LEAVE_WITHIN, self._around.cancel)
            else:
                self._loop.call_soon_threadsafe(self._around.cancel)
        except RuntimeError:
            return  # the loop is closed, and the block with it

    async def disarm(self, error: BaseException | None) -> tuple[bool, bool]:
        """End the block; give (it was cancelled for our sake, somebody else cancelled the task too).

        Whatever cancellation is on its way for our sake falls here and not on what follows the block. Somebody
        else's stays: it is delivered at the next await if the block ends otherwise.
        """
        was_cancelled = self.number in self._around.raised
        self._around.leave(self)
        # a block around this one may have waited for its turn
        self._loop.call_soon(self._around.cancel)
        if not was_cancelled:
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
