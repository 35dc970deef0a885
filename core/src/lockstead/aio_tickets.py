"""AsyncTickets: what locks and semaphores have in common: a store that is opened late, leases by ticket, a history.

Has few imports, as naming a lock imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from lockstead import registry
from lockstead.aio_loading import load
from lockstead.values import Duration, LeaseTicket

if TYPE_CHECKING:
    from lockstead.aio_lease import AsyncLease
    from lockstead.operations import LockOperations
    from lockstead.protocol.commands import Script
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.run import Limits
    from lockstead.views import AuditEntry, LockInfo

T = TypeVar("T")


class AsyncTickets(registry.NamedLock):
    """The common base of AsyncLock and AsyncSemaphore."""

    async def _ready(self) -> Engine:
        return await load(self._open_now) if self._opened is None else self._opened

    async def _operations(self) -> LockOperations:
        engine = await self._ready()
        from lockstead.operations import LockOperations

        return LockOperations(engine, self._key, self._settings)

    async def _run(self, script: Script[T], limits: Limits | None = None) -> T:
        from lockstead.aio_lease import converse

        return await converse(await self._ready(), self._settings, script, limits)

    async def history(self) -> list[AuditEntry]:
        """Return the broken leases of this lock or semaphore, the oldest first; retention depends on the store."""
        engine = await self._ready()
        from lockstead import operations

        return await self._run(operations.history(engine, self._key))

    # --- tickets -------------------------------------------------------------------------------------------------

    async def attach(self, ticket: LeaseTicket | str) -> AsyncLease:
        """Join a lease by its ticket, as a member. LeaseLost if it has ended.

        The ttl is the lease's own. ValueError for what is not a ticket, or a ticket of another lock.
        """
        lock = await self._operations()
        from lockstead.aio_lease import AsyncLease

        return AsyncLease(lock.engine, await self._run(lock.attached(ticket)), None)

    async def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Release a lease as its owner, from its ticket, without attaching. True if this call removed it.

        Waits, at most `drain` seconds, until no member is live; if one still is, the lease is left to expire.
        """
        lock = await self._operations()
        return await self._run(lock.released(ticket, drain))

    async def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; return the seconds until its new deadline.

        For a lease that no keeper renews, between the steps of a job. progress: text on the progress of the work.
        LeaseLost if the lease was taken, removed, revoked or is being released; one that has expired but was not taken
        is extended.
        """
        lock = await self._operations()
        return await self._run(lock.renewed(ticket, progress))

    async def members(self, ticket: LeaseTicket | str) -> list[LockInfo]:
        """Return the registered members of a ticket's lease, the oldest first, including dead ones."""
        lock = await self._operations()
        return await self._run(lock.members(ticket))

    async def wait_for_members(
        self,
        ticket: LeaseTicket | str,
        *,
        owner_filter: Callable[[str], bool] | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """Wait until a ticket's lease has no members; False if it still has one after `timeout`.

        owner_filter: wait only for members whose owner it accepts. A dead member counts until its registration expires.
        The lease is not released, and new members may join while it is held.
        """
        lock = await self._operations()
        script, limits = lock.drained(ticket, owner_filter, timeout)
        return await self._run(script, limits)

    async def remove_member(self, ticket: LeaseTicket | str, member: LockInfo) -> bool:
        """Remove the registration of a member (from `members`) that the caller knows to be dead; True if it existed.

        A release no longer waits for it. A member that is alive continues until its next renewal.
        """
        lock = await self._operations()
        return await self._run(lock.withdrawn(ticket, member))
