"""Records as users see them: holders, waiters, broken leases.

Instants are from the writer's wall clock and for display only; no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Snapshot
from lockstead.protocol.context import ProtocolContext, token_of
from lockstead.protocol.permits import slot_of
from lockstead.protocol.pruning import Kept, Leftover, Pruned
from lockstead.protocol.record import gate_limit, is_gate
from lockstead.protocol.release import Broken, RecordStatus, status
from lockstead.reading import DAMAGE, clean, link, on_calendar, whole
from lockstead.reading import instant as epoch_of
from lockstead.values import EXCLUSIVE, TURN, Name, Space, checked_key

if TYPE_CHECKING:
    import pendulum

    from lockstead.protocol.election import Sighting
    from lockstead.stores.port import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """The holder of a key, according to the record.

    holder is owner plus nonce. ttl, age, expected are seconds; age is the time since the last renewal by the store's
    clock, None if the store does not report it. is_expired: the lease has expired, as far as one read can tell, so the
    next caller may take it. acquired_at, expires_at, alert_at, auto_unlock_at are `pendulum` datetimes in UTC, by the
    writer's wall clock; the same attributes with _epoch are seconds since the epoch. decode_error: why the record
    cannot be read (damaged, not ours, of a newer version), in one line. Such a key cannot be acquired, and only its
    name is known. Only a listing shows one; all other operations raise StoreRefused. mode: "exclusive", or "shared" if
    held by readers; these are in `readers`, the oldest first, and owner is "readers". wanted_by: the writer that waits
    for them. registration: of a reader or member, the name of its own record. traceparent: the position of the holder's
    trace, by W3C Trace Context, if it is traced.
    """

    key: str
    holder: str
    owner: str
    incarnation: str
    purpose: str | None = None
    ttl: float | None = None
    token: int | None = None
    progress: str | None = None
    expected: float | None = None
    age: float | None = None
    is_expired: bool = False
    closing: bool = False
    revoked_by: str | None = None
    revoke_reason: str | None = None
    host: str | None = None
    pid: int | None = None
    where: str | None = None
    backtrace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    acquired_epoch: float | None = None
    expires_epoch: float | None = None
    alert_epoch: float | None = None
    auto_unlock_epoch: float | None = None
    decode_error: str | None = None
    mode: str = EXCLUSIVE
    readers: tuple[LockInfo, ...] = ()
    wanted_by: str | None = None
    registration: str | None = None
    value: str | None = None
    permits: Permits | None = None
    traceparent: str | None = None

    @property
    def slot(self) -> int | None:
        """The number of a permit; None for a lock."""
        return slot_in(self.mode)

    @property
    def url(self) -> str | None:
        """The link to the holder's run: its label `url`, if that is a URL of http or https."""
        return link(self.labels.get("url", ""))

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote it: only those have no ttl. Its other fields are in labels."""
        return self.ttl is None and self.decode_error is None and self.permits is None

    @property
    def acquired_at(self) -> pendulum.DateTime | None:
        """When it was acquired."""
        return instant(self.acquired_epoch)

    @property
    def expires_at(self) -> pendulum.DateTime | None:
        """When it expires unless it is renewed."""
        return instant(self.expires_epoch)

    @property
    def alert_at(self) -> pendulum.DateTime | None:
        """When the work becomes overdue; None if its holder gave no expected duration."""
        return instant(self.alert_epoch)

    @property
    def auto_unlock_at(self) -> pendulum.DateTime | None:
        """When a reaper may revoke it; None if its holder did not ask for that."""
        return instant(self.auto_unlock_epoch)


@dataclass(frozen=True, slots=True)
class Permits:
    """A semaphore: its limit, the holders of its permits by slot, and the waiter whose turn it is.

    held includes leases that have expired, and permits at or above a limit that was lowered: each until it is released
    or taken.
    """

    key: str
    limit: int
    held: tuple[LockInfo, ...]
    next_waiter: LockInfo | None = None

    @property
    def free(self) -> int:
        """How many permits can be acquired now, as far as one read can tell."""
        taken = sum(not one.is_expired and one.slot is not None and one.slot < self.limit for one in self.held)
        return self.limit - taken


@dataclass(frozen=True, slots=True)
class Contender:
    """One entry of the queue for a lock. holder is owner plus nonce, as in the record once the lock is granted.

    Either is empty if the store does not know it. is_stray: no process of this library waits there; the entry blocks no
    waiter, and holder is its name in the store. since is a `pendulum` datetime in UTC, since_epoch the same in seconds.
    """

    holder: str
    owner: str
    since_epoch: float | None
    is_stray: bool

    @property
    def since(self) -> pendulum.DateTime | None:
        """Since when it waits; None if unknown."""
        return instant(self.since_epoch)


def contender(standing: Standing) -> Contender:
    """Return an entry of a queue as a Contender."""
    who = clean(standing.who)
    owner = who if standing.is_stray else who.rpartition("/")[0] or who
    return Contender(who, owner, standing.since, standing.is_stray)


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader that an election showed last. token: the term, which grows; None on a store without tokens.

    is_certain is always False: what was read is the past. Act on it only if the resource checks the token, or `verify`
    confirms it. since is a `pendulum` datetime in UTC, by the leader's clock; since_epoch the same in seconds.
    """

    owner: str
    value: str
    token: int | None
    since_epoch: float | None
    is_certain: bool = False

    @property
    def since(self) -> pendulum.DateTime | None:
        """Since when it leads; None if unknown."""
        return instant(self.since_epoch)


def leader(sighting: Sighting | None) -> Leader | None:
    """Return a sighting as a Leader."""
    if sighting is None:
        return None
    return Leader(sighting.owner, sighting.value, sighting.token, sighting.since)


@dataclass(frozen=True, slots=True)
class BreakResult:
    """The result of `break_lease`. removed: at once; otherwise revoked, and the holder finds out at its next renewal.

    If `was.revoked_by` is set and removed is false, it was revoked before and nothing was changed. max_overlap: the
    seconds, from the store's reply on, for which the old holder may still consider itself the holder; 0 if the lease
    had expired. overlap_until_epoch: that instant in seconds since the epoch.
    """

    was: LockInfo
    removed: bool
    max_overlap: float | None
    overlap_until_epoch: float | None

    @property
    def overlap_until(self) -> pendulum.DateTime | None:
        """Until when the old holder may still consider itself the holder, by this machine's wall clock."""
        return instant(self.overlap_until_epoch)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One broken lease: who broke it, when, why, whose lease it was, and its token if one was drawn.

    what: "revoked" (the holder found out at its next renewal), "removed" (at once), or "unreadable": then reason says
    what is wrong with the entry. at is a `pendulum` datetime in UTC, by the wall clock of the process that broke it;
    at_epoch the same in seconds. mode: as in `LockInfo`; "shared" with the owner "" was all readers, with another one
    reader. Text that is missing in a damaged entry is empty.
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
    mode: str = EXCLUSIVE

    @property
    def slot(self) -> int | None:
        """The number of a permit; None for a lock."""
        return slot_in(self.mode)

    @property
    def at(self) -> pendulum.DateTime | None:
        """When it was broken."""
        return instant(self.at_epoch)


def slot_in(mode: str) -> int | None:
    """Return the number of a permit from a mode, "permit/3"; None for any other mode."""
    return whole(mode.removeprefix("permit/")) if mode.startswith("permit/") else None


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The result of `prune`. removed: the number of records that were removed, or would be with dry_run, by kind:

    "registrations" (of dead members and readers), "groups" (of readers), "locks", "permits", "turns", "history",
    "queues" (entries that are no waiter's), "scratch" (of `doctor` and `bench`), "companions" (counters of tokens).
    kept: the number of those that stay, by reason: "unclean" (the next holder will learn that the last lease was lost
    or broken), "undecided" (the store shows no age, and this client has not watched the record for long enough),
    "unreadable", "changed" (meanwhile, or the store did not answer). names: the kind and the name of each removed
    record, the first 1000. refused: why a kind could not be listed or removed. is_complete: whether all leftovers were
    looked at; otherwise call it again. again_in: seconds after which the same client can decide more; None if it
    cannot.
    """

    removed: Mapping[str, int]
    kept: Mapping[str, int]
    names: tuple[tuple[str, str], ...]
    refused: tuple[str, ...]
    is_complete: bool
    again_in: float | None
    dry_run: bool


def pruning(done: Pruned, *, dry_run: bool) -> PruneResult:
    """Return what was pruned as a PruneResult."""
    return PruneResult(
        removed={kind.value: done.removed[kind] for kind in Leftover},
        kept={why.value: done.kept[why] for why in Kept},
        names=tuple((kind.value, shown(name)) for kind, name in done.names),
        refused=tuple(clean(text) for text in done.refused.values()),
        is_complete=done.is_complete,
        again_in=done.again_in,
        dry_run=dry_run,
    )


def shown(name: Name) -> str:
    """Return the name of a record, for people: its key, and the part of it that is not a lock."""
    return clean(f"{name.key} {name.part}" if name.part else name.key)


def instant(epoch: float | None) -> pendulum.DateTime | None:
    """Return seconds since the epoch as a datetime in UTC; None if unknown or out of range."""
    epoch = on_calendar(epoch)
    if epoch is None:
        return None
    try:
        import pendulum
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "times are pendulum datetimes: pip install 'lockstead[times]', or use the attribute that ends in _epoch"
        ) from None
    return pendulum.from_timestamp(epoch)


def holding(key: str, status: RecordStatus, context: ProtocolContext) -> LockInfo:
    """Return the holder of a key."""
    record = status.record
    return LockInfo(
        key=key,
        holder=record.holder,
        owner=record.shown_owner,
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
        value=record.value,
        traceparent=record.traceparent,
        incarnation=status.seen.incarnation,
        acquired_epoch=record.acquired_at,
        expires_epoch=record.expires_at,
        alert_epoch=record.alert_at,
        auto_unlock_epoch=record.auto_unlock_at,
        mode=record.mode,
        wanted_by=record.wanted_by or None,
    )


def listing(
    name: Name, seen: Snapshot, context: ProtocolContext, slots: Iterable[tuple[Name, Snapshot]] = ()
) -> LockInfo | None:
    """Return one entry of a listing, with decode_error if it cannot be read; None if the lock is not held.

    slots: the records of a semaphore's permits.
    """
    try:
        checked_key(name.key)
        if is_gate(seen.fields):
            return semaphore_info(permits_of(name.key, gate_limit(name.key, seen.fields), slots, context))
        seen_now = status(name, seen, context)
    except (StoreRefused, ValueError) as refused:
        # a name that is not a valid key is not a lock of this library
        return _unreadable(clean(name.key), seen, str(refused))
    if seen_now.record.ended:
        return None
    info = holding(name.key, seen_now, context)
    return replace(info, registration=name.part) if name.space is Space.MEMBER else info


def permits_of(key: str, limit: int, entries: Iterable[tuple[Name, Snapshot]], context: ProtocolContext) -> Permits:
    """Return a semaphore from the listing of its slots."""
    shown = {name.part: listing(name, seen, context) for name, seen in entries}
    turn = shown.pop(TURN, None)
    held = {
        int(part): one
        for part, one in shown.items()
        if one is not None and slot_of(Name(key, Space.PERMIT, part)) is not None
    }
    by_slot = tuple(replace(held[slot], mode=f"permit/{slot}") for slot in sorted(held))
    return Permits(key, limit, by_slot, None if turn is None or turn.is_expired else turn)


def semaphore_info(permits: Permits) -> LockInfo:
    """Return the entry of a listing for a semaphore."""
    return LockInfo(key=permits.key, holder="", owner="", incarnation="", mode="permits", permits=permits)


def _unreadable(key: str, seen: Snapshot, decode_error: str) -> LockInfo:
    holder = clean(seen.fields.get("identity", ""))
    owner = clean(seen.fields.get("owner", holder))
    return LockInfo(key=key, holder=holder, owner=owner, incarnation=seen.incarnation, decode_error=decode_error)


def audited(name: Name, seen: Snapshot) -> AuditEntry:
    """Return an audit entry; fields that are missing or damaged are left out."""
    said = {word: clean(text) for word, text in seen.fields.items()}
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
        mode=said.get("mode", EXCLUSIVE),
    )


def breaking(key: str, broken: Broken, context: ProtocolContext, wall_now: float) -> BreakResult:
    """Return a break as a BreakResult."""
    was = holding(key, RecordStatus(broken.record, broken.seen, None, is_expired=False), context)
    until = None if broken.max_overlap is None else wall_now + broken.max_overlap
    return BreakResult(was, broken.removed, broken.max_overlap, until)
