# Generated from aio_semaphore.py by `make blocking`: edit that file instead.
"""Semaphore: at most N holders at once. The records and rules are in `protocol.permits`.

Like a lock, a semaphore can be named without importing what asks a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from lockstead import registry
from lockstead.misuse import LockMisuse
from lockstead.settings import Given
from lockstead.tickets import Tickets
from lockstead.values import Duration, seconds

if TYPE_CHECKING:
    from lockstead.hold import Hold
    from lockstead.lease import Lease
    from lockstead.permit_acquisition import PermitAcquisition
    from lockstead.permit_operations import SemaphoreOperations
    from lockstead.runtime.engine import Engine
    from lockstead.views import BreakResult, Permits

T = TypeVar("T")


class Semaphore(registry.NamedSemaphore, Tickets, LockMisuse):
    """A semaphore by name: at most `permits` holders at once, each with a lease. Making one sends no request.

    permits: the limit that this process expects; None accepts any, but creates no semaphore. The first acquisition
    creates it. on_mismatch, if its limit is another one: "refuse" raises StoreRefused, "follow" warns and accepts it,
    "resize" sets it. Safe to share between threads.
    """

    # defined here, so that Python's TypeError for a wrong call names this class
    def __init__(
        self,
        url: str,
        permits: int | None = None,
        *,
        on_mismatch: str = "refuse",
        client: object | None = None,
        **settings: Unpack[Given],
    ) -> None:
        super().__init__(url, permits, on_mismatch=on_mismatch, client=client, **settings)

    @classmethod
    def _of_client(
        cls, engine: Engine, key: str, permits: int | None, on_mismatch: str, settings: Mapping[str, Any]
    ) -> Self:
        """Return a semaphore of an open store."""
        made = cls._of(engine, key, settings)
        made._expect(permits, on_mismatch)
        return made

    def _of_semaphore(self) -> SemaphoreOperations:
        engine = self._ready()
        from lockstead.permit_operations import SemaphoreOperations

        return SemaphoreOperations(engine, self._key, self._settings)

    # --- acquisition --------------------------------------------------------------------------------------------------

    def acquire(self, timeout: Duration | None = None, **unknown: Never) -> Lease:
        """Wait for a permit, forever by default; 0 is one try. NotAcquired after `timeout` seconds.

        As `Lock.acquire`. The lease has a number, `lease.slot`, which no other holder has at the same time.
        StoreRefused if the semaphore has another limit, or the key is that of a lock.
        """
        registry.refuse_unknown(unknown)
        return self._acquire(None if timeout is None else seconds(timeout, "timeout"))

    def _acquire(self, limit: float | None, *, began: float | None = None) -> Lease:
        acquisition, lease = self._ask(limit, began=began)
        if lease is None:
            raise acquisition.not_acquired()
        return lease

    def try_acquire(self) -> Lease | None:
        """Try once, without waiting; None if no permit is free."""
        _unused, lease = self._ask(0.0, is_patient=True)
        return lease

    def _ask(
        self, limit: float | None, *, is_patient: bool = False, began: float | None = None
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
            on_mismatch=self._on_mismatch,
            last=self._last,
            is_patient=is_patient,
            spent=monotonic() - began,
        )
        return acquisition, ask(acquisition)

    def hold(self, timeout: Duration | None = None, *, interrupt: bool = False, drain: Duration | None = None) -> Hold:
        """Hold a permit for a `with` block, or, as a decorator, for each call of a function.

        As `Lock.hold`.
        """
        from lockstead.hold import Hold

        limit = None if timeout is None else seconds(timeout, "timeout")
        bound = None if drain is None else seconds(drain, "drain")
        return Hold(partial(self.acquire, limit), interrupt=interrupt, drain=bound)

    # --- inspecting, changing and breaking ----------------------------------------------------------------------------

    def inspect(self) -> Permits | None:
        """Return the limit, who holds which permit, and who is the next waiter; None if there is no semaphore."""
        operations = self._of_semaphore()
        return self._run(operations.inspected())

    def resize(self, permits: int, *, wait: Duration | None = None) -> bool:
        """Set the limit, which this object expects from then on; 0 closes the semaphore. True if it is in effect.

        Holders of permits above the limit keep them until they release them, and False says that there are some; wait:
        wait so long for them. StoreRefused if there is no semaphore.
        """
        operations = self._of_semaphore()
        is_in_effect = self._run(operations.resized(permits, wait), operations.limits)
        if permits and self._permits is not None:
            self._permits = permits
        return is_in_effect

    def remove(self, *, wait: Duration | None = None) -> bool:
        """Close the semaphore and remove it, so that the key is free; False if a permit is held: it stays closed.

        wait: wait so long for the holders.
        """
        operations = self._of_semaphore()
        return self._run(operations.removed(wait), operations.limits)

    def break_lease(
        self, *, slot: int, reason: str, by: str | None = None, now: bool = False, incarnation: str | None = None
    ) -> BreakResult | None:
        """Revoke the lease of one permit, as `Lock.break_lease` does; None if nobody holds it."""
        operations = self._of_semaphore()
        script = operations.broken(slot, reason=reason, by=by, now=now, incarnation=incarnation)
        return self._run(script)
