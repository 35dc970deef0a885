# Generated from aio_lock.py by `make blocking`: edit that file instead.
"""Client and Lock: what names a lock. What holding is stands in `lease`.

A DAG file names many locks and holds none, so everything beyond a name is imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Never, Self, TypeVar, Unpack

from lockstead import registry
from lockstead.loading import call, load
from lockstead.misuse import LockMisuse
from lockstead.settings import Given, Settings
from lockstead.values import Duration, LeaseTicket, Sequencer, seconds

if TYPE_CHECKING:
    from lockstead.batch import Batch
    from lockstead.events import Listener
    from lockstead.hold import Hold
    from lockstead.lease import Lease
    from lockstead.operations import Acquisition
    from lockstead.protocol.commands import Script
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.run import Limits
    from lockstead.stores.port import Store
    from lockstead.views import AuditEntry, BreakResult, Contender, LockInfo

T = TypeVar("T")


@cache
def _acquisition() -> tuple[type[Acquisition], Callable[[Acquisition], Lease | None]]:
    """Import what acquires a lock, with the first that is acquired: an import takes its time even when repeated."""
    from lockstead.lease import ask
    from lockstead.operations import Acquisition

    return Acquisition, ask


def _converse(engine: Engine, settings: Settings, script: Script[T], limits: Limits | None = None) -> T:
    from lockstead.lease import converse

    return converse(engine, settings, script, limits)


class Client:
    """An opened store and the keeper of all its leases. Open one with `connect`, or bring your own store.

    Closing it ends the keeping: leases still held are believed no longer and left to expire.
    """

    def __init__(self, store: Store, *, listener: Listener | None = None) -> None:
        from lockstead.runtime.engine import Engine

        self._engine = Engine(store, listener)

    def lock(self, key: str, **settings: Unpack[Given]) -> Lock:
        """Name a lock of this store; asks nothing. Settings as in `Settings.make`."""
        return Lock._of(self._engine, key, settings)

    def try_many(self, keys: Iterable[str], **settings: Unpack[Given]) -> Batch:
        """Take as many locks as are free now, without waiting: a batch, which knows what it has and what it waits for.

        Come back for the rest with `batch.try_acquire_rest()`, or go through all with `batch.iter_as_acquired()`.
        Settings as in `Settings.make`, the same for all. Raises StoreRefused for a key that was refused, and
        StoreUnavailable or OutcomeUnknown if the store was silent about all; nothing is held then.
        """
        from lockstead import batch

        return batch.try_many(self._engine, Settings.make(**settings), keys)

    def acquire_all(self, keys: Iterable[str], timeout: Duration | None = None, **settings: Unpack[Given]) -> Batch:
        """Take all locks or none: one after the other, in the order of their names' UTF-8 bytes.

        Take several locks like this, and no two callers wait for each other. It waits while it holds, so do not call it
        while you hold other locks. NotAcquired after `timeout` seconds in all, forever by
        default; nothing is held then.
        """
        from lockstead import batch

        return batch.acquire_all(self._engine, Settings.make(**settings), keys, timeout)

    def history(self, key: str | None = None) -> list[AuditEntry]:
        """Return the leases that were broken, of one key or of all, the oldest first; kept as the store's page says."""
        from lockstead import operations

        return _converse(self._engine, operations.PLAIN, operations.history(self._engine, key))

    def list(self) -> list[LockInfo]:
        """Return every key that is held, by name; a record that cannot be read is shown with its `decode_error`."""
        from lockstead import operations

        return _converse(self._engine, operations.PLAIN, operations.listed(self._engine))

    def verify(self, sequencer: Sequencer | str) -> bool:
        """Return whether a sequencer names the lease that holds its key at this instant. Absent or expired is no."""
        from lockstead import operations

        return _converse(self._engine, operations.PLAIN, operations.verified(self._engine, sequencer))

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Release a lease as its owner, from its ticket, without attaching; waits for live members."""
        said = LeaseTicket.parse(ticket)
        return self.lock(said.key, ttl=said.ttl).release(said, drain=drain)

    def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; as `Lock.renew`."""
        said = LeaseTicket.parse(ticket)
        return self.lock(said.key, ttl=said.ttl).renew(said, progress=progress)

    def close(self) -> None:
        """Close the keeper and the store. Idempotent."""
        call(self._engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._engine.store.url}>"


def connect(url: str, *, client: object | None = None, listener: Listener | None = None) -> Client:
    """Open a store by URL; `client` brings the caller's own client object (a `storage.Client`, say).

    ValueError for a URL that cannot be, StoreRefused when the client library or the store is missing.
    """
    return Client(load(partial(registry.open_store, url, client)), listener=listener)


class Lock(registry.NamedLock, LockMisuse):
    """A key one can ask for; holds nothing, and naming one asks nothing and imports no client library.

    Not reentrant: each acquisition is a holder of its own. Safe to share between threads.
    """

    # here, so that what Python says of a wrong call names this class
    def __init__(self, url: str, *, client: object | None = None, **settings: Unpack[Given]) -> None:
        super().__init__(url, client=client, **settings)

    def _ready(self) -> Engine:
        return load(self._open_now) if self._opened is None else self._opened

    # --- acquisition --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        timeout: Duration | None = None,
        *,
        reclaim: bool = False,
        **unknown: Never,
    ) -> Lease:
        """Wait for the lock, forever by default; 0 is one try. NotAcquired after `timeout` seconds.

        Ends within timeout + 1 s even if the store hangs. The time that the first call takes to import the client
        library counts; if that alone takes longer, one try of 0.3 s follows. reclaim: take the lock from an earlier
        process of the same explicit owner, whose death the caller vouches for. Raises StoreUnavailable or
        OutcomeUnknown if the store is still silent at the end. Cancelled or interrupted, it leaves nothing behind
        beyond one ttl.
        """
        registry.refuse_unknown(unknown)
        return self._acquire(None if timeout is None else seconds(timeout, "timeout"), reclaim=reclaim)

    def _acquire(self, limit: float | None, *, reclaim: bool = False, began: float | None = None) -> Lease:
        acquisition, lease = self._ask(limit, reclaim=reclaim, began=began)
        if lease is None:
            raise acquisition.not_acquired()
        return lease

    def try_acquire(self, *, reclaim: bool = False) -> Lease | None:
        """Try once: the lease, or None if somebody else holds it. Waits for nobody.

        The store has `request_timeout` for each request; `acquire(timeout=0)` is a try that ends within a second.
        """
        _unused, lease = self._ask(0.0, reclaim=reclaim, is_patient=True)
        return lease

    def _ask(
        self, limit: float | None, *, reclaim: bool, is_patient: bool = False, began: float | None = None
    ) -> tuple[Acquisition, Lease | None]:
        """Acquire as `limit` says. began: when the caller began to open the store (`time.monotonic`); default: now."""
        began = monotonic() if began is None else began
        engine = self._ready()
        asking_of, ask = _acquisition()
        acquisition = asking_of(
            engine, self._key, self._settings, limit, reclaim=reclaim, is_patient=is_patient, spent=monotonic() - began
        )
        return acquisition, ask(acquisition)

    def hold(
        self,
        timeout: Duration | None = None,
        *,
        interrupt: bool = False,
        drain: Duration | None = None,
        reclaim: bool = False,
    ) -> Hold:
        """Hold the lock for a `with` block, or, as a decorator, for each call of a function.

        Leaving it: lease lost and body returned, LeaseLost; body raised, its exception passes, with a note if the
        lease was lost; release failed, a warning. interrupt: interrupt the block when the lease is lost; where it
        awaits, by cancelling its task.
        """
        from lockstead.hold import Hold

        limit = None if timeout is None else seconds(timeout, "timeout")
        bound = None if drain is None else seconds(drain, "drain")
        return Hold(partial(self.acquire, limit, reclaim=reclaim), interrupt=interrupt, drain=bound)

    # --- tickets -------------------------------------------------------------------------------------------------

    def attach(self, ticket: LeaseTicket | str) -> Lease:
        """Carry on with a lease from its ticket, as a member. LeaseLost if it is not there any more.

        The ttl is the lease's own. ValueError for what is not a ticket, or a ticket of another lock.
        """
        engine = self._ready()
        from lockstead import operations
        from lockstead.lease import Lease

        joining = operations.attached(engine, self._key, self._settings, ticket)
        return Lease(engine, _converse(engine, self._settings, joining), None)

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Release a lease as its owner, from its ticket, without attaching. True if we removed it.

        Waits, at most `drain` seconds, until no member is live; if one still is, the lease is left to expire.
        """
        engine = self._ready()
        from lockstead import operations

        releasing = operations.released(engine, self._key, self._settings, ticket, drain)
        return _converse(engine, self._settings, releasing)

    def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; the seconds for which it may be believed from now on.

        For a lease that nobody keeps, between the steps of a job. progress: a word on how far the work is. LeaseLost
        if the lease was taken, removed, revoked or is being released; one that is overdue but untaken is extended.
        """
        engine = self._ready()
        from lockstead import operations

        renewing = operations.renewed(engine, self._key, self._settings, ticket, progress)
        return _converse(engine, self._settings, renewing)

    def members(self, ticket: LeaseTicket | str) -> list[LockInfo]:
        """Return who is registered to work under a ticket's lease, the oldest first; also who has died since."""
        engine = self._ready()
        from lockstead import operations

        return _converse(engine, self._settings, operations.members(engine, self._key, self._settings, ticket))

    def wait_for_members(
        self,
        ticket: LeaseTicket | str,
        *,
        owner_filter: Callable[[str], bool] | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """Wait until nobody works under a lease any more, from its ticket; False if one still does after `timeout`.

        whose: wait for those alone whose owner it chooses. Who is dead is waited for until its registration has
        expired. Gives nothing back, and while the lease lives another member may join.
        """
        engine, settings = self._ready(), self._settings
        from lockstead import operations

        script, limits = operations.drained(engine, self._key, settings, ticket, owner_filter, timeout)
        return _converse(engine, settings, script, limits)

    def remove_member(self, ticket: LeaseTicket | str, member: LockInfo) -> bool:
        """Take back the registration of a member (of `members`) for whose death the caller vouches; True if we did.

        Nobody waits for it any longer. If it lives, it works until its next renewal while others think it gone.
        """
        engine = self._ready()
        from lockstead import operations

        script = operations.withdrawn(engine, self._key, self._settings, ticket, member)
        return _converse(engine, self._settings, script)

    # --- looking and breaking ------------------------------------------------------------------------------------

    def wait_until_free(self, timeout: Duration | None = None) -> bool:
        """Wait until nobody holds the lock, and never take it; False if it is still held after `timeout` seconds.

        A hint, as every look is: who needs the lock must ask for it, and may find it taken again. 0 is one look. A
        store that is silent is waited out; StoreUnavailable or OutcomeUnknown if it still is at the end.
        """
        engine, settings = self._ready(), self._settings
        from lockstead import operations

        script, limits = operations.freed(engine, self._key, settings, timeout)
        found = _converse(engine, settings, script, limits)
        return found.is_free

    def inspect(self) -> LockInfo | None:
        """Return who holds the lock, since when, why, until when, with which token; None if nobody does."""
        engine = self._ready()
        from lockstead import operations

        return _converse(engine, self._settings, operations.inspected(engine, self._key, self._settings))

    def contenders(self) -> list[Contender]:
        """Return who waits for the lock, in the order of the queue: the first 100, and what else stands in it.

        StoreRefused on stores that keep no queue: all but etcd and ZooKeeper. Of the threads and tasks of one client
        that wait, one alone stands in the queue.
        """
        engine = self._ready()
        from lockstead import operations

        return call(partial(operations.contenders, engine, self._key, self._settings))

    def history(self) -> list[AuditEntry]:
        """Return the leases of this lock that were broken, the oldest first; kept as the store's page says."""
        engine = self._ready()
        from lockstead import operations

        return _converse(engine, self._settings, operations.history(engine, self._key))

    def break_lease(
        self, *, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> BreakResult | None:
        """Revoke the lease, as an operator; None if there is none. The holder finds out at its next renewal.

        A lease whose time is up is ended at once. now: end any at once; the answer says for how long the old holder may
        still believe. incarnation (of an inspection): break exactly that lease and no later one. Leaves an audit entry.
        """
        engine = self._ready()
        from lockstead import operations

        script = operations.broken(
            engine, self._key, self._settings, reason=reason, by=by, now=now, incarnation=incarnation
        )
        return _converse(engine, self._settings, script)
