"""AsyncHold: an `async with` block, or a coroutine function, that holds a lock.

Has few imports: the engine is loaded when a hold is entered.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from lockstead.misuse import AsyncHoldMisuse, check_coroutine_function
from lockstead.runtime.interrupt import uninterrupted

if TYPE_CHECKING:
    from lockstead.aio_guard import AsyncGuard
    from lockstead.aio_lease import AsyncLease
    from lockstead.values import Duration

P = ParamSpec("P")
R = TypeVar("R")


class AsyncHold(AsyncHoldMisuse):
    """The return value of `lock.hold()`: a context manager with a lease of its own, and a decorator."""

    def __init__(
        self, acquire: Callable[[], Awaitable[AsyncLease]], *, interrupt: bool, drain: Duration | None
    ) -> None:
        self._acquire = acquire
        self._interrupt = interrupt
        self._drain = drain
        self._lease: AsyncLease | None = None
        self._guard: AsyncGuard[AsyncLease] | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        self._lease = await self._acquire()
        return await self._begin(self._lease)

    @uninterrupted
    async def _begin(self, lease: AsyncLease) -> AsyncLease:
        try:
            lease._enter_block()
            if self._interrupt:
                guard = self._guard = lease.guard()
                await guard.__aenter__()
        except BaseException as error:
            # the block never began
            lease._lease_state.unused = True
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return lease

    @uninterrupted
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        try:
            if guard is not None:
                await guard.__aexit__(kind, error, trace)
        except BaseException as raised:
            await lease._leave(raised, self._drain)
            raise
        await lease._leave(error, self._drain)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        check_coroutine_function(function)

        @functools.wraps(function)
        async def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            async with AsyncHold(self._acquire, interrupt=self._interrupt, drain=self._drain):
                return await function(*args, **kwargs)

        return holding_it
