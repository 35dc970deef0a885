"""The parts of the runtime that differ on the async side: its waker, requests and pauses.

Its counterpart is `blocking`. A store without an async side is called in threads of the engine. The event loop's
executor is not suitable: its few threads belong to the user, and they are joined at exit, so that a store that hangs
would hang the interpreter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Command
from lockstead.runtime.aside import in_thread
from lockstead.runtime.inside import is_inside
from lockstead.runtime.run import STALLED
from lockstead.stores.port import AsyncStore, Store

if TYPE_CHECKING:
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.held import HeldLease
    from lockstead.runtime.keeper import KeptLease

LATE: Final = 0.05
"""Seconds by which a store may exceed a request's limit."""

REQUEST_LATE: Final = LATE + STALLED
"""Seconds after a request's limit from which its loop must have been stopped, and so dropped a reply that had come."""


ASKED_AGAIN: Final = 1.0
"""Seconds between two callbacks that check an event loop; a loop that has not run one for as long is blocked."""


class AsyncWaker:
    """The waker of an async waiter. It belongs to the event loop that it was made in, which may close before its use.

    came_late is called in a thread of the engine when a request that the waiter no longer awaits has ended there, so
    that it changes nothing after the call. abandoned is called once, in any thread, with this waker as its argument,
    when it is rung after its loop was closed.
    """

    __slots__ = (
        "_abandoned",
        "_asked_at",
        "_awaited",
        "_has_answered",
        "_is_rung",
        "_loop",
        "came_late",
        "engine",
        "is_over",
    )

    def __init__(
        self,
        engine: Engine,
        came_late: Callable[[], None] | None = None,
        abandoned: Callable[[AsyncWaker], None] | None = None,
    ) -> None:
        self.engine = engine
        self.came_late = came_late
        self._abandoned = abandoned
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._awaited = asyncio.Event()
        self._is_rung = False
        # the loop runs: it makes this
        self._asked_at, self._has_answered = time.monotonic(), True

    @property
    def is_gone(self) -> bool:
        """Return whether the event loop is closed, so that the waiter can never send a request again."""
        return self._loop.is_closed()

    @property
    def is_stopped(self) -> bool:
        """Return whether the waiter cannot send a request now: its event loop is not running, or is blocked.

        A blocked loop is noticed at a later call: each schedules a callback that shows that the loop runs.
        """
        if not self._loop.is_running():
            return True
        is_due = time.monotonic() - self._asked_at >= ASKED_AGAIN
        if is_due and self._has_answered:
            self._asked_at, self._has_answered = time.monotonic(), False
            try:
                self._loop.call_soon_threadsafe(self._answered)
            except RuntimeError:  # it was closed in this moment
                return True
            return False
        return is_due

    def _answered(self) -> None:
        self._has_answered = True

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        self._is_rung = True
        try:
            self._loop.call_soon_threadsafe(self._awaited.set)
        except RuntimeError:  # the loop is closed, so no task waits in it
            self.is_over = True
            abandoned, self._abandoned = self._abandoned, None
            if abandoned is not None:
                abandoned(self)

    async def wait(self, seconds: float) -> bool:
        """Await up to `seconds`; return True as soon as it is rung, False if it was not."""
        try:
            async with asyncio.timeout(seconds):
                return await self._awaited.wait()
        except TimeoutError:
            return False

    def take(self) -> bool:
        """Return whether it was rung, and reset it."""
        was, self._is_rung = self._is_rung, False
        self._awaited.clear()
        return was


class Background:
    """A coroutine that runs beside the caller, as a task."""

    def __init__(self, job: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(job())

    async def join(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """Cancel it, and wait until it has ended."""
        self._task.cancel()
        await self.join()


async def perform(command: Command[Any], store: Store, limit: float, waker: AsyncWaker) -> Any:
    """Send one command, in a thread if the store has no async side."""
    try:
        # a store applies the limit itself, and knows whether it has sent anything, so it may raise its error first
        async with asyncio.timeout(limit + LATE):
            if isinstance(store, AsyncStore):
                return await store.aperform(command, limit)
            call = partial(store.perform, command, limit)
            return await in_thread(waker.engine.calls, call, came_late=waker.came_late)
    except TimeoutError as error:
        raise OutcomeUnknown(f"no answer within {limit:.3g} s") from error


async def settle(engine: Engine, kept: KeptLease) -> None:
    """Wait until no renewal of a lease is in flight."""
    if kept.lease_state.in_flight:
        limit = 2 * kept.lease_state.settings.request_timeout
        await in_thread(engine.calls, partial(engine.keeper.settle, kept, limit))


def given_back(lease: HeldLease) -> None:
    """End a lease that was released.

    The coroutine that awaited the release may be being garbage-collected, at a point where this thread holds a lock.
    """
    if is_inside(1):
        lease._engine.keeper.hand_over(lease._end_release, lease._kept)
    else:
        lease._end_release()
