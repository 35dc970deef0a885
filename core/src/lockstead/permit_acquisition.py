"""One acquisition of a permit, from the request to the lease: an `Acquisition` whose script is `protocol.permits`."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TypeVar

from lockstead.acquisition import Acquisition
from lockstead.errors import NotAcquired, StoreError
from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Script
from lockstead.protocol.permits import (
    Full,
    PermitRequest,
    SemaphoreRequest,
    acquire_permit,
    turn_name,
)
from lockstead.protocol.record import permits_text
from lockstead.registry import LastPermit
from lockstead.runtime.engine import Engine, seconds_text
from lockstead.runtime.held import HeldLease
from lockstead.runtime.interrupt import uninterrupted
from lockstead.runtime.local_queue import Waiter
from lockstead.settings import Settings
from lockstead.stores.port import SupportsFifoQueue
from lockstead.values import TURN_TTL, Name

L = TypeVar("L", bound=HeldLease)

OWNERS_NAMED = 3
"""Number of holders that an error names."""


class PermitAcquisition(Acquisition):
    """One acquisition of a permit. permits, on_mismatch: as for `SemaphoreRequest`; the rest as for `Acquisition`."""

    def __init__(
        self,
        engine: Engine,
        key: str,
        settings: Settings,
        limit: float | None,
        *,
        permits: int | None,
        on_mismatch: str,
        last: LastPermit,
        is_patient: bool = False,
        spent: float = 0.0,
    ) -> None:
        self._last = last
        super().__init__(engine, key, settings, limit, reclaim=False, is_patient=is_patient, spent=spent)
        self._request.on_wait = None
        # if its holder dies, the others wait no longer than for a permit whose holder died
        turn_ttl = max(min(TURN_TTL, settings.ttl), engine.traits.ttl_recommended)
        turn_settings = Settings.make(ttl=turn_ttl, owner=settings.owner)
        turn = engine.new_request(turn_name(key), turn_settings, reclaim=False)
        turn.on_wait = self._waiting_for_turn
        warn = partial(_warn_of_mismatch, engine, key, permits)
        self._wish = PermitRequest(
            SemaphoreRequest(key, permits, on_mismatch, self._request.holder, warn),
            self._request,
            turn,
            turn_settings,
            in_order=isinstance(engine.store, SupportsFifoQueue),
            guess=last.guess(),
            on_wait=self._waiting,
            on_abandoned=partial(engine.clean_up_abandoned, settings=settings),
        )

    def _check_wait(self, name: Name) -> None:
        """Do nothing: a thread that holds a permit may acquire another one, as long as it need not wait."""

    def enter(self, waker: Waiter) -> bool:
        """Enter the local queue; True if it is our turn at once."""
        is_first = super().enter(waker)
        if not is_first:
            self._refuse_self_wait()
        return is_first

    def _refuse_self_wait(self) -> None:
        if self.engine.is_held_here(self.key):
            raise NotAcquired(
                f"no permit of {self.key!r} is free, and this thread or task holds one: it would wait for itself",
                key=self.key,
            )

    def _waiting(self, seen: Contended | StoreError) -> None:
        if isinstance(seen, Contended):
            self._refuse_self_wait()
        super()._waiting(seen)

    def _waiting_for_turn(self, seen: Contended | StoreError) -> None:
        if isinstance(seen, StoreError):
            self._waiting(seen)

    def _forget_callbacks(self) -> None:
        super()._forget_callbacks()
        self._wish.on_wait = self._wish.turn.on_wait = None

    def _acquiring(self, *, tries_once: bool, look_first: bool) -> Script[Grant | Contended]:  # noqa: ARG002
        try:
            return (
                yield from acquire_permit(
                    self._wish, self._context, gives_up_at=self.gives_up_at, tries_once=tries_once
                )
            )
        finally:
            self._request = self._wish.request

    def _note_grant(self) -> None:
        """Note nothing: another permit may be free."""

    @uninterrupted
    def ended(self, outcome: Grant | Contended, kind: type[L]) -> L | None:
        """Hand a grant to the keeper and return the lease; None, with nothing left behind, if none was free."""
        lease = super().ended(outcome, kind)
        if lease is not None:
            self._clean_up_turn()
            self._last.slot, self._last.kept = lease.slot, weakref.ref(lease._kept)
        return lease

    def _clean_up(self, error: BaseException | None = None) -> None:
        super()._clean_up(error)
        self._clean_up_turn(error)

    def _clean_up_turn(self, error: BaseException | None = None) -> None:
        wish = self._wish
        if wish.has_queued and (wish.is_queued or wish.turn.unsettled or wish.turn.may_keep_place or error):
            self.engine.clean_up_abandoned(wish.turn, wish.turn_settings, error)

    def came_late(self) -> None:
        """Clean up after a request of this acquisition that no caller awaits any more has ended."""
        super().came_late()
        if self._is_over and self._wish.has_queued:
            self.engine.sweep_soon(self._wish.turn.name, self._wish.turn.holder, self._wish.turn_settings)

    def not_acquired(self) -> NotAcquired:
        """Return the error of a wait that ended because no permit was free."""
        seen = self._contended
        if not isinstance(seen, Full):
            return super().not_acquired()
        waited = self.engine.clock.now() - self._started_at
        after = f"; waited {seconds_text(waited)}" if self._waits else ""
        if seen.limit == 0:
            return NotAcquired(
                f"the semaphore {self.key!r} is closed: its limit is 0{after}", key=self.key, waited=waited
            )
        named = ", ".join(repr(owner) for owner in seen.owners[:OWNERS_NAMED])
        more = len(seen.owners) - OWNERS_NAMED
        others = f" and {more} more" if more > 0 else ""
        what = "the permit is" if seen.limit == 1 else f"all {seen.limit} permits are"
        return NotAcquired(
            f"{self.key!r}: {what} held by {named}{others}{after}", key=self.key, holder=seen.owners[0], waited=waited
        )


def _warn_of_mismatch(engine: Engine, key: str, expected: int | None, limit: int) -> None:
    engine.warn(key, f"the semaphore {key!r} has {permits_text(limit)}, this process expects {expected}; it follows")
