"""What the awaiting side does in its own way: its waker, requests and pauses. Its twin is `blocking`.

A store without an awaiting side performs in threads of the engine's own. The loop's executor would not do: its few
threads are joined at exit, so a store that hangs would hang the interpreter, and they are the user's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
"""Seconds that a store may take longer than its request's limit."""

FIRST_LATE: Final = 0.0
"""The instant until which a first request is never late: when the loop was stopped until then, it is still sent."""

REQUEST_LATE: Final = LATE + STALLED
"""Seconds after a request's limit from which on its loop was stopped: the loop then drops the answers that came."""


class AsyncWaker:
    """An awaiting waiter's waker; belongs to the event loop it was made in, which may end before the waiter does.

    came_late is called in a thread of the engine's when a request of the waiter's has ended there that it awaits no
    more. What the request did, it did until then. abandoned is called with it once, in any thread, when it is rung
    after its loop was closed.
    """

    __slots__ = ("_abandoned", "_awaited", "_is_rung", "_loop", "came_late", "engine", "is_over")

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

    @property
    def is_gone(self) -> bool:
        """Whether the event loop is closed, so that the waiter can never ask again."""
        return self._loop.is_closed()

    @property
    def is_stopped(self) -> bool:
        """Whether the event loop does not run, so that the waiter cannot ask now."""
        return not self._loop.is_running()

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        self._is_rung = True
        try:
            self._loop.call_soon_threadsafe(self._awaited.set)
        except RuntimeError:  # the loop is closed, so nobody waits in it
            self.is_over = True
            abandoned, self._abandoned = self._abandoned, None
            if abandoned is not None:
                abandoned(self)

    async def wait(self, seconds: float) -> bool:
        """Await up to `seconds`; True as soon as it was rung."""
        try:
            async with asyncio.timeout(seconds):
                return await self._awaited.wait()
        except TimeoutError:
            return False

    def take(self) -> bool:
        """Return whether it was rung, and silence it."""
        was, self._is_rung = self._is_rung, False
        self._awaited.clear()
        return was


Waker: TypeAlias = AsyncWaker


def new_waker(engine: Engine, came_late: Callable[[], None], abandoned: Callable[[AsyncWaker], None]) -> AsyncWaker:
    """Make the waker of a waiter."""
    return AsyncWaker(engine, came_late, abandoned)


def quiet_waker(engine: Engine) -> AsyncWaker:
    """Make the waker of who waits in no line."""
    return AsyncWaker(engine)


async def perform(command: Command[Any], store: Store, limit: float, waker: AsyncWaker) -> Any:
    """Send one command, in a thread if the store has no awaiting side."""
    try:
        # a store keeps to the limit itself, and knows whether it has sent anything: it has the first word
        async with asyncio.timeout(limit + LATE):
            if isinstance(store, AsyncStore):
                return await store.aperform(command, limit)
            call = partial(store.perform, command, limit)
            return await in_thread(waker.engine.calls, call, came_late=waker.came_late)
    except TimeoutError as error:
        raise OutcomeUnknown(f"no answer within {limit:.3g} s") from error


async def settle(engine: Engine, kept: KeptLease) -> None:
    """Await the end of a renewal of a lease that is under way."""
    if kept.lease_state.in_flight:
        limit = 2 * kept.lease_state.settings.request_timeout
        await in_thread(engine.calls, partial(engine.keeper.settle, kept, limit))


def given_back(lease: HeldLease) -> None:
    """End a lease that was given back; what awaited that may have been collected, where a lock may be held."""
    if is_inside(1):
        lease._engine.keeper.hand_over(lease._end_release, lease._kept)
    else:
        lease._end_release()
