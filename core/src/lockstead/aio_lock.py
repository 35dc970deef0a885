"""AsyncClient and AsyncLock. Leases are in `aio_lease`.

A DAG file names many locks and acquires none, so everything else is imported on first use.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Never, Self, TypeVar, Unpack

from lockstead import registry
from lockstead.aio_loading import call, load
from lockstead.aio_tickets import AsyncTickets
from lockstead.misuse import AsyncLockMisuse
from lockstead.settings import Given, Settings
from lockstead.values import Duration, LeaseTicket, Sequencer, seconds

if TYPE_CHECKING:
    from lockstead.acquisition import Acquisition
    from lockstead.aio_batch import AsyncBatch
    from lockstead.aio_hold import AsyncHold
    from lockstead.aio_lease import AsyncLease
    from lockstead.aio_semaphore import AsyncSemaphore
    from lockstead.events import Listener
    from lockstead.protocol.commands import Script
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.run import Limits
    from lockstead.stores.port import Store
    from lockstead.views import AuditEntry, BreakResult, Contender, LockInfo, PruneResult

T = TypeVar("T")


@cache
def _acquisition() -> tuple[type[Acquisition], Callable[[Acquisition], Awaitable[AsyncLease | None]]]:
    """Import what acquires a lock at the first acquisition; cached, because even a repeated import takes time."""
    from lockstead.acquisition import Acquisition
    from lockstead.aio_lease import ask

    return Acquisition, ask


async def _converse(engine: Engine, settings: Settings, script: Script[T], limits: Limits | None = None) -> T:
    from lockstead.aio_lease import converse

    return await converse(engine, settings, script, limits)


class AsyncClient:
    """An opened store and the keeper of all its leases. Open one with `connect_async`, or pass your own store.

    After `close` leases are no longer renewed; those still held count as lost and expire.
    """

    def __init__(self, store: Store, *, listener: Listener | None = None) -> None:
        from lockstead.runtime.engine import Engine

        self._engine = Engine(store, listener)

    def lock(self, key: str, **settings: Unpack[Given]) -> AsyncLock:
        """Return a lock of this store, without a request. Settings as in `Settings.make`."""
        return AsyncLock._of(self._engine, key, settings)

    def semaphore(
        self, key: str, permits: int | None = None, *, on_mismatch: str = "refuse", **settings: Unpack[Given]
    ) -> AsyncSemaphore:
        """Return a semaphore of this store, without a request. Arguments as of `AsyncSemaphore`."""
        from lockstead.aio_semaphore import AsyncSemaphore

        return AsyncSemaphore._of_client(self._engine, key, permits, on_mismatch, settings)

    async def try_many(self, keys: Iterable[str], **settings: Unpack[Given]) -> AsyncBatch:
        """Acquire the locks that are free now, without waiting; return a batch of their leases and the pending keys.

        Acquire the rest with `batch.try_acquire_rest()`, or iterate over all with `batch.iter_as_acquired()`. Settings
        as in `Settings.make`, the same for all. Raises StoreRefused for a key that was refused, and StoreUnavailable or
        OutcomeUnknown if the store answered for none; no lease is held then.
        """
        from lockstead import aio_batch

        return await aio_batch.try_many(self._engine, Settings.make(**settings), keys)

    async def acquire_all(
        self,
        keys: Iterable[str] | Mapping[str, str],
        timeout: Duration | None = None,
        **settings: Unpack[Given],
    ) -> AsyncBatch:
        """Acquire all locks or none: one after the other, in the order of their names' UTF-8 bytes.

        keys: names, or a mapping from each name to its mode, as in {"index": "shared", "apt": "exclusive"}.
        The order prevents deadlocks between callers of this method. It waits while it holds locks, so do not call it
        while you hold others. NotAcquired after `timeout` seconds in all, forever by default; no lease is held then.
        """
        from lockstead import aio_batch

        return await aio_batch.acquire_all(self._engine, Settings.make(**settings), keys, timeout)

    async def history(self, key: str | None = None) -> list[AuditEntry]:
        """Return the broken leases of one key or of all, the oldest first; retention depends on the store."""
        from lockstead import operations

        return await _converse(self._engine, operations.PLAIN, operations.history(self._engine, key))

    async def list(self) -> list[LockInfo]:
        """Return every key that is held, by name; a record that cannot be read is shown with its `decode_error`.

        For a store with very many locks see `scan`.
        """
        from lockstead import operations

        return await _converse(self._engine, operations.PLAIN, operations.listed(self._engine))

    async def scan(self, page: int = 1000) -> AsyncGenerator[LockInfo]:
        """Iterate over every key that is held, in any order; each request reads about `page` records, 1 to 10,000.

        Needs memory for one page. Shows what `list` shows: a lock that is held throughout at least once, perhaps more
        than once. Raises the store's error, after what it had shown.
        """
        from lockstead import operations
        from lockstead.protocol.commands import Cursors

        cursor, size = None, operations.checked_page(page)
        cursors = Cursors(self._engine.traits.scheme)
        while True:
            script = operations.scanned(self._engine, size, cursor)
            shown, upcoming = await _converse(self._engine, operations.PLAIN, script)
            for info in shown.values():
                yield info
            if (cursor := cursors.passed(upcoming)) is None:
                return

    async def prune(
        self,
        older_than: Duration = "7d",
        *,
        dry_run: bool = False,
        forget_unclean: bool = False,
        history_older_than: Duration = "366d",
        per_second: float = 50.0,
        at_most: int = 10_000,
    ) -> PruneResult:
        """Remove what nobody else removes: registrations, groups, permits and locks of the dead, old history.

        Each record only if it is over, as a contender judges it, unchanged for `older_than`, and still in that state.
        On a store that shows no age, call it again with the same client, which then has watched the records. dry_run:
        remove nothing. A record that tells the next holder of an unclean end is kept; forget_unclean: remove it, too,
        after an entry in the history. per_second, at_most: removals. StoreUnavailable or OutcomeUnknown if the store
        does not answer; what was removed before stays removed.
        """
        from lockstead import operations, prune_operations

        script = prune_operations.pruned(
            self._engine,
            older_than=older_than,
            history_older_than=history_older_than,
            dry_run=dry_run,
            forget_unclean=forget_unclean,
            per_second=per_second,
            at_most=at_most,
        )
        limits = prune_operations.limits(self._engine)
        result = await _converse(self._engine, operations.PLAIN, script, limits)
        return await call(partial(prune_operations.with_queues, self._engine, result, at_most))

    async def verify(self, sequencer: Sequencer | str) -> bool:
        """Return whether a sequencer is that of the lease that holds its key now; False if there is none."""
        from lockstead import operations

        return await _converse(self._engine, operations.PLAIN, operations.verified(self._engine, sequencer))

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
        await call(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._engine.store.url}>"


async def connect_async(url: str, *, client: object | None = None, listener: Listener | None = None) -> AsyncClient:
    """Open a store by URL; `client` is the caller's own client object, such as a `storage.Client`.

    ValueError for an invalid URL, StoreRefused if the client library or the store is missing.
    """
    return AsyncClient(await load(partial(registry.open_store, url, client)), listener=listener)


class AsyncLock(AsyncTickets, AsyncLockMisuse):
    """A lock by name. Making one sends no request and imports no client library.

    Not reentrant: each acquisition is a holder of its own. Safe to share between threads.
    """

    # defined here, so that Python's TypeError for a wrong call names this class
    def __init__(self, url: str, *, client: object | None = None, **settings: Unpack[Given]) -> None:
        super().__init__(url, client=client, **settings)

    # --- acquisition --------------------------------------------------------------------------------------------------

    async def acquire(
        self,
        timeout: Duration | None = None,
        *,
        reclaim: bool = False,
        mode: str | None = None,
        **unknown: Never,
    ) -> AsyncLease:
        """Wait for the lock, forever by default; 0 is one try. NotAcquired after `timeout` seconds.

        Ends within timeout + 1 s even if the store hangs. The time that the first call takes to import the client
        library counts; if that alone takes longer, one try of 0.3 s follows. reclaim: take the lock from an earlier
        process of the same explicit owner; the caller must be sure that it is dead. mode: "exclusive" or "shared", by
        default the lock's own. Readers ("shared") hold the lock together. A waiting writer goes before readers that
        come later. A shared lease cannot become exclusive: release it, and look again. Raises StoreUnavailable or
        OutcomeUnknown if the store still does not answer at the end. If it is cancelled or interrupted, the lock is
        free again after one ttl at most.
        """
        registry.refuse_unknown(unknown)
        limit = None if timeout is None else seconds(timeout, "timeout")
        return await self._acquire(limit, reclaim=reclaim, mode=mode)

    async def _acquire(
        self, limit: float | None, *, reclaim: bool = False, mode: str | None = None, began: float | None = None
    ) -> AsyncLease:
        acquisition, lease = await self._ask(limit, reclaim=reclaim, mode=mode, began=began)
        if lease is None:
            raise acquisition.not_acquired()
        return lease

    async def try_acquire(self, *, reclaim: bool = False, mode: str | None = None) -> AsyncLease | None:
        """Try once, without waiting; None if the lock is held. mode: as for `acquire`.

        The store has `request_timeout` for each request; `acquire(timeout=0)` is a try that ends within a second.
        """
        _unused, lease = await self._ask(0.0, reclaim=reclaim, mode=mode, is_patient=True)
        return lease

    async def _ask(
        self,
        limit: float | None,
        *,
        reclaim: bool,
        mode: str | None = None,
        is_patient: bool = False,
        began: float | None = None,
    ) -> tuple[Acquisition, AsyncLease | None]:
        """Acquire as `limit` says. began: when the caller began to open the store (`time.monotonic`); default: now."""
        began = monotonic() if began is None else began
        engine = await self._ready()
        asking_of, ask = _acquisition()
        settings = self._settings if mode is None else self._settings.in_mode(mode)
        acquisition = asking_of(
            engine, self._key, settings, limit, reclaim=reclaim, is_patient=is_patient, spent=monotonic() - began
        )
        return acquisition, await ask(acquisition)

    def hold(
        self,
        timeout: Duration | None = None,
        *,
        interrupt: bool = False,
        drain: Duration | None = None,
        reclaim: bool = False,
        mode: str | None = None,
    ) -> AsyncHold:
        """Hold the lock for an `async with` block, or, as a decorator, for each call of a coroutine function.

        At the end: LeaseLost if the lease was lost and the body returned; the body's own exception if it raised, with a
        note if the lease was lost; a warning if the release failed. interrupt: cancel the block's task when the lease
        is lost. mode: as for `acquire`.
        """
        from lockstead.aio_hold import AsyncHold

        limit = None if timeout is None else seconds(timeout, "timeout")
        bound = None if drain is None else seconds(drain, "drain")
        self._settings.in_mode(mode)  # a wrong mode is refused here, not when the block is entered
        return AsyncHold(partial(self.acquire, limit, reclaim=reclaim, mode=mode), interrupt=interrupt, drain=bound)

    # --- inspecting and breaking ---------------------------------------------------------------------------------

    async def wait_until_free(self, timeout: Duration | None = None) -> bool:
        """Wait until the lock is free, without acquiring it; False if it is still held after `timeout` seconds.

        Only a hint: another caller may acquire it first. 0 checks once. A store that does not answer is tried again;
        StoreUnavailable or OutcomeUnknown if it still does not at the end.
        """
        lock = await self._operations()
        script, limits = lock.freed(timeout)
        return (await _converse(lock.engine, lock.settings, script, limits)).is_free

    async def inspect(self) -> LockInfo | None:
        """Return who holds the lock, since when, why, until when, with which token; None if it is free."""
        lock = await self._operations()
        return await _converse(lock.engine, lock.settings, lock.inspected())

    async def contenders(self) -> list[Contender]:
        """Return the first 100 waiters, in the order of the queue, and its stray entries.

        StoreRefused on stores without a queue: all but etcd and ZooKeeper. The waiting threads and tasks of one client
        have one entry together.
        """
        return await call((await self._operations()).contenders)

    async def break_lease(
        self,
        *,
        reason: str,
        by: str | None = None,
        now: bool = False,
        incarnation: str | None = None,
        reader: LockInfo | None = None,
    ) -> BreakResult | None:
        """Revoke the lease, as an operator; None if there is none. The holder finds out at its next renewal.

        An expired lease is removed at once. now: remove any lease at once; the result says how long its holder may
        still consider itself the holder. incarnation (from `inspect`): break that lease and no later one. A shared lock
        is broken for all readers; reader (from `inspect().readers`): for this one alone. Writes an audit entry.
        """
        lock = await self._operations()
        script = lock.broken(reason=reason, by=by, now=now, incarnation=incarnation, reader=reader)
        return await _converse(lock.engine, lock.settings, script)
