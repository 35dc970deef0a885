"""Decides what a locked function does where it is called by itself, outside of any run: it gives what it gave before.

A value, a generator, a coroutine or an asynchronous generator, each of which holds the lock while it runs. Nothing is
interrupted; a loss is LeaseLost at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from types import FunctionType
from typing import Any

from dagster_lockstead import acquiring, section
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.resource import LockResource
from dagster_lockstead.spec import LockSpec


@bears_interrupts
def call(function: FunctionType, body: Callable[[], Any], context: Any, resource: LockResource, spec: LockSpec) -> Any:
    """Call a body under its lock, and give the same kind of result."""
    if inspect.isasyncgenfunction(function):
        return _async_generator(body, context, resource, spec)
    if inspect.iscoroutinefunction(function):
        return _coroutine(body, context, resource, spec)
    if inspect.isgeneratorfunction(function):
        return _generator(body, context, resource, spec)
    with section.outside(context, resource, spec):
        return body()


@bears_interrupts
def _generator(
    body: Callable[[], Any], context: Any, resource: LockResource, spec: LockSpec
) -> Generator[Any, Any, Any]:
    with section.outside(context, resource, spec):
        return (yield from body())


@bears_interrupts
async def _coroutine(body: Callable[[], Any], context: Any, resource: LockResource, spec: LockSpec) -> Any:
    async with _held(context, resource, spec):
        return await body()


@bears_interrupts
async def _async_generator(
    body: Callable[[], Any], context: Any, resource: LockResource, spec: LockSpec
) -> AsyncIterator[Any]:
    async with _held(context, resource, spec):
        steps = body()
        try:
            async for event in steps:
                yield event
        finally:
            await steps.aclose()


@asynccontextmanager
@bears_interrupts
async def _held(context: Any, resource: LockResource, spec: LockSpec) -> AsyncIterator[None]:
    spec = section.named(spec, context)
    lock = spec.checked(resource.alock(str(spec.key), **spec.settings))
    lease = await lock.acquire(section.limit(resource, spec))
    await acquiring.ajudged(lock, lease, spec)
    async with lease:
        yield
