"""AsyncLease and its AsyncGuard: a held lease in asyncio.

The twin of `lease`: runs the same `operations` and hands what they decide to the engine.
"""

from __future__ import annotations

import asyncio
import functools
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from lockstead import operations
from lockstead.errors import StoreError
from lockstead.events import ReleaseFailed
from lockstead.protocol.commands import Script
from lockstead.runtime import context
from lockstead.runtime.aside import in_thread
from lockstead.runtime.awaiting import AsyncWaker, arun, wait_in_line
from lockstead.runtime.cancel import TaskInterrupter
from lockstead.runtime.engine import Engine
from lockstead.runtime.held import HeldLease
from lockstead.runtime.inside import is_inside
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.values import Duration, LeaseTicket, Sequencer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


async def ask(acquisition: operations.Acquisition) -> AsyncLease | None:
    """Carry an acquisition out, awaiting; None if others hold the lock."""
    engine, bell = acquisition.engine, AsyncWaker(acquisition.came_late)
    try:
        first = acquisition.enter(bell)
        in_time = first or await wait_in_line(engine, acquisition.key, bell, acquisition.gives_up_at)
        script = acquisition.script(was_first=first, in_time=in_time)
        outcome = await arun(script, engine, acquisition.limits, bell)
        return acquisition.ended(outcome, AsyncLease)
    except BaseException as error:
        acquisition.failed(error)
        raise
    finally:
        bell.is_over = True  # before any call, which an interrupt could end at its first line
        acquisition.leave(bell)


async def converse(engine: Engine, settings: Settings, script: Script[T], limits: Limits | None = None) -> T:
    """Carry any other conversation out, awaiting; one that waits brings its limits."""
    return await arun(script, engine, limits or Limits(settings.request_timeout), AsyncWaker())


class AsyncLease(HeldLease):
    """A time-bounded right to a key, awaiting. An async context manager that releases."""

    async def sequencer(self) -> Sequencer:
        """Return key, mode and fencing token, for the resource to check; draws the token when first asked."""
        return await self._converse(operations.sequencer(self))

    async def renew(self) -> float:
        """Renew the lease at once, before what may block the event loop; the seconds left then; as `Lease.renew`."""
        return await self._converse(operations.renew_now(self))

    async def detach(self) -> LeaseTicket:
        """Stop keeping the lease without giving it back, and give the ticket to carry on with."""
        self._leave_to_others()
        await self._settle()
        return await self._converse(operations.detach(self))

    async def share(self) -> LeaseTicket:
        """Return a ticket and go on working: registers as a member first, so that a release waits for it."""
        return await self._converse(operations.share(self))

    async def release(self, drain: Duration | None = None, *, unused: bool = False) -> bool:
        """Release the lease: True if we removed it; as `Lease.release`."""
        engine = self._engine
        now = engine.clock.now()
        bound_at = now + operations.drain_bound(self._kept.terms, drain)
        if is_inside():
            return self._hand_over(operations.give_back(self, bound_at), unused=unused)
        if not self._may_leave(now, unused=unused):
            return False
        try:
            await self._settle()
            return await self._converse(operations.give_back(self, bound_at))
        except BaseException:
            self._release_failed()
            raise
        finally:
            if is_inside():  # suspended above, and collected where a lock may be held
                engine.keeper.hand_over(self._gave_back, self._kept)
            else:
                self._gave_back()

    def guard(self) -> AsyncGuard:
        """Cancel the `async with` block it opens when the lease is lost; the block leaves as LeaseLost."""
        return AsyncGuard(self)

    async def _settle(self) -> None:
        if self._tenure.in_flight:
            limit = 2 * self._tenure.settings.request_timeout
            await in_thread(self._engine.calls, functools.partial(self._engine.keeper.settle, self._kept, limit))

    async def _converse(self, script: Script[T]) -> T:
        return await converse(self._engine, self._tenure.settings, script)

    async def __aenter__(self) -> Self:
        self.check()
        context.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.leave(self)
        await leave(self, error, None)


class AsyncGuard:
    """An `async with` block that is cancelled when its lease is lost, and then raises LeaseLost.

    Somebody else's cancellation at the same instant stays a cancellation.
    """

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = lease
        self._interrupter: TaskInterrupter | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._interrupter is not None:
            raise TypeError("this guard is entered already: call lease.guard() once for each block")
        self._lease.check()
        self._interrupter = TaskInterrupter()
        self._lease._engine.keeper.guard(self._lease._kept, self._interrupter)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupter, lease = self._interrupter, self._lease
        if interrupter is None:
            return
        self._interrupter = None
        if is_inside():  # a coroutine that is being collected: nothing can be awaited, and no lock be entered
            interrupter.is_over = True
            return
        lease._engine.keeper.unguard(lease._kept, interrupter)
        was_cancelled, cancelled_too = await interrupter.disarm(error)
        if was_cancelled and cancelled_too and error is None:
            raise asyncio.CancelledError
        if (was_cancelled and not cancelled_too and (error is None or isinstance(error, asyncio.CancelledError))) or (
            lease.lost_reason is not None and not was_cancelled and error is None
        ):
            lost = lease._found_lost()
            raise lost from lost.__cause__


async def leave(lease: AsyncLease, error: BaseException | None, drain: Duration | None) -> None:
    """Release a lease at the end of its block, and raise LeaseLost if the block returned without holding it."""
    lost = lease._loss_at_exit()
    try:
        await lease.release(drain)
    except StoreError as failed:
        lease._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))
    lease._raise_at_exit(lost, error)
