"""How a record is shown to a person: who holds what, since when, why, until when, and what was broken.

Instants are of the *writer's* wall clock, for reading only; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Snapshot
from lockstead.protocol.context import ProtocolContext, token_of
from lockstead.protocol.release import Broken, RecordStatus, status
from lockstead.reading import DAMAGE, clean, on_calendar, whole
from lockstead.reading import instant as epoch_of
from lockstead.values import Name, checked_key

if TYPE_CHECKING:
    import pendulum

    from lockstead.stores.port import Standing


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who holds a key, as its record says.

    holder is owner plus nonce. ttl, age, expected are seconds; age is the time since the last renewal by the store's
    clock, None where it does not tell. is_expired: its time is up as far as one read can tell, so the next who asks
    may take it. acquired_at, expires_at, alert_at are `pendulum` datetimes in UTC, by the writer's wall clock.
    decode_error: why the record cannot be read (damaged, not ours, of a newer version), in one line. Nobody gets such a
    key, and all that is known of it is its name. Only a listing shows one; everything else raises StoreRefused.
    """

    key: str
    holder: str
    owner: str
    purpose: str | None
    ttl: float | None
    token: int | None
    progress: str | None
    expected: float | None
    age: float | None
    is_expired: bool
    closing: bool
    revoked_by: str | None
    revoke_reason: str | None
    host: str | None
    pid: int | None
    where: str | None
    backtrace: str | None
    labels: Mapping[str, str]
    incarnation: str
    acquired_epoch: float | None
    expires_epoch: float | None
    alert_epoch: float | None
    decode_error: str | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether another implementation wrote it: only these name no ttl. labels then is all that it says besides."""
        return self.ttl is None and self.decode_error is None

    @property
    def acquired_at(self) -> pendulum.DateTime | None:
        """Since when it is held."""
        return instant(self.acquired_epoch)

    @property
    def expires_at(self) -> pendulum.DateTime | None:
        """Until when it lives if nobody renews it."""
        return instant(self.expires_epoch)

    @property
    def alert_at(self) -> pendulum.DateTime | None:
        """From when on the work is overdue; None if its holder did not say."""
        return instant(self.alert_epoch)


@dataclass(frozen=True, slots=True)
class Contender:
    """One entry of the queue for a lock. holder is owner plus nonce, as the record will say once the lock is granted.

    Either is empty where the store does not know. is_stray: no process of this library waits there, whatever stands
    there; it keeps nobody waiting, and holder is its name in the store. since is a `pendulum` datetime in UTC.
    """

    holder: str
    owner: str
    since_epoch: float | None
    is_stray: bool

    @property
    def since(self) -> pendulum.DateTime | None:
        """Since when it waits, as far as that is known."""
        return instant(self.since_epoch)


def contender(standing: Standing) -> Contender:
    """Show an entry of a queue."""
    who = clean(standing.who)
    owner = who if standing.is_stray else who.rpartition("/")[0] or who
    return Contender(who, owner, standing.since, standing.is_stray)


@dataclass(frozen=True, slots=True)
class BreakResult:
    """What `break_lease` did. removed: at once; otherwise revoked, and the holder finds out at its next renewal.

    Where `was.revoked_by` names somebody and removed is false, it was revoked before and nothing was changed.
    max_overlap: seconds, from the store's answer on, for which the old holder may still believe that it holds; 0 if
    the lease had expired.
    """

    was: LockInfo
    removed: bool
    max_overlap: float | None
    overlap_until_epoch: float | None

    @property
    def overlap_until(self) -> pendulum.DateTime | None:
        """Until when the old holder may still believe, by this machine's wall clock."""
        return instant(self.overlap_until_epoch)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One lease that was broken: who did it, when, why, whose lease it was, and its token if it had drawn one.

    what: "revoked" (its holder found out at its next renewal), "removed" (at once), or "unreadable", where reason says
    what is wrong with the entry itself. at is a `pendulum` datetime in UTC, by the wall clock of who broke it. Text
    that a damaged entry does not say is empty.
    """

    key: str
    at_epoch: float | None
    by: str
    reason: str
    what: str
    holder: str
    owner: str
    incarnation: str
    token: int | None

    @property
    def at(self) -> pendulum.DateTime | None:
        """When it was broken."""
        return instant(self.at_epoch)


def instant(epoch: float | None) -> pendulum.DateTime | None:
    """Return seconds since the epoch as a datetime in UTC; None for none, or one that no calendar has."""
    epoch = on_calendar(epoch)
    if epoch is None:
        return None
    try:
        import pendulum
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "times are pendulum datetimes: pip install 'lockstead[times]', or read the attribute that ends in _epoch"
        ) from None
    return pendulum.from_timestamp(epoch)


def holding(key: str, status: RecordStatus, context: ProtocolContext) -> LockInfo:
    """Return what stands under a key."""
    record = status.record
    return LockInfo(
        key=key,
        holder=record.holder,
        owner=record.owner or record.holder,
        purpose=record.purpose,
        ttl=record.ttl,
        token=token_of(record, status.seen, context),
        progress=record.progress,
        expected=record.expected,
        age=status.age,
        is_expired=status.is_expired,
        closing=record.closing,
        revoked_by=record.revoked.by if record.revoked else None,
        revoke_reason=record.revoked.reason if record.revoked else None,
        host=record.host,
        pid=record.pid,
        where=record.where,
        backtrace=record.backtrace,
        labels=record.labels,
        incarnation=status.seen.incarnation,
        acquired_epoch=record.acquired_at,
        expires_epoch=record.expires_at,
        alert_epoch=record.alert_at,
    )


def listing(name: Name, seen: Snapshot, context: ProtocolContext) -> LockInfo | None:
    """Return one entry of a listing: a record that cannot be read hides no other. None for one that nobody holds."""
    try:
        checked_key(name.key)
        seen_now = status(name, seen, context)
    except (StoreRefused, ValueError) as refused:
        # a name that is not a key is nobody's lock: nothing of ours asks for it
        return _unreadable(clean(name.key), seen, str(refused))
    return None if seen_now.record.ended else holding(name.key, seen_now, context)


def _unreadable(key: str, seen: Snapshot, decode_error: str) -> LockInfo:
    identity = clean(seen.fields.get("identity", ""))
    return LockInfo(
        key=key,
        holder=identity,
        owner=clean(seen.fields.get("owner", identity)),
        purpose=None,
        ttl=None,
        token=None,
        progress=None,
        expected=None,
        age=None,
        is_expired=False,
        closing=False,
        revoked_by=None,
        revoke_reason=None,
        host=None,
        pid=None,
        where=None,
        backtrace=None,
        labels={},
        incarnation=seen.incarnation,
        acquired_epoch=None,
        expires_epoch=None,
        alert_epoch=None,
        decode_error=decode_error,
    )


def audited(name: Name, seen: Snapshot) -> AuditEntry:
    """Show an audit entry; whatever it says is shown, and what it does not say is left out."""
    said = {field: clean(text) for field, text in seen.fields.items()}
    damage = said.get(DAMAGE)
    stamp = whole(name.part.partition("-")[0])  # the name begins with milliseconds
    at = epoch_of(said.get("at", ""))
    return AuditEntry(
        key=clean(name.key),
        at_epoch=on_calendar(stamp / 1000 if at is None and stamp is not None else at),
        by=said.get("by", ""),
        reason=said.get("reason", "") if damage is None else f"this entry cannot be read: {damage}",
        what=said.get("what", "") if damage is None else "unreadable",
        holder=said.get("holder", ""),
        owner=said.get("owner", ""),
        incarnation=said.get("incarnation", ""),
        token=whole(said.get("token", "")),
    )


def breaking(key: str, broken: Broken, context: ProtocolContext, wall_now: float) -> BreakResult:
    """Return what was broken."""
    was = holding(key, RecordStatus(broken.record, broken.seen, None, is_expired=False), context)
    until = None if broken.max_overlap is None else wall_now + broken.max_overlap
    return BreakResult(was, broken.removed, broken.max_overlap, until)
