"""AsyncGuard: cancels an `async with` block when its lease is lost. The awaiting counterpart of `guard`."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generic, Self, TypeVar

from lockstead.runtime.cancel import TaskInterrupter
from lockstead.runtime.held import HeldLease
from lockstead.runtime.inside import is_inside

L = TypeVar("L", bound=HeldLease)


class AsyncGuardedLease(HeldLease):
    """An awaiting lease that can cancel a block."""

    def guard(self) -> AsyncGuard[Self]:
        """Return a guard, whose `async with` block is cancelled when the lease is lost, and then raises LeaseLost."""
        return AsyncGuard(self)


class AsyncGuard(Generic[L]):
    """An `async with` block that is cancelled when its lease is lost, and then raises LeaseLost.

    Another caller's cancellation at the same instant remains a cancellation.
    """

    def __init__(self, lease: L) -> None:
        self._lease = lease
        self._interrupter: TaskInterrupter | None = None

    async def __aenter__(self) -> L:
        if self._interrupter is not None:
            raise TypeError("this guard is entered already: call lease.guard() once for each block")
        self._lease.check()
        self._interrupter = TaskInterrupter()
        try:
            self._lease._engine.keeper.guard(self._lease._kept, self._interrupter)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupter, lease = self._interrupter, self._lease
        if interrupter is None:
            return
        self._interrupter = None
        if is_inside():  # the coroutine is being garbage-collected: it can neither await nor take a lock
            interrupter.is_over = True
            return
        lease._engine.keeper.unguard(lease._kept, interrupter)
        was_cancelled, cancelled_too = await interrupter.disarm(error)
        if was_cancelled and cancelled_too and error is None:
            raise asyncio.CancelledError
        if (was_cancelled and not cancelled_too and (error is None or isinstance(error, asyncio.CancelledError))) or (
            lease.lost_reason is not None and not was_cancelled and error is None
        ):
            lost = lease._found_lost()
            raise lost from lost.__cause__
