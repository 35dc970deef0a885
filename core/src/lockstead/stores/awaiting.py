"""Waiting primitives of the asynchronous stores: they wait in the event loop. The counterpart is `blocking`.

Both modules define the same names, because the blocking store modules are generated from the asynchronous ones.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from lockstead.errors import StoreUnavailable

T = TypeVar("T")

__all__ = ["Limiter", "aside", "ready"]


class _Permit:
    """One caller's permit. It ends with the last reference to it, so that no interrupt can lose it."""

    __slots__ = ("_free",)

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so it has no waiters
            self._free.release()


class Limiter:
    """A limit on concurrent callers; further callers wait. Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def acquire(self, ends_at: float) -> object | None:
        """Return a permit, or None if there is none by `ends_at` (monotonic clock). It is held while referenced."""
        if not self._free.locked():
            await self._free.acquire()
            return _Permit(self._free)
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                await self._free.acquire()
                return _Permit(self._free)
        except TimeoutError:
            return None

    def lift(self) -> None:
        """End the limit: every waiter gets a permit as soon as the one before it has dropped its own."""
        self._free.release()


async def ready(descriptor: int, ends_at: float, reads: bool = True, writes: bool = False) -> None:
    """Wait until a socket is readable, with `reads`, or writable, with `writes`.

    Raises TimeoutError at `ends_at` (monotonic clock). The task may be cancelled while it waits.
    """
    loop, process = asyncio.get_running_loop(), os.getpid()
    done: asyncio.Future[bool] = loop.create_future()
    # watched only during the wait: once this socket is closed, its descriptor may be reused by another socket
    if reads:
        loop.add_reader(descriptor, _settle, done, True)
    if writes:
        loop.add_writer(descriptor, _settle, done, True)
    timer = loop.call_later(ends_at - time.monotonic(), _settle, done, False)
    try:
        if not await done:
            raise TimeoutError
    finally:
        timer.cancel()
        # this coroutine may be garbage-collected after its loop was closed, or in a forked child, which shares the
        # selector: removed there, the parent would not be woken any more
        if not loop.is_closed() and os.getpid() == process:
            if reads:
                loop.remove_reader(descriptor)
            if writes:
                loop.remove_writer(descriptor)


async def aside(call: Callable[[], T], ends_at: float, discard: Callable[[T], object] = repr) -> T:
    """Run a blocking call in a thread and return its result. Raises TimeoutError if it is not done by `ends_at`.

    discard is called, in any thread, with a result that comes too late, or when the task was cancelled. The loop's
    executor is not used: its threads are joined at exit, so a silent name server would hang the exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    made: list[T] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            made.append(call())
            settle = partial(_settle, done, None)
        except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
            settle = partial(_fail, done, error)
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the result
            loop.call_soon_threadsafe(settle)
        if is_over.is_set():
            drop()

    def drop() -> None:
        with suppress(IndexError):  # it was returned, or is dropped by the other thread
            discard(made.pop())

    try:
        threading.Thread(target=run, name="lockstead-aside", daemon=True).start()
    except RuntimeError as error:
        raise StoreUnavailable(f"no thread can be started to connect: {error}") from error
    try:
        async with asyncio.timeout(ends_at - time.monotonic()):
            await done
            return made.pop()
    finally:
        is_over.set()
        drop()


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
