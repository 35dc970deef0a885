"""Interruption of an asyncio task whose lease is lost, by a cancellation that is distinguished from other callers'.

`runtime.nest` decides which block is interrupted, and when: there is at most one cancellation of lockstead at a time.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Final

from lockstead.runtime.nest import Block, Nest

LEAVE_WITHIN: Final = 0.01
"""Seconds that a task whose own thread found the loss has to leave its block before it is cancelled."""


class _TaskNest(Nest):
    """The guarded blocks of one task. Used only by the task's thread."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        super().__init__()
        self.task = task

    def cancel(self) -> None:
        """Cancel the task if one of its blocks is due to be interrupted."""
        block = self.due()
        if block is not None:
            self.raised.append(block.number)
            self.task.cancel("lease lost")


_NEST: ContextVar[_TaskNest | None] = ContextVar("lockstead_task_nest", default=None)


class TaskInterrupter(Block):
    """The interrupter of one block of an asyncio task. It cancels the task at most once."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can guard a block of a task only")
        self._task = task
        # the task may be being cancelled already, and take a lock for its clean-up
        self._cancelled_before = task.cancelling()
        around = _NEST.get()
        # a task starts with a copy of its creator's context, so the nest found may be another task's
        if around is None or around.task is not task:
            around = _TaskNest(task)
            _NEST.set(around)
        self._around = around
        around.enter(self)

    def fire(self, found_in: int | None = None) -> None:
        """Cancel the task unless the block has ended, from any thread, without blocking.

        found_in: the thread that found the loss; if it is the task's, the task first gets time to leave its block.
        """
        self.is_lost = True
        try:
            if found_in == self._thread:
                self._loop.call_soon_threadsafe(self._loop.call_later, LEAVE_WITHIN, self._around.cancel)
            else:
                self._loop.call_soon_threadsafe(self._around.cancel)
        except RuntimeError:
            return  # the loop is closed, so the block has ended

    async def disarm(self, error: BaseException | None) -> tuple[bool, bool]:
        """End the block; return (it was cancelled because of the loss, another caller cancelled the task too).

        A pending cancellation because of the loss is delivered here, not after the block. A cancellation by another
        caller is kept: it is delivered at the next await if the block ends in another way.
        """
        was_cancelled = self.number in self._around.raised
        self._around.leave(self)
        # an outer block may have been waiting for its turn to be interrupted
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
