"""The states of a lock as users see them, and the durations that follow from its record.

Instants are from the writers' wall clocks, and are compared with this machine's clock for display only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockstead.views import LockInfo

TAKEABLE: Final = ("free", "expired")
"""States in which the lock can be acquired."""

URGENT: Final = ("overdue", "unreadable")
"""States that need attention; a list begins with them."""


def state_of(held: LockInfo | None, now: float) -> str:
    """Return the state of a lock. now: seconds since the epoch."""
    if held is None:
        return "free"
    if held.decode_error is not None:
        return "unreadable"
    if held.permits is not None:
        return "free" if held.permits.free > 0 else "held"
    if held.is_expired:
        return "expired"
    if held.revoked_by is not None:
        return "revoked"
    if held.closing:
        return "closing"
    return "overdue" if overdue_for(held, now) is not None else "held"


def held_for(held: LockInfo, now: float) -> float | None:
    """Return the seconds since it was acquired."""
    return None if held.acquired_epoch is None else max(0.0, now - held.acquired_epoch)


def time_left(held: LockInfo, now: float) -> float | None:
    """Return the seconds until the lease expires unless it is renewed, by the store's clock if that is known."""
    if held.ttl is not None and held.age is not None:
        return max(0.0, held.ttl - held.age)
    expires = expires_epoch(held, now)
    return None if expires is None else max(0.0, expires - now)


def expires_epoch(held: LockInfo, now: float) -> float | None:
    """Return when the lease expires unless it is renewed, in epoch seconds. A break starts a new ttl."""
    if held.revoked_by is None:
        return held.expires_epoch
    return None if held.ttl is None or held.age is None else now + held.ttl - held.age


def overdue_for(held: LockInfo, now: float) -> float | None:
    """Return the seconds since the work became overdue; None if it is not, or gave no expected duration."""
    return None if held.alert_epoch is None or now < held.alert_epoch else now - held.alert_epoch
