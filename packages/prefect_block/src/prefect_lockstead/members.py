"""Running one call under leases of enclosing sections: on a loss its thread is interrupted or its task cancelled.

A loss is always raised as LeaseLost, so that Prefect shows the call as Failed and not as Crashed. Must not know
sections, nor Prefect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import lockstead
from lockstead.guard import Guard

AnyLease: TypeAlias = lockstead.Lease | lockstead.AsyncLease

TURN_OF_THE_PARENT: Final = 0.05
"""Seconds after a loss before a task is cancelled: its parent is cancelled at once and usually cancels it, and a second
cancellation would interrupt its cleanup."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The thread of a guard, and its asyncio task if a task is guarded."""

    thread: int
    task: asyncio.Task[Any] | None

    @classmethod
    def here(cls, *, is_task: bool) -> Place:
        """Return the place of the caller."""
        return cls(threading.get_ident(), asyncio.current_task() if is_task else None)

    def covers(self, *, is_async: bool) -> bool:
        """Return whether this guard interrupts a function called now: cancelling a task stops no thread."""
        if self.thread != threading.get_ident():
            return False
        return self.task is None or (is_async and self.task is asyncio.current_task())


def blocking(leases: Sequence[AnyLease], call: Callable[[], Any]) -> Any:
    """Call the function, guarded by the leases, the first outermost."""
    try:
        return _guarded(leases, call)
    except BaseException as error:
        # an interrupt of a thread may arrive after the guard's exit
        lost = first_lost(leases)
        if lost is not None and isinstance(error, lockstead.LeaseLostInterrupt):
            raise lost.lost_error() from None
        raise


def _guarded(leases: Sequence[AnyLease], call: Callable[[], Any]) -> Any:
    if not leases:
        return call()
    with Guard(cast("lockstead.Lease", leases[0])):
        return _guarded(leases[1:], call)


class Cancel:
    """Cancels the asyncio task of one member once, unless it is already cancelled."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()
        self._is_armed = True
        self._is_fired = False

    def fire(self) -> None:
        """Schedule the cancellation. From any thread; does not block."""
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, TURN_OF_THE_PARENT, self._cancel)
        except RuntimeError:
            return  # the loop is closed, and the task with it

    def _cancel(self) -> None:
        if self._task is not None and self._is_armed and self._task.cancelling() == self._before:
            self._is_fired = True
            self._task.cancel("lease lost")

    async def disarm(self, *, was_received: bool) -> None:
        """Prevent further cancellation, and receive a pending one here, so that it does not reach later code."""
        self._is_armed = False
        if not self._is_fired or self._task is None:
            return
        self._task.uncancel()
        if not was_received:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._task.cancelling() > self._before:
                    raise  # somebody else cancelled the task, too


async def awaiting(cancel: Cancel, leases: Sequence[AnyLease], call: Callable[[], Awaitable[Any]]) -> Any:
    """Await the call, which `cancel` cancels when one of the leases is lost."""
    try:
        result = await call()
    except asyncio.CancelledError as error:
        await cancel.disarm(was_received=True)
        # the awaiting task may have been cancelled for the same loss
        lost = first_lost(leases)
        if lost is not None:
            raise lost.lost_error() from error
        raise
    except BaseException:
        await cancel.disarm(was_received=False)
        raise
    await cancel.disarm(was_received=False)
    lost = first_lost(leases)
    if lost is not None:
        raise lost.lost_error()
    return result


def first_lost(leases: Sequence[AnyLease]) -> AnyLease | None:
    """Return the first lease that is known to be lost."""
    return next((one for one in leases if one.lost_reason is not None), None)
