# Generated from aio_tickets.py by `make blocking`: edit that file instead.
"""Tickets: what locks and semaphores have in common: a store that is opened late, leases by ticket, a history.

Has few imports, as naming a lock imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from lockstead import registry
from lockstead.loading import load
from lockstead.values import Duration, LeaseTicket

if TYPE_CHECKING:
    from lockstead.lease import Lease
    from lockstead.operations import LockOperations
    from lockstead.protocol.commands import Script
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.run import Limits
    from lockstead.views import AuditEntry, LockInfo

T = TypeVar("T")


class Tickets(registry.NamedLock):
    """The common base of Lock and Semaphore."""

    def _ready(self) -> Engine:
        return load(self._open_now) if self._opened is None else self._opened

    def _operations(self) -> LockOperations:
        engine = self._ready()
        from lockstead.operations import LockOperations

        return LockOperations(engine, self._key, self._settings)

    def _run(self, script: Script[T], limits: Limits | None = None) -> T:
        from lockstead.lease import converse

        return converse(self._ready(), self._settings, script, limits)

    def history(self) -> list[AuditEntry]:
        """Return the broken leases of this lock or semaphore, the oldest first; retention depends on the store."""
        engine = self._ready()
        from lockstead import operations

        return self._run(operations.history(engine, self._key))

    # --- tickets -------------------------------------------------------------------------------------------------

    def attach(self, ticket: LeaseTicket | str) -> Lease:
        """Join a lease by its ticket, as a member. LeaseLost if it has ended.

        The ttl is the lease's own. ValueError for what is not a ticket, or a ticket of another lock.
        """
        lock = self._operations()
        from lockstead.lease import Lease

        return Lease(lock.engine, self._run(lock.attached(ticket)), None)

    def release(self, ticket: LeaseTicket | str, *, drain: Duration | None = None) -> bool:
        """Release a lease as its owner, from its ticket, without attaching. True if this call removed it.

        Waits, at most `drain` seconds, until no member is live; if one still is, the lease is left to expire.
        """
        lock = self._operations()
        return self._run(lock.released(ticket, drain))

    def renew(self, ticket: LeaseTicket | str, *, progress: str | None = None) -> float:
        """Extend a lease from its ticket, as its owner; return the seconds until its new deadline.

        For a lease that no keeper renews, between the steps of a job. progress: text on the progress of the work.
        LeaseLost if the lease was taken, removed, revoked or is being released; one that has expired but was not taken
        is extended.
        """
        lock = self._operations()
        return self._run(lock.renewed(ticket, progress))

    def members(self, ticket: LeaseTicket | str) -> list[LockInfo]:
        """Return the registered members of a ticket's lease, the oldest first, including dead ones."""
        lock = self._operations()
        return self._run(lock.members(ticket))

    def wait_for_members(
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
        lock = self._operations()
        script, limits = lock.drained(ticket, owner_filter, timeout)
        return self._run(script, limits)

    def remove_member(self, ticket: LeaseTicket | str, member: LockInfo) -> bool:
        """Remove the registration of a member (from `members`) that the caller knows to be dead; True if it existed.

        A release no longer waits for it. A member that is alive continues until its next renewal.
        """
        lock = self._operations()
        return self._run(lock.withdrawn(ticket, member))
