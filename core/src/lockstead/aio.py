"""What the awaiting API looks like to who names a lock: AsyncClient and AsyncLock. The twin of `lock`.

Both run the same `operations`. The keeper is the same thread: a blocked event loop cannot starve it. What holding
is stands in `aio_lease`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Never, NoReturn, Self, TypeVar, Unpack

from lockstead import registry
from lockstead.aio_hold import AsyncHold
from lockstead.runtime import fork
from lockstead.runtime.aside import aside
from lockstead.settings import Given, Settings
from lockstead.values import Duration, LeaseTicket, Sequencer, seconds

if TYPE_CHECKING:
    from lockstead.aio_batch import AsyncBatch
    from lockstead.aio_lease import AsyncLease
    from lockstead.events import Listener
    from lockstead.protocol.commands import Script
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.run import Limits
    from lockstead.stores.port import Store
    from lockstead.views import AuditEntry, BreakResult, Contender, LockInfo

T = TypeVar("T")


def _loaded(opens: Callable[[], T]) -> T:
    """Import what asks a store, and open one. Called in a thread, as it would hold up the event loop for 100 ms."""

    def loads() -> T:
        import_module("lockstead.aio_batch")
        return opens()

    return fork.loading(loads)


async def converse(engine: Engine, settings: Settings, script: Script[T], limits: Limits | None = None) -> T:
    """Carry a conversation out, awaiting."""
    from lockstead import aio_lease

    return await aio_lease.converse(engine, settings, script, limits)


class AsyncClient:
    """An opened store and the keeper of all its leases, awaiting. Open one with `connect_async`."""

    def __init__(self, store: Store, *, listener: Listener | None = None) -> None:
        from lockstead.runtime.engine import Engine

        self._engine = Engine(store, listener)

    def lock(self, key: str, **settings: Unpack[Given]) -> AsyncLock:
        """Name a lock of this store; asks nothing. Settings as in `Settings.make`."""
        return AsyncLock._of(self._engine, key, settings)

    async def try_many(self, keys: Iterable[str], **settings: Unpack[Given]) -> AsyncBatch:
        """Take as many locks as are free now, without waiting; as `Client.try_many`."""
        from lockstead import aio_batch

        return await aio_batch.try_many(self._engine, Settings.make(**settings), keys)

    async def acquire_all(
        self,
        keys: Iterable[str],
        timeout: Duration | None = None,  # noqa: ASYNC109
        **settings: Unpack[Given],
    ) -> AsyncBatch:
        """Take all locks or none, in one order for everybody; as `Client.acquire_all`."""
        from lockstead import aio_batch

        return await aio_batch.acquire_all(self._engine, Settings.make(**settings), keys, timeout)

    async def history(self, key: str | None = None) -> list[AuditEntry]:
        """Return the leases that were broken, of one key or of all, the oldest first; kept as the store's page says."""
        from lockstead import operations

        return await converse(self._engine, operations.PLAIN, operations.history(self._engine, key))

    async def list(self) -> list[LockInfo]:
        """Return every key that is held, by name; a record that cannot be read is shown with its `decode_error`."""
        from lockstead import operations

        return await converse(self._engine, operations.PLAIN, operations.listed(self._engine))

    async def verify(self, sequencer: Sequencer | str) -> bool:
        """Return whether a sequencer names the lease that holds its key at this instant. Absent or expired is no."""
        from lockstead import operations

        return await converse(self._engine, operations.PLAIN, operations.verified(self._engine, sequencer))

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Release a lease as its owner, from its ticket, without attaching; waits for live members."""
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
    return AsyncClient(
        await aside(functools.partial(_loaded, functools.partial(registry.open_store, url, client))), listener=listener
    )


class AsyncLock(registry.NamedLock):
    """A key one can ask for; holds nothing. The awaiting twin of `Lock`."""

    # here, so that what Python says of a wrong call names this class
    def __init__(self, url: str, *, client: object | None = None, **settings: Unpack[Given]) -> None:
        super().__init__(url, client=client, **settings)

    async def _ready(self) -> Engine:
        if self._opened is None:
            # importing the engine and a client library takes a while
            return await aside(functools.partial(_loaded, self._open_now))
        return self._opened

    # --- acquisition --------------------------------------------------------------------------------------------------

    async def acquire(
        self,
        timeout: Duration | None = None,  # noqa: ASYNC109
        *,
        reclaim: bool = False,
        **unknown: Never,
    ) -> AsyncLease:
        """Wait for the lock, as `Lock.acquire`. Cancelled at any await, it leaves nothing behind beyond one ttl."""
        registry.refuse_unknown(unknown)
        limit, began = None if timeout is None else seconds(timeout, "timeout"), monotonic()
        engine = await self._ready()
        from lockstead import operations
        from lockstead.aio_lease import ask

        spent = monotonic() - began
        acquisition = operations.Acquisition(engine, self._key, self._settings, limit, reclaim=reclaim, spent=spent)
        lease = await ask(acquisition)
        if lease is None:
            raise acquisition.not_acquired()
        return lease

    async def try_acquire(self, *, reclaim: bool = False) -> AsyncLease | None:
        """Try once: the lease, or None if somebody else holds it. Waits for nobody; as `Lock.try_acquire`."""
        engine = await self._ready()
        from lockstead import operations
        from lockstead.aio_lease import ask

        acquisition = operations.Acquisition(engine, self._key, self._settings, 0.0, reclaim=reclaim, is_patient=True)
        return await ask(acquisition)

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
        limit = None if timeout is None else seconds(timeout, "timeout")
        bound = None if drain is None else seconds(drain, "drain")
        return AsyncHold(functools.partial(self.acquire, limit, reclaim=reclaim), interrupt=interrupt, drain=bound)

    async def __aenter__(self) -> NoReturn:
        raise TypeError("an AsyncLock is not a context manager: use 'async with lock.hold():'")

    async def __aexit__(self, *_: object) -> None:
        raise TypeError("an AsyncLock is not a context manager: use 'async with lock.hold():'")

    def __enter__(self) -> NoReturn:
        raise TypeError("an AsyncLock is awaited: use 'async with lock.hold():'")

    def __exit__(self, *_: object) -> None:
        raise TypeError("an AsyncLock is awaited: use 'async with lock.hold():'")

    # --- tickets -------------------------------------------------------------------------------------------------

    async def attach(self, ticket: LeaseTicket | str) -> AsyncLease:
        """Carry on with a lease from its ticket, as a member. LeaseLost if it is not there any more."""
        engine = await self._ready()
        from lockstead import operations
        from lockstead.aio_lease import AsyncLease

        joining = operations.attached(engine, self._key, self._settings, ticket)
        return AsyncLease(engine, await converse(engine, self._settings, joining), None)

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Release a lease as its owner, from its ticket, without attaching. True if we removed it."""
        engine = await self._ready()
        from lockstead import operations

        releasing = operations.released(engine, self._key, self._settings, ticket, drain)
        return await converse(engine, self._settings, releasing)

    async def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; the seconds for which it may be believed from now on."""
        engine = await self._ready()
        from lockstead import operations

        renewing = operations.renewed(engine, self._key, self._settings, ticket, progress)
        return await converse(engine, self._settings, renewing)

    async def members(self, ticket: LeaseTicket | str) -> list[LockInfo]:
        """Return who is registered to work under a lease, from its ticket; as `Lock.members`."""
        engine = await self._ready()
        from lockstead import operations

        return await converse(engine, self._settings, operations.members(engine, self._key, self._settings, ticket))

    async def wait_for_members(
        self,
        ticket: LeaseTicket | str,
        *,
        owner_filter: Callable[[str], bool] | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> bool:
        """Wait until nobody works under a lease any more; as `Lock.wait_for_members`."""
        engine, settings = await self._ready(), self._settings
        from lockstead import operations

        script, limits = operations.drained(engine, self._key, settings, ticket, owner_filter, timeout)
        return await converse(engine, settings, script, limits)

    async def remove_member(self, ticket: LeaseTicket | str, member: LockInfo) -> bool:
        """Take back the registration of a member for whose death the caller vouches; as `Lock.remove_member`."""
        engine = await self._ready()
        from lockstead import operations

        script = operations.withdrawn(engine, self._key, self._settings, ticket, member)
        return await converse(engine, self._settings, script)

    # --- looking and breaking ------------------------------------------------------------------------------------

    async def wait_until_free(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109
        """Wait until nobody holds the lock, and never take it; as `Lock.wait_until_free`."""
        engine, settings = await self._ready(), self._settings
        from lockstead import operations

        script, limits = operations.freed(engine, self._key, settings, timeout)
        return (await converse(engine, settings, script, limits)).is_free

    async def inspect(self) -> LockInfo | None:
        """Return who holds the lock, since when, why, until when, with which token; None if nobody does."""
        engine = await self._ready()
        from lockstead import operations

        return await converse(engine, self._settings, operations.inspected(engine, self._key, self._settings))

    async def contenders(self) -> list[Contender]:
        """Return who waits for the lock, in the order of the queue; as `Lock.contenders`."""
        engine = await self._ready()
        from lockstead import operations

        return await aside(functools.partial(operations.contenders, engine, self._key, self._settings))

    async def history(self) -> list[AuditEntry]:
        """Return the leases of this lock that were broken, the oldest first; kept as the store's page says."""
        engine = await self._ready()
        from lockstead import operations

        return await converse(engine, self._settings, operations.history(engine, self._key))

    async def break_lease(
        self, *, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> BreakResult | None:
        """Revoke the lease, as an operator; as `Lock.break_lease`."""
        engine = await self._ready()
        from lockstead import operations

        script = operations.broken(
            engine, self._key, self._settings, reason=reason, by=by, now=now, incarnation=incarnation
        )
        return await converse(engine, self._settings, script)
