"""Decides what the awaiting API looks like: AsyncClient, AsyncLock, AsyncLease. The twin of `lock`, same scripts.

The keeper is the same thread: a blocked event loop cannot starve it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from lockstead import opening
from lockstead.errors import LeaseLost, NotAcquired, StoreError, StoreRefused
from lockstead.events import Attached, Detached, Listener, Released, ReleaseFailed, log
from lockstead.holding import Breaking, Holding, breaking, holding
from lockstead.protocol import release as leaving
from lockstead.protocol.acquire import Contended, Grant, acquire
from lockstead.protocol.commands import List, Script, TokenSource, ask
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.members import attach, withdraw
from lockstead.protocol.renew import Over, renew
from lockstead.protocol.terms import LeaseId
from lockstead.runtime import context
from lockstead.runtime.engine import Engine, fresh_nonce
from lockstead.runtime.held import HeldLease, lost_on_attach
from lockstead.runtime.interrupt import TaskInterrupter
from lockstead.runtime.line import LoopBell
from lockstead.runtime.run import Limits, arun
from lockstead.settings import Settings
from lockstead.stores.port import Store
from lockstead.values import Duration, LeaseTicket, Name, Sequencer, Space, checked_key, seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncClient:
    """An opened store and the keeper of all its leases, awaiting. Open one with `connect_async`."""

    def __init__(self, store: Store, *, listener: Listener = log) -> None:
        self._engine = Engine(store, listener)

    def lock(self, key: str, **settings: Any) -> AsyncLock:
        """Name a lock of this store; asks nothing."""
        return AsyncLock._of(self._engine, checked_key(key), Settings.make(**settings))

    async def list(self) -> list[Holding]:
        """Show every key that is held, by name."""
        settings = Settings()
        terms = self._engine.terms(settings)
        listed = (await _converse(self._engine, settings, ask(List(Space.LOCK)))).answer
        held = [holding(name.key, leaving.sight(name, seen, terms), terms) for name, seen in listed.entries]
        return sorted(held, key=lambda one: one.key)

    async def verify(self, sequencer: Sequencer | str) -> bool:
        """Tell whether a sequencer names the lease that holds its key at this instant. Absent or expired is no."""
        said = Sequencer.parse(sequencer) if isinstance(sequencer, str) else sequencer
        settings = Settings()
        return await _converse(self._engine, settings, verify(said, self._engine.terms(settings)))

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching; waits for live members."""
        said = LeaseTicket.parse(ticket)
        return await self.lock(said.key, ttl=said.ttl).release(said, drain=drain)

    async def close(self) -> None:
        """Close the keeper and the store. Idempotent."""
        await _in_thread(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._engine.store.url}>"


async def connect_async(url: str, *, client: object | None = None, listener: Listener = log) -> AsyncClient:
    """Open a store by URL without blocking the event loop; as `connect`."""
    return AsyncClient(await _in_thread(functools.partial(opening.open_store, url, client)), listener=listener)


class AsyncLock:
    """A key one can ask for; holds nothing. The awaiting twin of `Lock`."""

    def __init__(self, url: str, *, client: object | None = None, **settings: Any) -> None:
        target = opening.target(url)
        self._key = target.key
        self._settings = Settings.make(**{**target.settings, **settings})
        self._open = functools.partial(opening.shared_engine, target, client)
        self._opened: Engine | None = None

    @classmethod
    def _of(cls, engine: Engine, key: str, settings: Settings) -> Self:
        made = cls.__new__(cls)
        made._key = key
        made._settings = settings
        made._opened = engine
        return made

    @property
    def key(self) -> str:
        """The lock's name inside its store."""
        return self._key

    @property
    def settings(self) -> Settings:
        """The settings, complete and checked."""
        return self._settings

    async def _ready(self) -> Engine:
        if self._opened is None:
            # importing a client library takes a while
            self._opened = await _in_thread(self._open)
            self._opened.warn_once(self._key, self._settings)
        return self._opened

    # --- asking --------------------------------------------------------------------------------------------------

    async def acquire(self, timeout: Duration | None = None, *, reclaim: bool = False) -> AsyncLease:  # noqa: ASYNC109
        """Wait for the lock, as `Lock.acquire`. Cancelled at any await, it leaves nothing behind beyond one ttl."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        engine = await self._ready()
        started_at = engine.clock.now()
        if limit != 0:
            engine.refuse_self_wait(Name(self._key))
        outcome = await self._ask(engine, limit, started_at, reclaim=reclaim)
        if isinstance(outcome, Contended):
            raise engine.not_acquired(Name(self._key), outcome, engine.clock.now() - started_at)
        return outcome

    async def try_acquire(self, *, reclaim: bool = False) -> AsyncLease | None:
        """Try once: the lease, or None if somebody else holds it."""
        engine = await self._ready()
        outcome = await self._ask(engine, 0.0, engine.clock.now(), reclaim=reclaim)
        return None if isinstance(outcome, Contended) else outcome

    async def _ask(
        self, engine: Engine, limit: float | None, started_at: float, *, reclaim: bool
    ) -> AsyncLease | Contended:
        settings = self._settings
        want = engine.want(Name(self._key), settings, reclaim=reclaim)
        waits = limit != 0
        if waits:
            want.on_wait = functools.partial(engine.waiting, want)
        gives_up_at = None if limit is None else started_at + limit
        bell = LoopBell()
        try:
            first = not waits or engine.lines.enter(self._key, bell)
            in_time = first or await _wait_in_line(engine, self._key, bell, gives_up_at)
            script = acquire(
                want,
                engine.terms(settings),
                gives_up_at=gives_up_at,
                tries_once=not waits or not in_time,
                look_first=not first,
            )
            limits = Limits(settings.request_timeout, gives_up_at)
            outcome = await arun(script, engine.store, engine.clock, limits, bell, _in_thread)
            if isinstance(outcome, Grant):
                kept = engine.granted(outcome, want, settings, max(0.0, outcome.sent_at - started_at))
                return AsyncLease(engine, kept, engine.took(self._key))
        except BaseException:
            engine.given_up(want, settings)
            raise
        finally:
            engine.lines.leave(self._key, bell)
        engine.given_up(want, settings)
        return outcome

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
        return AsyncHold(self, timeout, interrupt=interrupt, drain=drain, reclaim=reclaim)

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
        said = opening.checked_ticket(ticket, self._key, engine.store.url)
        settings, nonce = self._settings.for_ttl(said.ttl), fresh_nonce()
        lease = LeaseId(Name(said.key), said.holder, said.incarnation, said.ttl)
        fields = engine.registration_fields(nonce, said.ttl, settings)
        joined = await _converse(engine, settings, attach(lease, nonce, fields, engine.terms(settings)))
        if isinstance(joined, Over):
            raise lost_on_attach(said, joined)
        kept = engine.attached(joined, settings)
        engine.emit(Attached(self._key, said.holder))
        return AsyncLease(engine, kept, None)

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Give a lease back as its owner, from its ticket, without attaching. True if we removed it."""
        engine = await self._ready()
        said = opening.checked_ticket(ticket, self._key, engine.store.url)
        settings = self._settings.for_ttl(said.ttl)
        lease = LeaseId(Name(said.key), said.holder, said.incarnation, said.ttl)
        bound = settings.drain_bound(engine.traits.granularity) if drain is None else seconds(drain, "drain")
        script = leaving.release(
            lease, engine.terms(settings), shared=True, bound_at=engine.clock.now() + bound, salt=said.holder
        )
        outcome = await _converse(engine, settings, script)
        removed = outcome is leaving.Outcome.REMOVED
        engine.emit(Released(self._key, said.holder, removed, outcome.value))
        engine.lines.ring(self._key)
        return removed

    # --- looking and breaking ------------------------------------------------------------------------------------

    async def inspect(self) -> Holding | None:
        """Show who holds the lock, since when, why, until when, with which token; None if nobody does."""
        engine = await self._ready()
        terms = engine.terms(self._settings)
        sight = await _converse(engine, self._settings, leaving.look(Name(self._key), terms))
        return None if sight is None else holding(self._key, sight, terms)

    async def break_lease(
        self, *, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> Breaking | None:
        """Revoke the lease, as an operator; as `Lock.break_lease`."""
        engine = await self._ready()
        terms = engine.terms(self._settings)
        revoked = opening.revocation(reason, by, self._settings)
        script = leaving.break_lease(
            Name(self._key), revoked, terms, now=now, incarnation=incarnation, salt=fresh_nonce()
        )
        broken = await _converse(engine, self._settings, script)
        if broken is None:
            return None
        report = breaking(self._key, broken, terms, engine.clock.wall())
        part, entry = leaving.audit_entry(broken, revoked, engine.clock.wall(), fresh_nonce())
        await _converse(engine, self._settings, leaving.audit(Name(self._key), part, entry))
        engine.lines.ring(self._key)
        return report

    def __repr__(self) -> str:
        return f"<AsyncLock {self._key!r}>"


class AsyncLease(HeldLease):
    """A time-bounded right to a key, awaiting. An async context manager that releases."""

    async def sequencer(self) -> Sequencer:
        """Give key, mode and fencing token, for the resource to check; draws the token when first asked."""
        self.check()
        engine, tenure = self._engine, self._tenure
        if tenure.token is None:
            if engine.traits.tokens is TokenSource.NONE:
                raise StoreRefused(f"{engine.traits.scheme} has no fencing tokens; use a store that has")
            script = draw_token(tenure.lease, self._kept.terms, salt=fresh_nonce())
            token = await _converse(engine, tenure.settings, script)
            if token is None:
                await self._find_loss()
            tenure.token = token
        if tenure.token is None:
            self._raise_lost()
        return Sequencer(self.key, tenure.token)

    async def _find_loss(self) -> NoReturn:
        engine, tenure = self._engine, self._tenure
        verdict = await _converse(engine, tenure.settings, renew(tenure.lease, {}, self._kept.terms))
        if isinstance(verdict, Over):
            engine.keeper.lose(self._kept, verdict.reason, verdict.detail)
            self._raise_lost()
        raise NotAcquired(f"no token could be drawn for {self.key!r}: its record changes too fast", key=self.key)

    async def detach(self) -> LeaseTicket:
        """Stop keeping the lease without giving it back, and give the ticket to carry on with."""
        self.check()
        ticket = self._ticket()
        engine, tenure = self._engine, self._tenure
        engine.keeper.leave(self._kept, engine.clock.now())
        await _settled(engine, self)
        if tenure.registration is not None:
            try:
                await _converse(engine, tenure.settings, withdraw(tenure.registration))
            except StoreError as error:
                engine.emit(ReleaseFailed(self.key, self.holder, error))
        engine.keeper.left(self._kept)
        self._ended()
        engine.emit(Detached(self.key, self.holder))
        return ticket

    async def share(self) -> LeaseTicket:
        """Give a ticket and go on working: registers as a member first, so that a release waits for it."""
        self.check()
        engine, tenure = self._engine, self._tenure
        if tenure.registration is None:
            nonce = fresh_nonce()
            fields = engine.registration_fields(nonce, tenure.lease.ttl, tenure.settings)
            tenure.shared = True
            joined = await _converse(engine, tenure.settings, attach(tenure.lease, nonce, fields, self._kept.terms))
            if isinstance(joined, Over):
                engine.keeper.lose(self._kept, joined.reason, joined.detail)
                self._raise_lost()
            engine.keeper.register(self._kept, joined)
        return self._ticket()

    async def release(self, drain: Duration | None = None) -> bool:
        """Give the lease back: True if we removed it; as `Lease.release`."""
        engine, tenure = self._engine, self._tenure
        now = engine.clock.now()
        if not self._may_leave(now):
            return False
        try:
            await _settled(engine, self)
            bound = tenure.settings.drain_bound(engine.traits.granularity) if drain is None else seconds(drain, "drain")
            script = leaving.give_back(tenure, self._kept.terms, bound_at=now + bound)
            outcome = await _converse(engine, tenure.settings, script)
        except (StoreError, asyncio.CancelledError):
            self._release_failed()
            raise
        finally:
            self._gave_back()
        removed = outcome is leaving.Outcome.REMOVED
        engine.emit(Released(self.key, self.holder, removed, outcome.value))
        return removed

    def guard(self) -> AsyncGuard:
        """Cancel the `async with` block it opens when the lease is lost; the block leaves as LeaseLost."""
        return AsyncGuard(self)

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
        self._lease.check()
        self._interrupter = TaskInterrupter()
        self._lease._engine.keeper.on_lost(self._lease._kept, self._interrupter.fire, at_once=True)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._interrupter is None:
            return
        self._lease._engine.keeper.not_on_lost(self._lease._kept, self._interrupter.fire)
        was_fired, cancelled_too = await self._interrupter.disarm(error)
        if not was_fired:
            return
        if cancelled_too:
            if error is None:
                raise asyncio.CancelledError
            return
        if error is None or isinstance(error, asyncio.CancelledError):
            raise self._lease.lost_error() from None


class AsyncHold:
    """What `lock.hold()` gives: an async context manager with a lease of its own, and a decorator."""

    def __init__(
        self, lock: AsyncLock, timeout: Duration | None, *, interrupt: bool, drain: Duration | None, reclaim: bool
    ) -> None:
        self._lock = lock
        self._timeout = timeout
        self._interrupt = interrupt
        self._drain = drain
        self._reclaim = reclaim
        self._lease: AsyncLease | None = None
        self._guard: AsyncGuard | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        lease = await self._lock.acquire(self._timeout, reclaim=self._reclaim)
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
        lost: LeaseLost | None = None
        if guard is not None:
            try:
                await guard.__aexit__(kind, error, trace)
            except LeaseLost as found:
                lost = found
        await _leave(lease, lost or error, self._drain)
        if lost is not None:
            raise lost from None

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Generator[Any, Any, R] | Awaitable[R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is not a coroutine function: decorate it with Lock(...).hold()")

        @functools.wraps(function)
        async def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            again = AsyncHold(
                self._lock, self._timeout, interrupt=self._interrupt, drain=self._drain, reclaim=self._reclaim
            )
            async with again:
                return await function(*args, **kwargs)

        return holding_it


async def _leave(lease: AsyncLease, error: BaseException | None, drain: Duration | None) -> None:
    lost = lease._loss_at_exit()
    try:
        await lease.release(drain)
    except StoreError as failed:
        lease._engine.emit(ReleaseFailed(lease.key, lease.holder, failed))
    lease._raise_at_exit(lost, error)


async def _settled(engine: Engine, lease: AsyncLease) -> None:
    if lease._tenure.in_flight:
        await _in_thread(
            functools.partial(engine.keeper.settle, lease._kept, 2 * lease._tenure.settings.request_timeout)
        )


async def _wait_in_line(engine: Engine, key: str, bell: LoopBell, gives_up_at: float | None) -> bool:
    while not engine.lines.is_first(key, bell):
        left = 60.0 if gives_up_at is None else gives_up_at - engine.clock.now()
        if left <= 0:
            return False
        await bell.awaited(min(left, 60.0))
        bell.take()
    return True


async def _in_thread(job: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, job)


async def _converse(engine: Engine, settings: Settings, script: Script[T]) -> T:
    return await arun(script, engine.store, engine.clock, Limits(settings.request_timeout), LoopBell(), _in_thread)
