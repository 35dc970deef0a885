"""Awaiting blocking calls, which run in threads of the engine.

Has few imports, because the engine's own imports run in such a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from lockstead.errors import StoreUnavailable
from lockstead.runtime.workers import Workers

T = TypeVar("T")


async def in_thread(workers: Workers, job: Callable[[], T], *, came_late: Callable[[], None] | None = None) -> T:
    """Run a blocking call in a thread and await its result. If this is cancelled, the call continues.

    came_late is called in that thread after a call whose awaiter was cancelled. A call that has not begun by then is
    not made. Raises StoreUnavailable if there is no thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(answer: Callable[[asyncio.Future[T]], None]) -> None:
        if not future.done():
            answer(future)

    def work() -> None:
        if future.cancelled():
            return
        try:
            result = job()
            told = partial(tell, lambda waiting: waiting.set_result(result))
        except BaseException as error:  # noqa: BLE001 - it is raised in the awaiting task
            failure = error
            told = partial(tell, lambda waiting: waiting.set_exception(failure))
        with suppress(RuntimeError):  # the loop is closed, and its task with it
            loop.call_soon_threadsafe(told)
        # a cancellation after this line finds all effects of the call visible
        if came_late is not None and future.cancelled():
            came_late()

    if not workers.submit(work):
        raise StoreUnavailable("no thread for the request: the client was closed, or the system has no more threads")
    return await future


async def aside(job: Callable[[], T]) -> T:
    """Run one blocking call in a thread of its own, which ends with it, and await its end."""
    workers = Workers("lockstead-aside", 1)
    try:
        return await in_thread(workers, job)
    finally:
        workers.close()
