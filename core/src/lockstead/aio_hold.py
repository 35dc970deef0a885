"""AsyncHold: an `async with` block, or a coroutine function, that holds a lock.

Imports next to nothing: a hold is made where the event loop runs, and the engine is loaded when it is entered.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from lockstead.runtime import context

if TYPE_CHECKING:
    from lockstead.aio_lease import AsyncGuard, AsyncLease
    from lockstead.values import Duration

P = ParamSpec("P")
R = TypeVar("R")


class AsyncHold:
    """What `lock.hold()` gives: an async context manager with a lease of its own, and a decorator."""

    def __init__(
        self, acquire: Callable[[], Awaitable[AsyncLease]], *, interrupt: bool, drain: Duration | None
    ) -> None:
        self._acquire = acquire
        self._interrupt = interrupt
        self._drain = drain
        self._lease: AsyncLease | None = None
        self._guard: AsyncGuard | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        lease = await self._acquire()
        try:
            self._lease = lease
            context.enter(lease)
            if self._interrupt:
                self._guard = lease.guard()
                await self._guard.__aenter__()
        except BaseException as error:
            # the block never began
            lease._tenure.unused = True
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        from lockstead.aio_lease import leave

        context.leave(lease)
        try:
            if guard is not None:
                await guard.__aexit__(kind, error, trace)
        except BaseException as raised:
            await leave(lease, raised, self._drain)
            raise
        await leave(lease, error, self._drain)

    def __enter__(self) -> NoReturn:
        raise TypeError("an AsyncLock is awaited: use 'async with lock.hold():'")

    def __exit__(self, *_: object) -> None:
        raise TypeError("an AsyncLock is awaited: use 'async with lock.hold():'")

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is not a coroutine function: decorate it with Lock(...).hold()")

        @functools.wraps(function)
        async def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            async with AsyncHold(self._acquire, interrupt=self._interrupt, drain=self._drain):
                return await function(*args, **kwargs)

        return holding_it
