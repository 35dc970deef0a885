# Generated from aio_permits.py by `make blocking`: edit that file instead.
"""A semaphore as a wrapper uses it: like a lock that is held while no permit is free."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Self

from lockstead.lock import Lock
from lockstead.registry import LastPermit
from lockstead.values import EXCLUSIVE, Duration

if TYPE_CHECKING:
    from lockstead.lease import Lease
    from lockstead.permit_acquisition import PermitAcquisition
    from lockstead.permit_operations import SemaphoreOperations
    from lockstead.views import BreakResult, LockInfo

OWNERS_NAMED = 3
"""Number of holders that the owner of a semaphore names."""


class PermitLock(Lock):
    """A semaphore that is acquired, inspected and given back like a lock; its leases have a slot.

    An owner's earlier lease is never reclaimed: it occupies its permit until it expires.
    """

    _permits: int
    _last: LastPermit

    @classmethod
    def of(cls, lock: Lock, permits: int) -> Self:
        """Return the semaphore of a lock's name and settings; ValueError if they say mode="shared"."""
        if lock.settings.mode != EXCLUSIVE:
            raise ValueError(f"{lock.key!r}: permits and mode={lock.settings.mode!r} exclude each other: give one")
        made = cls.__new__(cls)
        made.__dict__.update(lock.__dict__, _permits=permits, _last=LastPermit())
        return made

    def _ask(
        self,
        limit: float | None,
        *,
        reclaim: bool,  # noqa: ARG002 - as the base class
        mode: str | None = None,  # noqa: ARG002
        is_patient: bool = False,
        began: float | None = None,
    ) -> tuple[PermitAcquisition, Lease | None]:
        began = monotonic() if began is None else began
        engine = self._ready()
        from lockstead.lease import ask
        from lockstead.permit_acquisition import PermitAcquisition

        acquisition = PermitAcquisition(
            engine,
            self._key,
            self._settings,
            limit,
            permits=self._permits,
            on_mismatch="refuse",
            last=self._last,
            is_patient=is_patient,
            spent=monotonic() - began,
        )
        return acquisition, ask(acquisition)

    def inspect(self) -> LockInfo | None:
        """Return the semaphore with its `permits`, its owner naming the holders; None if there is no semaphore."""
        operations = self._of_semaphore()
        found = self._run(operations.inspected())
        if found is None:
            return None
        from lockstead.views import semaphore_info

        owners = [one.owner for one in found.held if not one.is_expired]
        more = len(owners) - OWNERS_NAMED
        named = ", ".join(owners[:OWNERS_NAMED]) + (f" and {more} more" if more > 0 else "")
        return replace(semaphore_info(found), owner=named)

    def wait_until_free(self, timeout: Duration | None = None) -> bool:
        """Wait until a permit is free, without acquiring it, as `Lock.wait_until_free`."""
        operations = self._of_semaphore()
        script, limits = operations.freed(timeout)
        found = self._run(script, limits)
        return found.is_free

    def break_lease(
        self,
        *,
        reason: str,
        by: str | None = None,
        now: bool = False,
        incarnation: str | None = None,
        reader: LockInfo | None = None,
    ) -> BreakResult | None:
        """Revoke the lease of one permit, as `Semaphore.break_lease`; reader: its holder (from `inspect`)."""
        if reader is None or reader.slot is None:
            raise ValueError(f"{self._key!r} is a semaphore: say whose lease is to be broken, by reader=")
        operations = self._of_semaphore()
        return self._run(operations.broken(reader.slot, reason=reason, by=by, now=now, incarnation=incarnation))

    def _of_semaphore(self) -> SemaphoreOperations:
        engine = self._ready()
        from lockstead.permit_operations import SemaphoreOperations

        return SemaphoreOperations(engine, self._key, self._settings)
