"""What happened to the locks of a store between two listings. Pure.

Only what two looks can tell: a lease that was acquired and released in between was not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstead.dashboard.rows import short
from lockstead.monitor.leases import leases
from lockstead.reading import date_text
from lockstead.states import expires_epoch, overdue_for

if TYPE_CHECKING:
    from lockstead.views import LockInfo

TEXT_MAX: Final = 200

LONG: Final = 60.0
"""Seconds between two listings from which on an event says that its time is not known."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a lock. at: epoch seconds.

    what: "granted", "released", "lost", "expired", "revoked", "removed", "overdue", "unreadable", or "unwatched" of a
    whole store, whose key is empty. part: "reader" or "permit 3", if it is one. text: more, in one line.
    """

    at: float
    key: str
    what: str
    owner: str = ""
    holder: str = ""
    token: int | None = None
    part: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The locks of a store as they were listed at one time."""

    at: float
    locks: Mapping[str, LockInfo]


def changes(before: Seen, after: Seen) -> Iterator[Event]:
    """Yield what happened between two listings of one store."""
    for key, was in before.locks.items():
        now = after.locks.get(key)
        if now is None or _differ(was, now, before.at, after.at):
            yield from _of_key(was, now, before.at, after.at)
    for key, now in after.locks.items():
        if key not in before.locks:
            yield from _of_key(None, now, before.at, after.at)


def unwatched(until: float, after: Seen) -> Iterator[Event]:
    """Yield what a first listing tells of the time before. until: when the store was listed last, before."""
    since = date_text(until) or "an unknown time"
    yield Event(after.at, "", "unwatched", text=f"not observed since {since}: leases in between are unknown")
    for now in after.locks.values():
        for lease in leases(now):
            if lease.acquired_epoch is not None and lease.acquired_epoch > until:
                yield _granted(lease, now, until, after.at)


def _differ(was: LockInfo, now: LockInfo, before: float, at: float) -> bool:
    """Whether anything may have happened; almost always nothing has, and a store may have 100,000 locks."""
    return (
        was.incarnation != now.incarnation
        or was.holder != now.holder
        or was.is_expired != now.is_expired
        or was.revoked_by != now.revoked_by
        or was.decode_error != now.decode_error
        or was.readers != now.readers
        or was.permits != now.permits
        or (was.alert_epoch is not None and overdue_for(was, before) is None and overdue_for(now, at) is not None)
    )


def _of_key(was: LockInfo | None, now: LockInfo | None, before: float, at: float) -> Iterator[Event]:
    old = {} if was is None else {_identity(one): one for one in leases(was)}
    new = {} if now is None else {_identity(one): one for one in leases(now)}
    if was is not None:
        for name, lease in old.items():
            if name not in new:
                yield _ended(lease, was, before, at)
    if now is None:
        return
    if now.decode_error is not None and (was is None or was.decode_error is None):
        yield Event(at, now.key, "unreadable", text=short(now.decode_error, TEXT_MAX))
    for name, lease in new.items():
        known = old.get(name)
        if known is None:
            yield _granted(lease, now, before, at)
        yield from _noticed(known, lease, now, before, at)


def _identity(lease: LockInfo) -> tuple[str, str]:
    """Return what is new for each acquisition: the holder's name; of another program's lock, its record's."""
    return (lease.holder, "" if lease.holder else lease.incarnation)


def _granted(lease: LockInfo, lock: LockInfo, before: float, at: float) -> Event:
    acquired = lease.acquired_epoch
    when = acquired if acquired is not None and before <= acquired <= at else at
    return _event(when, lease, lock, "granted", lease.purpose or "")


def _ended(lease: LockInfo, lock: LockInfo, before: float, at: float) -> Event:
    unsure = f"some time after {date_text(before)}" if at - before > LONG else ""
    until = expires_epoch(lease, before)
    if lease.revoked_by is not None:
        return _event(at, lease, lock, "lost", f"after it was revoked {unsure}".strip())
    if lease.is_expired or (until is not None and until < before):
        return _event(at, lease, lock, "lost", f"its lease had expired {unsure}".strip())
    return _event(at, lease, lock, "released", unsure)


def _noticed(was: LockInfo | None, now: LockInfo, lock: LockInfo, before: float, at: float) -> Iterator[Event]:
    if now.revoked_by is not None and (was is None or was.revoked_by is None):
        yield _event(at, now, lock, "revoked", f"by {now.revoked_by}: {now.revoke_reason or ''}")
    if now.is_expired and (was is None or not was.is_expired):
        yield _event(at, now, lock, "expired", "not renewed in time")
    over = overdue_for(now, at)
    if over is not None and (was is None or overdue_for(was, before) is None):
        yield _event(max(at - over, 0.0), now, lock, "overdue", "")


def _event(at: float, lease: LockInfo, lock: LockInfo, what: str, text: str) -> Event:
    part = "reader" if lease.registration is not None else ""
    if lease.slot is not None:
        part = f"permit {lease.slot}"
    return Event(
        at=at,
        key=lock.key,
        what=what,
        owner=short(lease.owner or lease.holder, TEXT_MAX),
        holder=lease.holder,
        token=lease.token,
        part=part,
        text=short(text, TEXT_MAX),
    )
