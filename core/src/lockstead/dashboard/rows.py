"""What the pages show of a lock: a row with bounded texts. Pure.

Everything in a record is written by others: the templates escape it, and here it is cut to a size. Instants are epoch
seconds; the page counts on from them, so a row changes only if its lock does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from lockstead.runtime.engine import duration_text
from lockstead.states import expires_epoch, held_for, overdue_for, state_of, time_left
from lockstead.values import EXCLUSIVE

if TYPE_CHECKING:
    from lockstead.views import Contender, LockInfo

TEXT_MAX: Final = 300
"""Characters that are shown of an owner, a purpose, a label: what fills a cell."""

BACKTRACE_MAX: Final = 20_000
LABELS_MAX: Final = 20
PARTS_MAX: Final = 20
"""Readers, permits or waiters that are shown of a lock in the list."""

DESCRIBED_MAX: Final = 200
"""The same on the lock's own page."""

URGENCY: Final = ("overdue", "unreadable", "revoked", "closing", "expired", "held", "free")
"""The states, the most urgent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A reader, a permit or a waiter of a lock. slot: the number of a permit. is_stray: it blocks no waiter."""

    owner: str
    holder: str
    state: str
    since: float | None
    purpose: str = ""
    progress: str = ""
    url: str | None = None
    slot: int | None = None
    token: int | None = None
    until: float | None = None
    is_stray: bool = False
    incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lock as it is shown. id: fit for an attribute `id`, the same in every round.

    since, until, alert, auto_unlock: epoch seconds. left, ttl, held, expected: seconds when it was listed. state: of
    `URGENCY`. until: None if the store does not tell. url: the link to the holder's run, http or https. more_parts:
    readers or permits that are not shown.
    """

    id: str
    store: str
    key: str
    state: str
    kind: str
    owner: str
    holder: str
    incarnation: str
    url: str | None
    host_of_url: str
    purpose: str
    value: str
    progress: str
    progress_percent: int | None
    since: float | None
    held: float | None
    until: float | None
    left: float | None
    ttl: float | None
    expected: float | None
    alert: float | None
    auto_unlock: float | None
    overdue: float | None
    token: int | None
    trace: str
    labels: tuple[tuple[str, str], ...]
    more_labels: int
    host: str
    pid: int | None
    where: str
    backtrace: str
    revoked_by: str
    revoke_reason: str
    decode_error: str
    is_foreign: bool
    wanted_by: str
    readers: tuple[Part, ...]
    permits: tuple[Part, ...]
    more_parts: int
    limit: int | None
    free: int | None
    waiters: tuple[Part, ...]

    @property
    def is_breakable(self) -> bool:
        """Whether it can be broken as a whole. A semaphore's leases are broken by permit."""
        return self.limit is None and not self.is_foreign and not self.decode_error and bool(self.incarnation)


def identity(store: str, key: str) -> str:
    """Return an id for a lock that is fit for HTML: its names are not."""
    return "lock-" + hashlib.sha256(f"{store}\0{key}".encode()).hexdigest()[:16]


def short(text: str | None, most: int = TEXT_MAX) -> str:
    """Return a text of at most `most` characters."""
    text = text or ""
    return text if len(text) <= most else text[: most - 1] + "…"


def row_of(store: str, held: LockInfo, now: float, *, parts_max: int = PARTS_MAX) -> Row:
    """Return a lock as a row. now: the epoch seconds when it was listed."""
    permits = held.permits
    inner = held.readers if permits is None else permits.held
    parts = tuple(part_of(one, now) for one in inner[:parts_max])
    left = time_left(held, now)
    labels = [(name, text) for name, text in held.labels.items() if name != "url" or held.url is None]
    return Row(
        id=identity(store, held.key),
        store=store,
        key=held.key,
        state=shown_state(held, now),
        kind=_kind(held),
        owner=short(_owner(held)),
        holder=short(held.holder),
        incarnation=held.incarnation,
        url=held.url,
        host_of_url=short(urlsplit(held.url).hostname, 80) if held.url else "",
        purpose=short(held.purpose),
        value=short(held.value),
        progress=short(held.progress),
        progress_percent=percent(held.progress),
        since=held.acquired_epoch,
        held=held_for(held, now),
        until=_until(held, now),
        left=None if left is None else round(left),
        ttl=held.ttl,
        expected=held.expected,
        alert=held.alert_epoch,
        auto_unlock=held.auto_unlock_epoch,
        overdue=overdue_for(held, now),
        token=held.token,
        trace=short(held.traceparent),
        labels=tuple((short(name, 80), short(text)) for name, text in labels[:LABELS_MAX]),
        more_labels=max(0, len(labels) - LABELS_MAX),
        host=short(held.host),
        pid=held.pid,
        where=short(held.where),
        backtrace=short(held.backtrace, BACKTRACE_MAX),
        revoked_by=short(held.revoked_by),
        revoke_reason=short(held.revoke_reason),
        decode_error=short(held.decode_error),
        is_foreign=held.is_foreign,
        wanted_by=short(held.wanted_by),
        readers=parts if permits is None else (),
        permits=() if permits is None else parts,
        more_parts=len(inner) - len(parts),
        limit=None if permits is None else permits.limit,
        free=None if permits is None else permits.free,
        waiters=() if permits is None or permits.next_waiter is None else (part_of(permits.next_waiter, now),),
    )


def shown_state(held: LockInfo, now: float) -> str:
    """Return the state of a lock; of one that is held by several, "overdue" if any of them is."""
    inner = held.readers if held.permits is None else held.permits.held
    own = state_of(held, now)
    if own in ("held", "free") and any(state_of(one, now) == "overdue" for one in inner):
        return "overdue"
    return own


def part_of(held: LockInfo, now: float) -> Part:
    """Return a reader, or a holder of a permit, as it is shown."""
    return Part(
        owner=short(held.owner or held.holder),
        holder=held.holder,
        state=state_of(held, now),
        since=held.acquired_epoch,
        purpose=short(held.purpose),
        progress=short(held.progress),
        url=held.url,
        slot=held.slot,
        token=held.token,
        until=_until(held, now),
        incarnation=held.incarnation,
    )


def waiters_of(waiting: Iterable[Contender]) -> tuple[Part, ...]:
    """Return the entries of a queue as they are shown."""
    return tuple(
        Part(
            owner=short(one.owner) or "an unknown holder",
            holder=short(one.holder),
            state="stray" if one.is_stray else "waiting",
            since=one.since_epoch,
            is_stray=one.is_stray,
        )
        for one in islice(waiting, DESCRIBED_MAX)
    )


def _kind(held: LockInfo) -> str:
    if held.permits is not None:
        return "semaphore"
    if held.readers:
        return "shared"
    return "lock" if held.mode == EXCLUSIVE else short(held.mode, 40)


def _owner(held: LockInfo) -> str:
    if held.readers:
        return ", ".join(_first(one.owner or one.holder for one in held.readers))
    if held.permits is not None:
        return ", ".join(_first(one.owner or one.holder for one in held.permits.held))
    return held.owner or held.holder


def _first(owners: Iterable[str]) -> Iterator[str]:
    some = list(islice(owners, 4))
    yield from some[:3]
    if len(some) == 4:
        yield "…"


def _until(held: LockInfo, now: float) -> float | None:
    """Return when it expires, to the second; by the store's clock if it tells an age: writers' clocks differ."""
    if held.ttl is not None and held.age is not None:
        return float(round(now + held.ttl - held.age))
    expires = expires_epoch(held, now)
    return None if expires is None else float(round(expires))


def percent(progress: str | None) -> int | None:
    """Return how far the work is if its holder says so: "3 of 5", "3/5" or "60 %"."""
    words = (progress or "")[:40].replace("/", " of ").replace("%", " % ").split()
    match words:
        case [done, "of", total, *_] if done.isascii() and done.isdigit() and total.isascii() and total.isdigit():
            return min(100, 100 * int(done) // int(total)) if int(total) else None
        case [done, "%", *_] if done.isascii() and done.isdigit():
            return min(100, int(done))
        case _:
            return None


def duration(seconds: float | None) -> str:
    """Return a duration for people: "12 minutes"; empty if it is unknown."""
    if seconds is None:
        return ""
    return duration_text(round(seconds) if seconds >= 1 else seconds)


def consequence(left: float | None, ttl: float | None, *, now: bool, is_expired: bool, who: str) -> str:
    """Return what a break does, for the person who is about to break. left: seconds until the lease expires."""
    if is_expired:
        return "The lease has expired. It is removed, and the lock is free at once."
    bound = left if left is not None else ttl
    latest = "at a time that is not known: its record names no ttl" if bound is None else f"in {_whole(bound)}"
    if now:
        return (
            f"The lock is free at once. {who.capitalize()} may consider itself the holder for longer, at the latest "
            f"until its lease would have ended {latest}. Make sure that it has stopped."
        )
    return (
        f"{who.capitalize()} stops at its next renewal, at the latest {latest}. If it is dead, the lock is free one "
        f"ttl{'' if ttl is None else f' ({duration(ttl)})'} after the break."
    )


def _whole(seconds: float) -> str:
    count = math.ceil(seconds)
    return f"{count} s" if count < 120 else f"{count // 60} min {count % 60} s"
