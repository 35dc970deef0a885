"""What the awaiting side of stores does in its own way: it waits in the event loop. Its twin is `blocking`.

Both have the same names, for the modules that are generated for one side from the other.
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
    """Room for a number of callers at once; a caller that finds none waits. Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def enter(self, ends_at: float) -> bool:
        """Return True as soon as there is room, False if there is none by `ends_at` (monotonic clock)."""
        if not self._free.locked():
            return await self._free.acquire()
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Make room for somebody else. Neither blocks nor takes a lock."""
        with suppress(RuntimeError):  # the loop is closed, so nobody waits in it
            self._free.release()


class Readiness:
    """Whether a socket can be read from or written to. For one task at a time, which may be cancelled as it waits."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_readable(self) -> bool:
        """Return whether something has come, or the end; does not wait."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN | select.POLLPRI)
        return bool(poll.poll(0))

    async def readable(self, ends_at: float) -> None:
        """Wait until something has come, or the end; TimeoutError if nothing has by `ends_at` (monotonic clock)."""
        await self._wait(ends_at, reads=True, writes=False)

    async def ready(self, ends_at: float, *, reads: bool = True) -> bool:
        """Wait until it can be written to, or with `reads` read from; return whether the latter. TimeoutError."""
        await self._wait(ends_at, reads=reads, writes=True)
        return reads and self.is_readable()

    async def _wait(self, ends_at: float, *, reads: bool, writes: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()
        descriptor = self._descriptor
        # watched no longer than somebody waits: the number is another socket's as soon as this one is closed
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
            if not loop.is_closed():  # this coroutine may be collected after its loop
                if reads:
                    loop.remove_reader(descriptor)
                if writes:
                    loop.remove_writer(descriptor)


async def aside(call: Callable[[], T], ends_at: float) -> T:
    """Return what a call returns that may block, made in a thread. TimeoutError if it lasts beyond `ends_at`.

    The loop's executor would not do: its threads are joined at exit, so a name server that is silent would hang it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_settle, done, call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            settle = partial(_fail, done, error)
        with suppress(RuntimeError):  # the loop is closed, so nobody awaits it
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
