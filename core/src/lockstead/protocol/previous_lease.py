"""What a holder is told of the lease before its own, and that this outlives a lease which nobody worked under.

Who takes a record over writes into its own what it is told of the one before. A holder that gives the lease back
without having worked under it leaves that for the next one; so does who finds the record of such a holder.
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
"""What the record of a new holder says where the store has dropped the record of one that never gave back."""

ENDED: Final = {"ended": "1"}
UNUSED: Final = {"ended": "1", "unused": "1"}
ENDED_LIVES: Final = 0.001
"""Seconds that an ended record is said to live, so that other implementations find it expired."""


def previous_of(record: Record, context: ProtocolContext) -> PreviousLease:
    """Return what the holder of a record is told of the lease before its own."""
    if record.before is not None:
        return record.before
    # where the server drops what is not renewed, a holder that died leaves as little behind as one that gave back
    return UNKNOWN_BEFORE if context.traits.clock is StoreClock.SERVER_EXPIRES else NOBODY_BEFORE


def previous_of_created(fields: Mapping[str, str], context: ProtocolContext) -> PreviousLease:
    """Return what the holder of a record that was just created is told: nobody decodes what he wrote himself."""
    is_unknown = "before" in fields or context.traits.clock is StoreClock.SERVER_EXPIRES
    return UNKNOWN_BEFORE if is_unknown else NOBODY_BEFORE


def previous_for_next(record: Record, holder: str, context: ProtocolContext) -> PreviousLease:
    """Return what a record that is over leaves to be told to the next holder, who asks as `holder`.

    A record of that very holder was never worked under: it is what is left of an earlier attempt of the same wish.
    """
    if record.unused or record.holder == holder:
        return previous_of(record, context)
    # one that ended without a word of an operator was lost by its holder, who then stopped
    ending = LeaseOutcome.REVOKED if record.revoked is not None else LeaseOutcome.EXPIRED
    return PreviousLease(ending, record.owner, record.holder)


def written(fields: Mapping[str, str], before: PreviousLease) -> dict[str, str]:
    """Add to the fields of a record what its holder is told of the one before."""
    return truncated({**fields, "before": previous_lease_text(before)})


def is_written(before: PreviousLease, context: ProtocolContext) -> bool:
    """Whether a record whose holder was told this says so, and must not vanish before somebody worked under it."""
    if before.ending is LeaseOutcome.UNKNOWN:
        return context.traits.clock is not StoreClock.SERVER_EXPIRES
    return before.ending is not LeaseOutcome.CLEAN


def unused(name: Name, incarnation: str, before: PreviousLease, context: ProtocolContext) -> Extend | Remove:
    """Return the command that frees a key under which nobody worked, and leaves what was told of the lease before."""
    if is_written(before, context):
        return Extend(name, UNUSED, incarnation, lifetime=ENDED_LIVES)
    return Remove(name, incarnation)
