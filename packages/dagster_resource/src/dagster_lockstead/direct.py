"""Direct calls of a locked function, outside of any run: they return the same kind of result as without the lock.

That is a value, a generator, a coroutine or an async generator, each of which holds the lock while it runs. Nothing is
interrupted; a loss raises LeaseLost at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from dagster_lockstead import acquiring, section
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.resource import LockResource
from dagster_lockstead.spec import LockSpec


@dataclass(frozen=True, slots=True)
class LockedCall:
    """One call of a locked function: its context, the lock, and the arguments with which its templates are rendered."""

    context: Any
    resource: LockResource
    spec: LockSpec
    arguments: Mapping[str, Any]

    def outside(self) -> AbstractContextManager[section.Entry]:
        """Hold the lock for a block."""
        return section.outside(self.context, self.resource, self.spec, self.arguments)


@bears_interrupts
def call(function: FunctionType, body: Callable[[], Any], locked_call: LockedCall) -> Any:
    """Call a body under its lock, and return the same kind of result as the body."""
    if inspect.isasyncgenfunction(function):
        return _async_generator(body, locked_call)
    if inspect.iscoroutinefunction(function):
        return _coroutine(body, locked_call)
    if inspect.isgeneratorfunction(function):
        return _generator(body, locked_call)
    with locked_call.outside():
        return body()


@bears_interrupts
def _generator(body: Callable[[], Any], locked_call: LockedCall) -> Generator[Any, Any, Any]:
    with locked_call.outside():
        return (yield from body())


@bears_interrupts
async def _coroutine(body: Callable[[], Any], locked_call: LockedCall) -> Any:
    async with _held(locked_call):
        return await body()


@bears_interrupts
async def _async_generator(body: Callable[[], Any], locked_call: LockedCall) -> AsyncIterator[Any]:
    async with _held(locked_call):
        steps = body()
        try:
            async for event in steps:
                yield event
        finally:
            await steps.aclose()


@asynccontextmanager
@bears_interrupts
async def _held(locked_call: LockedCall) -> AsyncIterator[None]:
    spec = section.named(locked_call.spec, locked_call.context, locked_call.arguments)
    lock = spec.checked(locked_call.resource.alock(str(spec.key), **spec.settings))
    async with await lock.acquire(section.limit(locked_call.resource, spec)) as lease:
        try:
            await acquiring.ajudged(lock, lease, spec)
        except BaseException:
            # no work was done under it: the next holder gets the same previous lease
            await lease.release(unused=True)
            raise
        yield
