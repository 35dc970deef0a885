"""The rules of the reaper: which lease is alerted on, and which is revoked. Pure.

Instants in a record are from its writer's wall clock. An instant has passed when it has by this machine's wall clock
and, where the store shows when the record was renewed, by the writer's too: a clock that is ahead makes nothing early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lockstead.views import LockInfo

BY: Final = "lockstead reap"
"""How the name begins by which a reaper revokes."""

PATIENCE: Final = 30.0
"""Seconds after an alert from which its lease may be revoked, even if nobody could be told."""


class Act(Enum):
    """What to do about a lease: alert; revoke it; or complete the audit of a reaper that was killed."""

    ALERT = "alert"
    REVOKE = "revoke"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """Exactly one lease: a later one on the same key has another incarnation."""

    key: str
    mode: str
    registration: str | None
    incarnation: str

    @classmethod
    def of(cls, lease: LockInfo) -> LeaseRef:
        """Return the reference to a lease."""
        return cls(lease.key, lease.mode, lease.registration, lease.incarnation)


@dataclass(slots=True)
class Noted:
    """What this reaper did about an overdue lease. alerted_at: by a clock that never jumps.

    is_told: the alert was delivered once, or its delivery failed once. is_done: the lease is revoked and audited.
    """

    alerted_at: float = 0.0
    alerts: int = 0
    is_told: bool = False
    is_done: bool = False


def writer_now(lease: LockInfo) -> float | None:
    """Return the writer's wall clock now, from its last renewal and the time since then; None if it is unknown."""
    if lease.expires_epoch is None or lease.ttl is None or lease.age is None:
        return None
    return lease.expires_epoch - lease.ttl + lease.age


def has_passed(at: float | None, lease: LockInfo, now: float) -> bool:
    """Whether an instant of a record has passed. now: seconds since the epoch by this machine's clock."""
    if at is None or now < at:
        return False
    writers = writer_now(lease)
    return writers is None or writers >= at


def is_live(lease: LockInfo) -> bool:
    """Whether a lease can be overdue: it is ours, held, and not about to end anyway."""
    return not (lease.is_foreign or lease.is_expired or lease.closing or lease.revoked_by is not None)


def is_overdue(lease: LockInfo, now: float) -> bool:
    """Whether the work takes longer than its holder expected, or as long as it may."""
    return has_passed(lease.alert_epoch, lease, now) or may_unlock(lease, now)


def may_unlock(lease: LockInfo, now: float) -> bool:
    """Whether the holder asked for a revocation by now.

    An instant before the acquisition says nothing: the writer's clock was set in between, or the record is forged.
    """
    at, since = lease.auto_unlock_epoch, lease.acquired_epoch
    return at is not None and since is not None and at >= since and has_passed(at, lease, now)


def decide(lease: LockInfo, noted: Noted | None, now: float, ticks: float, repeat: float) -> Iterator[Act]:
    """Yield what to do about a lease, in order. noted: what was done about it; ticks: by the clock of `alerted_at`.

    Its first alert comes before it is revoked: no lease is revoked in the round of its first alert.
    """
    if lease.revoked_by is not None and lease.revoked_by.startswith(BY) and not lease.is_expired:
        # its reaper may have been killed before it wrote the audit entry
        if noted is None or not noted.is_done:
            yield Act.COMPLETE
        return
    if not is_live(lease) or not is_overdue(lease, now):
        return
    if noted is None or noted.alerts == 0 or ticks - noted.alerted_at >= repeat:
        yield Act.ALERT
    if noted is None or noted.alerts == 0 or not may_unlock(lease, now):
        return
    if noted.is_told or ticks - noted.alerted_at >= PATIENCE:
        yield Act.REVOKE
