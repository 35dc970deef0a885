"""Exceptions: one class for each different reaction of the caller.

Must not know stores, clocks or threads. Contention is not an error inside the engine: it is a result (`Contended`),
which becomes `NotAcquired` only where a wait has ended.
"""

from __future__ import annotations

from enum import Enum


class LocksteadError(Exception):
    """Base of all errors that lockstead raises on purpose, except plain `ValueError` and `TypeError`."""


class LossReason(Enum):
    """Why a lease may no longer be ours."""

    TAKEN = "TAKEN"
    """The record names another holder or another incarnation."""
    GONE = "GONE"
    """The record is absent: another client removed it."""
    REVOKED = "REVOKED"
    """An operator broke the lease, or a process of the same owner reclaims it."""
    EXPIRED = "EXPIRED"
    """The deadline, less the margin for the abort, has passed."""
    UNREACHABLE = "UNREACHABLE"
    """Too many consecutive rounds of renewal failed."""
    FORKED = "FORKED"
    """This is a child's copy of its parent's lease."""
    ENDED = "ENDED"
    """This process ended its term of leadership: it resigned, or `max_term` has passed."""


class NotAcquired(LocksteadError):  # noqa: N818 - the field's word
    """The wait ended and another holder has the lock. Wait longer, skip the work, or report the holder.

    holder is the owner in the record; held_for and waited are in seconds; all may be unknown (None).
    """

    def __init__(
        self,
        message: str = "not acquired",
        *,
        key: str = "",
        holder: str | None = None,
        purpose: str | None = None,
        held_for: float | None = None,
        waited: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.purpose = purpose
        self.held_for = held_for
        self.waited = waited


class LeaseLost(LocksteadError):  # noqa: N818 - the field's word
    """The lease may no longer be ours: stop touching the resource. Never a time-out, never a cancellation.

    reason is a `LossReason`; `__cause__` is the last failed renewal, if there was one.
    """

    def __init__(
        self,
        message: str = "the lease is lost",
        *,
        reason: LossReason = LossReason.EXPIRED,
        key: str = "",
        holder: str = "",
        token: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.key = key
        self.holder = holder
        self.token = token


class PreviousLeaseUnclean(LocksteadError):  # noqa: N818 - the state, as above
    """The previous lease did not end cleanly, and the caller asked to fail then: repair what it left, then confirm
    that."""


class StoreError(LocksteadError):
    """Base of the errors of a store; raise one of its three subclasses, which tell whether the request was applied."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The request was certainly not applied, because it was never sent. It may be repeated."""


class OutcomeUnknown(StoreError):  # noqa: N818
    """The request may have been applied, or may be later. Read before you repeat it."""


class StoreRefused(StoreError):  # noqa: N818
    """The request will never be applied: forbidden, misconfigured, or a record that is not ours. Fix the
    configuration."""
