"""Renewing a lease: a new deadline, no change, or the loss.

One Extend that expects the incarnation alone: idempotent, so lost answers and concurrent renewals do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstead.errors import LossReason, OutcomeUnknown
from lockstead.frozen import frozen
from lockstead.protocol.commands import Absent, Conflict, Extend, Read, Reply, Script, Snapshot, ask
from lockstead.protocol.context import LeaseId, ProtocolContext, loss
from lockstead.protocol.record import Record

BEING_RELEASED: Final = "it is being released"


@frozen
class Renewed:
    """The record was renewed. deadline is None if the lease is closing, so that it is not extended."""

    deadline: float | None
    sent_at: float


@frozen
class Over:
    """The lease is lost, for this reason."""

    reason: LossReason
    detail: str = ""


def renew(lease: LeaseId, fields: Mapping[str, str], context: ProtocolContext) -> Script[Renewed | Over]:
    """Renew once. Raises StoreUnavailable or OutcomeUnknown if nothing is known: then nothing changes."""
    reply = yield from ask(Extend(lease.name, fields, lease.incarnation, lifetime=lease.ttl))
    answer = reply.answer
    if isinstance(answer, Conflict):
        looked = yield from ask(Read(lease.name))
        refused = over(lease, looked.answer, context)
        if refused is None:
            raise OutcomeUnknown(f"the renewal of {lease.name.key!r} was refused though it is still ours")
        return refused
    if isinstance(answer, Absent):
        return Over(LossReason.GONE)
    lost = over(lease, answer, context)
    if lost is not None:
        return lost
    context.note_write(lease.name, reply, answer)
    return Renewed(_deadline(lease, reply, context), context.renewed_at(reply))


def extensible(lease: LeaseId, context: ProtocolContext) -> Script[Record | Over]:
    """Return the record of a lease that may still be extended: it is ours, neither revoked nor closing.

    For callers that renew by a ticket and remember no loss: each Extend of a revoked record would block the key for
    another ttl, as long as a loop continues to renew.
    """
    reply = yield from ask(Read(lease.name))
    if isinstance(reply.answer, Absent):
        return Over(LossReason.GONE)
    refused = over(lease, reply.answer, context)
    if refused is not None:
        return refused
    record = context.decode(lease.name, reply.answer)
    return Over(LossReason.GONE, BEING_RELEASED) if record.closing else record


def effective_ttl(lease: LeaseId, record: Record) -> float:
    """Return the ttl for the holder's deadline (seconds): not more than the record's, by which contenders judge."""
    return min(lease.ttl, record.ttl or lease.ttl)


def over(lease: LeaseId, answer: Snapshot | Absent, context: ProtocolContext) -> Over | None:
    """Return why a lease is lost, and by whom; None if it is still ours."""
    reason = loss(lease, answer, context)
    if reason is None:
        return None
    if isinstance(answer, Absent):
        return Over(reason)
    record = context.decode(lease.name, answer)
    if reason is LossReason.REVOKED and record.revoked is not None:
        return Over(reason, f"by {record.revoked.by}: {record.revoked.reason}")
    return Over(reason, (record.owner or record.holder) if reason is LossReason.TAKEN else "")


def _deadline(lease: LeaseId, reply: Reply[Any], context: ProtocolContext) -> float | None:
    record = context.decode(lease.name, reply.answer)
    if record.closing:
        return None
    return context.deadline_by(reply, effective_ttl(lease, record), record.lock_delay)
