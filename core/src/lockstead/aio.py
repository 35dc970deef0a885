"""Decides what the awaiting API looks like: AsyncClient, AsyncLock, AsyncLease. The twin of `lock`.

Both run the same `conversations`. The keeper is the same thread: a blocked event loop cannot starve it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from lockstead import conversations, opening
from lockstead.errors import LeaseLost, StoreError
from lockstead.events import Listener, ReleaseFailed
from lockstead.holding import AuditEntry, Breaking, Holding
from lockstead.protocol.commands import Script
from lockstead.runtime import context
from lockstead.runtime.awaiting import LoopBell, arun, aside, in_thread, wait_in_line
from lockstead.runtime.cancel import TaskInterrupter
from lockstead.runtime.engine import Engine
from lockstead.runtime.held import HeldLease
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.stores.port import Store
from lockstead.values import Duration, LeaseTicket, Sequencer, seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncClient:
    """An opened store and the keeper of all its leases, awaiting. Open one with `connect_async`."""

    def __init__(self, store: Store, *, listener: Listener | None = None) -> None:
        self._engine = Engine(store, listener)

    def lock(self, key: str, **settings: Any) -> AsyncLock:
        """Name a lock of this store; asks nothing. Settings as in `Settings.make`."""
        return AsyncLock._of(self._engine, key, settings)

    async def history(self, key: str | None = None) -> list[AuditEntry]:
        """Show the leases that were broken, of one key or of all, the oldest first. Entries are never removed."""
        return await _converse(self._engine, conversations.PLAIN, conversations.history(self._engine, key))

    async def list(self) -> list[Holding]:
        """Show every key that has a record, by name; one that cannot be read is shown with its `problem`."""
        return await _converse(self._engine, conversations.PLAIN, conversations.listed(self._engine))

    async def verify(self, sequencer: Sequencer | str) -> bool:
        """Tell whether a sequencer names the lease that holds its key at this instant. Absent or expired is no."""
        return await _converse(self._engine, conversations.PLAIN, conversations.verified(self._engine, sequencer))

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching; waits for live members."""
        said = LeaseTicket.parse(ticket)
        return await self.lock(said.key, ttl=said.ttl).release(said, drain=drain)

    async def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; as `Lock.renew`."""
        said = LeaseTicket.parse(ticket)
        return await self.lock(said.key, ttl=said.ttl).renew(said, progress=progress)

    async def close(self) -> None:
        """Close the keeper and the store. Idempotent."""
        await aside(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._engine.store.url}>"


async def connect_async(url: str, *, client: object | None = None, listener: Listener | None = None) -> AsyncClient:
    """Open a store by URL without blocking the event loop; as `connect`."""
    return AsyncClient(await aside(functools.partial(opening.open_store, url, client)), listener=listener)


class AsyncLock(opening.NamedLock):
    """A key one can ask for; holds nothing. The awaiting twin of `Lock`."""

    async def _ready(self) -> Engine:
        if self._opened is None:
            # importing a client library takes a while
            return await aside(self._open_now)
        return self._opened

    # --- asking --------------------------------------------------------------------------------------------------

    async def acquire(self, timeout: Duration | None = None, *, reclaim: bool = False) -> AsyncLease:  # noqa: ASYNC109
        """Wait for the lock, as `Lock.acquire`. Cancelled at any await, it leaves nothing behind beyond one ttl."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        engine = await self._ready()
        asking = conversations.Asking(engine, self._key, self._settings, limit, reclaim=reclaim)
        lease = await _ask(asking)
        if lease is None:
            raise asking.not_acquired()
        return lease

    async def try_acquire(self, *, reclaim: bool = False) -> AsyncLease | None:
        """Try once: the lease, or None if somebody else holds it. Waits for nobody; as `Lock.try_acquire`."""
        engine = await self._ready()
        asking = conversations.Asking(engine, self._key, self._settings, 0.0, reclaim=reclaim, is_patient=True)
        return await _ask(asking)

    def hold(
        self,
        timeout: Duration | None = None,
        *,
        interrupt: bool = False,
        drain: Duration | None = None,
        reclaim: bool = False,
    ) -> AsyncHold:
        """Hold the lock for an `async with` block, or, as a decorator, for each call of a coroutine function.

        As `Lock.hold`; interrupt cancels the task when the lease is lost, and the block leaves as LeaseLost.
        """
        acquire = functools.partial(self.acquire, timeout, reclaim=reclaim)
        return AsyncHold(acquire, interrupt=interrupt, drain=drain)

    async def __aenter__(self) -> NoReturn:
        raise TypeError("an AsyncLock is not held by itself: use 'async with lock.hold():'")

    async def __aexit__(self, *_: object) -> None:
        raise TypeError("an AsyncLock is not held by itself: use 'async with lock.hold():'")

    def __enter__(self) -> NoReturn:
        raise TypeError("an AsyncLock is awaited: use 'async with lock.hold():'")

    def __exit__(self, *_: object) -> None:
        raise TypeError("an AsyncLock is awaited: use 'async with lock.hold():'")

    # --- tickets -------------------------------------------------------------------------------------------------

    async def attach(self, ticket: LeaseTicket | str) -> AsyncLease:
        """Carry on with a lease from its ticket, as a member. LeaseLost if it is not there any more."""
        engine = await self._ready()
        joining = conversations.attached(engine, self._key, self._settings, ticket)
        return AsyncLease(engine, await _converse(engine, self._settings, joining), None)

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching. True if we removed it."""
        engine = await self._ready()
        releasing = conversations.released(engine, self._key, self._settings, ticket, drain)
        return await _converse(engine, self._settings, releasing)

    async def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; the seconds for which it may be believed from now on."""
        engine = await self._ready()
        renewing = conversations.renewed(engine, self._key, self._settings, ticket, progress)
        return await _converse(engine, self._settings, renewing)

    # --- looking and breaking ------------------------------------------------------------------------------------

    async def inspect(self) -> Holding | None:
        """Show who holds the lock, since when, why, until when, with which token; None if nobody does."""
        engine = await self._ready()
        return await _converse(engine, self._settings, conversations.inspected(engine, self._key, self._settings))

    async def history(self) -> list[AuditEntry]:
        """Show the leases of this lock that were broken, the oldest first. Entries are never removed."""
        engine = await self._ready()
        return await _converse(engine, self._settings, conversations.history(engine, self._key))

    async def break_lease(
        self, *, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> Breaking | None:
        """Revoke the lease, as an operator; as `Lock.break_lease`."""
        engine = await self._ready()
        script = conversations.broken(
            engine, self._key, self._settings, reason=reason, by=by, now=now, incarnation=incarnation
        )
        return await _converse(engine, self._settings, script)


class AsyncLease(HeldLease):
    """A time-bounded right to a key, awaiting. An async context manager that releases."""

    async def sequencer(self) -> Sequencer:
        """Give key, mode and fencing token, for the resource to check; draws the token when first asked."""
        return await self._converse(conversations.sequencer(self))

    async def detach(self) -> LeaseTicket:
        """Stop keeping the lease without giving it back, and give the ticket to carry on with."""
        self._leave_to_others()
        await self._settle()
        return await self._converse(conversations.detach(self))

    async def share(self) -> LeaseTicket:
        """Give a ticket and go on working: registers as a member first, so that a release waits for it."""
        return await self._converse(conversations.share(self))

    async def release(self, drain: Duration | None = None) -> bool:
        """Give the lease back: True if we removed it; as `Lease.release`."""
        engine = self._engine
        now = engine.clock.now()
        bound_at = now + conversations.drain_bound(self._kept.terms, drain)
        if not self._may_leave(now):
            return False
        try:
            await self._settle()
            return await self._converse(conversations.give_back(self, bound_at))
        except BaseException:
            self._release_failed()
            raise
        finally:
            self._gave_back()

    def guard(self) -> AsyncGuard:
        """Cancel the `async with` block it opens when the lease is lost; the block leaves as LeaseLost."""
        return AsyncGuard(self)

    async def _settle(self) -> None:
        if self._tenure.in_flight:
            limit = 2 * self._tenure.settings.request_timeout
            await in_thread(self._engine.calls, functools.partial(self._engine.keeper.settle, self._kept, limit))

    async def _converse(self, script: Script[T]) -> T:
        return await _converse(self._engine, self._tenure.settings, script)

    async def __aenter__(self) -> Self:
        self.check()
        context.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.leave(self)
        await _leave(self, error, None)


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
        self._lease._engine.keeper.on_lost(self._lease._kept, self._interrupter.fire, at_once=True)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupter, lease = self._interrupter, self._lease
        if interrupter is None:
            return
        self._interrupter = None
        lease._engine.keeper.not_on_lost(lease._kept, interrupter.fire)
        was_fired, cancelled_too = await interrupter.disarm(error)
        if was_fired and cancelled_too and error is None:
            raise asyncio.CancelledError
        if was_fired and not cancelled_too and (error is None or isinstance(error, asyncio.CancelledError)):
            lost = lease._found_lost()
            raise lost from lost.__cause__


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
        self._lease = lease
        context.enter(lease)
        if self._interrupt:
            guard = lease.guard()
            try:
                await guard.__aenter__()
            except LeaseLost as lost:
                await self.__aexit__(LeaseLost, lost, None)
                raise
            self._guard = guard
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        context.leave(lease)
        try:
            if guard is not None:
                await guard.__aexit__(kind, error, trace)
        except BaseException as raised:
            await _leave(lease, raised, self._drain)
            raise
        await _leave(lease, error, self._drain)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is not a coroutine function: decorate it with Lock(...).hold()")

        @functools.wraps(function)
        async def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            async with AsyncHold(self._acquire, interrupt=self._interrupt, drain=self._drain):
                return await function(*args, **kwargs)

        return holding_it


async def _ask(asking: conversations.Asking) -> AsyncLease | None:
    engine, bell = asking.engine, LoopBell()
    try:
        first = asking.enter(bell)
        in_time = first or await wait_in_line(engine, asking.key, bell, asking.gives_up_at)
        script = asking.script(was_first=first, in_time=in_time)
        outcome = await arun(script, engine, asking.limits, bell)
        return asking.ended(outcome, AsyncLease)
    except BaseException as error:
        asking.failed(error)
        raise
    finally:
        asking.leave(bell)


async def _leave(lease: AsyncLease, error: BaseException | None, drain: Duration | None) -> None:
    lost = lease._loss_at_exit()
    try:
        await lease.release(drain)
    except StoreError as failed:
        lease._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))
    lease._raise_at_exit(lost, error)


async def _converse(engine: Engine, settings: Settings, script: Script[T]) -> T:
    return await arun(script, engine, Limits(settings.request_timeout), LoopBell())
