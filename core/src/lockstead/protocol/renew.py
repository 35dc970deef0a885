"""What a renewal's answer means: a new deadline, no change, or the loss.

One Extend that expects the incarnation alone: idempotent, so lost answers and siblings do no harm.
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
    """The record's life was renewed. deadline is None where the lease is closing and must not be believed longer."""

    deadline: float | None
    sent_at: float
    revision: str


@frozen
class Over:
    """The lease is lost, for this reason."""

    reason: LossReason
    detail: str = ""


def renew(lease: LeaseId, fields: Mapping[str, str], context: ProtocolContext) -> Script[Renewed | Over]:
    """Renew once. Raises StoreUnavailable or OutcomeUnknown where nothing is known: then nothing changes."""
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
    return Renewed(_deadline(lease, reply, context), context.renewed_at(reply), answer.revision)


def extensible(lease: LeaseId, context: ProtocolContext) -> Script[Record | Over]:
    """Look whether a lease may still be extended: its record if it is ours, neither revoked nor closing.

    For who renews now and then and remembers no loss: each Extend of a revoked record would keep the key blocked for
    another ttl, for as long as somebody's loop goes on renewing.
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
    """Return ttl a belief may count with (seconds): contenders judge by the record's, so it must not outlast that."""
    return min(lease.ttl, record.ttl or lease.ttl)


def over(lease: LeaseId, answer: Snapshot | Absent, context: ProtocolContext) -> Over | None:
    """Say why a lease is lost, and who is behind it; None if it is still ours."""
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
