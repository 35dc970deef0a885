"""AsyncTerm: a lease whose holder leads. Imported when a campaign begins, not when an election is named."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from lockstead import operations, registry
from lockstead.aio_lease import AsyncLease
from lockstead.errors import LeaseLost, LossReason
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import uninterrupted
from lockstead.values import HEIR_BYTES_MAX, VALUE_BYTES_MAX


class AsyncTerm(AsyncLease):
    """A term of leadership: a lease that advertises a value. Leaving its block resigns.

    A term ends early if it is lost like any lease, or if this process ends it: by `resign`, after `max_term`, or by
    closing the election. `check()` raises LeaseLost then, and the block must end; only its end frees the key.
    """

    _election: weakref.ref[Any] | None = None
    """The election, which leaves the key to others for a moment after a term that this process ended."""

    async def advertise(self, value: str) -> None:
        """Change the value that the other processes see: at most 1 KiB of printable text, no secrets.

        LeaseLost if the term has ended.
        """
        await self._converse(operations.advertise(self, registry.checked_text(value, "value", VALUE_BYTES_MAX)))

    def resign(self, to: str | None = None) -> None:
        """End the term; the key is free when its block is left. Sends no request.

        to: the owner of the candidate that should lead next. It is a wish: the others leave it the key for
        `backoff_max` seconds, then anyone takes it.
        """
        if to is not None:
            self._lease_state.heir = registry.checked_text(to, "to", HEIR_BYTES_MAX)
        self._end("it resigned")

    @property
    def ended_by_choice(self) -> bool:
        """Whether this process ended the term."""
        return self.lost_reason is LossReason.ENDED

    def _why_ended(self) -> str:
        """Return why the term has ended, for `on_deposed`."""
        return self._lease_state.detail if self.ended_by_choice else str(self.lost_error())

    def _end_after(self, seconds: float) -> None:
        """End the term in `seconds`, unless it has ended by then."""
        ends_at = self._now() + seconds
        self._engine.keeper.schedule(seconds, partial(_end_if_over, weakref.ref(self), ends_at))

    @uninterrupted
    def _end(self, why: str) -> None:
        election = None if self._election is None else self._election()
        if election is not None and self.is_held:
            election._must_rest = True
        lose = partial(self._engine.keeper.lose, self._kept, LossReason.ENDED, why)
        if is_inside():
            self._engine.keeper.hand_over(lose, self._kept)
        else:
            lose()

    def _loss_at_exit(self) -> LeaseLost | None:
        """Return the LeaseLost at the end of a block: none if this process ended the term and left it in time."""
        is_in_time = self._now() < self._lease_state.deadline
        return None if self.ended_by_choice and is_in_time else super()._loss_at_exit()


def _end_if_over(term_ref: weakref.ref[AsyncTerm], ends_at: float) -> None:
    term = term_ref()
    # a client that is closed runs what is scheduled at once
    if term is not None and term._now() >= ends_at:
        term._end("max_term has passed")
