"""Waiting primitives of the asynchronous stores: they wait in the event loop. The counterpart is `blocking`.

Both modules define the same names, because the blocking store modules are generated from the asynchronous ones.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from lockstead.errors import StoreUnavailable

T = TypeVar("T")

__all__ = ["Readiness", "Room", "aside"]


class Room:
    """A limit on concurrent callers; further callers wait. Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def enter(self, ends_at: float) -> bool:
        """Return True as soon as there is room, or False if there is none by `ends_at` (monotonic clock)."""
        if not self._free.locked():
            return await self._free.acquire()
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Make room for another caller. Neither blocks nor takes a lock."""
        with suppress(RuntimeError):  # the loop is closed, so it has no waiters
            self._free.release()


class Readiness:
    """The readiness of a socket for reading and writing. For one task at a time, which may be cancelled as it waits."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_readable(self) -> bool:
        """Return whether data or end-of-file has arrived; does not wait."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN | select.POLLPRI)
        return bool(poll.poll(0))

    async def readable(self, ends_at: float) -> None:
        """Wait for data or end-of-file; raise TimeoutError if neither arrives by `ends_at` (monotonic clock)."""
        await self._wait(ends_at, reads=True, writes=False)

    async def ready(self, ends_at: float, *, reads: bool = True) -> bool:
        """Wait until writable or, with `reads`, readable; return whether it is readable.

        Raises TimeoutError at `ends_at` (monotonic clock).
        """
        await self._wait(ends_at, reads=reads, writes=True)
        return reads and self.is_readable()

    async def _wait(self, ends_at: float, *, reads: bool, writes: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()
        descriptor = self._descriptor
        # watched only during the wait: once this socket is closed, its descriptor may be reused by another socket
        if reads:
            loop.add_reader(descriptor, _settle, ready, True)
        if writes:
            loop.add_writer(descriptor, _settle, ready, True)
        timer = loop.call_later(ends_at - time.monotonic(), _settle, ready, False)
        try:
            if not await ready:
                raise TimeoutError
        finally:
            timer.cancel()
            if not loop.is_closed():  # this coroutine may be garbage-collected after its loop was closed
                if reads:
                    loop.remove_reader(descriptor)
                if writes:
                    loop.remove_writer(descriptor)


async def aside(call: Callable[[], T], ends_at: float) -> T:
    """Run a blocking call in a thread and return its result. Raises TimeoutError if it is not done by `ends_at`.

    The loop's executor is not used: its threads are joined at exit, so a silent name server would hang the exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_settle, done, call())
        except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
            settle = partial(_fail, done, error)
        with suppress(RuntimeError):  # the loop is closed, so nothing awaits the result
            loop.call_soon_threadsafe(settle)

    try:
        threading.Thread(target=run, name="lockstead-aside", daemon=True).start()
    except RuntimeError as error:
        raise StoreUnavailable(f"no thread can be started to look an address up: {error}") from error
    async with asyncio.timeout(ends_at - time.monotonic()):
        return await done


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
