"""The outcome of the previous lease, for a new holder; it is passed on across leases that were never used.

A client that takes over a record copies the outcome of the previous lease into its own record. A holder that releases
its lease unused keeps it there for the next holder, and so does a client that finds the record of such a holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockstead.protocol.commands import Extend, Remove, StoreClock
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.record import Record, previous_lease_text, truncated
from lockstead.values import LeaseOutcome, Name, PreviousLease

NOBODY_BEFORE: Final = PreviousLease(LeaseOutcome.CLEAN)
UNKNOWN_BEFORE: Final = PreviousLease(LeaseOutcome.UNKNOWN)

FORGOTTEN: Final = {"before": previous_lease_text(UNKNOWN_BEFORE)}
"""Fields of a new holder's record if the store dropped a record that was never released."""

ENDED: Final = {"ended": "1"}
UNUSED: Final = {"ended": "1", "unused": "1"}
ENDED_LIVES: Final = 0.001
"""Seconds of the ttl of an ended record, so that other implementations find it expired."""


def previous_of(record: Record, context: ProtocolContext) -> PreviousLease:
    """Return the previous lease to report to the holder of a record."""
    if record.before is not None:
        return record.before
    # if the server drops expired records, a holder that died leaves no record, like one that released
    return UNKNOWN_BEFORE if context.traits.clock is StoreClock.SERVER_EXPIRES else NOBODY_BEFORE


def previous_of_created(fields: Mapping[str, str], context: ProtocolContext) -> PreviousLease:
    """Return the previous lease to report to the holder of a new record, without decoding the record."""
    is_unknown = "before" in fields or context.traits.clock is StoreClock.SERVER_EXPIRES
    return UNKNOWN_BEFORE if is_unknown else NOBODY_BEFORE


def previous_for_next(record: Record, holder: str, context: ProtocolContext) -> PreviousLease:
    """Return the previous lease to report to `holder` when it takes over an expired record.

    A record of that same holder was never used: it is left from an earlier attempt of the same acquisition. Readers
    change nothing, so the lease before a group of readers counts.
    """
    if record.unused or record.is_group or record.holder == holder:
        return previous_of(record, context)
    # a record that ended without a break was lost by its holder, which then stopped
    ending = LeaseOutcome.REVOKED if record.revoked is not None else LeaseOutcome.EXPIRED
    return PreviousLease(ending, record.owner, record.holder)


def written(fields: Mapping[str, str], before: PreviousLease) -> dict[str, str]:
    """Return the fields of a record with the previous lease added."""
    return truncated({**fields, "before": previous_lease_text(before)})


def is_written(before: PreviousLease, context: ProtocolContext) -> bool:
    """Return whether a record contains this previous lease, so that it must be kept until a holder has used it."""
    if before.ending is LeaseOutcome.UNKNOWN:
        return context.traits.clock is not StoreClock.SERVER_EXPIRES
    return before.ending is not LeaseOutcome.CLEAN


def unused(
    name: Name, incarnation: str, before: PreviousLease, context: ProtocolContext, revision: str | None = None
) -> Extend | Remove:
    """Return the command that frees a key whose lease was unused, and keeps the outcome of the previous lease.

    revision: expected besides the incarnation, if given.
    """
    if is_written(before, context):
        return Extend(name, UNUSED, incarnation, revision, lifetime=ENDED_LIVES)
    return Remove(name, incarnation, revision)
