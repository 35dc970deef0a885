"""Output formats of locks and audit entries: the keys of the JSON, and the text for people.

`schemas` has the keys. Texts of a record are untrusted and written without control characters.
Instants are from the writers' wall clocks, and are compared with this machine's clock for display only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lockstead.cli.exits import plain
from lockstead.cli.output import instant
from lockstead.cli.schemas import ENTRY, LOCK, READER
from lockstead.reading import date_text
from lockstead.runtime.engine import duration_text
from lockstead.states import expires_epoch, held_for, overdue_for, state_of, time_left
from lockstead.values import EXCLUSIVE, SHARED, Sequencer

if TYPE_CHECKING:
    from lockstead.views import AuditEntry, Contender, LockInfo, Permits

FOREIGN: Final = "another program's lock"

FACTS: Final = tuple(LOCK)
"""The keys of a lock in JSON, in order."""

READER_FACTS: Final = tuple(READER)
"""The keys of each reader of a shared lock in JSON, in order."""

ENTRY_FACTS: Final = tuple(ENTRY)
"""The keys of an audit entry in JSON, in order."""


def facts(key: str, held: LockInfo | None, now: float) -> dict[str, Any]:
    """Return a lock for JSON: always the same keys, null for what is unknown or does not apply. Durations: seconds."""
    computed: dict[str, Any] = {"key": key, "state": state_of(held, now)}
    if held is not None:
        computed |= {
            "foreign": held.is_foreign,
            "labels": dict(held.labels),
            "acquired_at": instant(held.acquired_epoch),
            "held_for": _rounded(held_for(held, now)),
            "expires_at": instant(expires_epoch(held, now)),
            "time_left": _rounded(time_left(held, now)),
            "age": _rounded(held.age),
            "alert_at": instant(held.alert_epoch),
            "overdue_for": _rounded(overdue_for(held, now)),
            "auto_unlock_at": instant(held.auto_unlock_epoch),
            "sequencer": sequencer_text(held),
            "permits": None if held.permits is None else permits_facts(held.permits, now),
            "readers": [_reader_facts(reader, now) for reader in held.readers] or None,
        }
    # the other facts are attributes of the same name
    return {name: computed[name] if name in computed else held and getattr(held, name) for name in FACTS}


def permits_facts(permits: Permits, now: float) -> dict[str, Any]:
    """Return a semaphore for JSON."""
    return {
        "limit": permits.limit,
        "free": permits.free,
        "held": [facts(one.key, one, now) for one in permits.held],
        "next_waiter": None if permits.next_waiter is None else permits.next_waiter.owner,
    }


def sequencer_text(held: LockInfo) -> str | None:
    """Return the sequencer of a lock; None if its token is unknown, or its mode is of a later version."""
    if held.token is None or (held.slot is None and held.mode not in (EXCLUSIVE, SHARED)):
        return None
    return str(Sequencer(held.key, held.token, held.mode))


def _reader_facts(reader: LockInfo, now: float) -> dict[str, Any]:
    said = facts(reader.key, reader, now)
    return {name: said[name] for name in READER_FACTS}


def waiting_facts(waiting: Sequence[Contender] | None, now: float) -> list[dict[str, Any]] | None:
    """Return the entries of a queue for JSON; None if the store keeps no queue."""
    if waiting is None:
        return None
    return [
        {
            "owner": one.owner,
            "holder": one.holder,
            "since": instant(one.since_epoch),
            "waited": _rounded(_waited(one, now)),
            "stray": one.is_stray,
        }
        for one in waiting
    ]


def _waited(one: Contender, now: float) -> float | None:
    return None if one.since_epoch is None else max(0.0, now - one.since_epoch)


def _rounded(duration: float | None) -> float | None:
    return None if duration is None else round(duration, 3)


def entry_facts(entry: AuditEntry) -> dict[str, Any]:
    """Return an audit entry for JSON."""
    return {name: instant(entry.at_epoch) if name == "at" else getattr(entry, name) for name in ENTRY_FACTS}


# --- for people -----------------------------------------------------------------------------------------------------


def headline(key: str, held: LockInfo | None, now: float) -> str:
    """Return the state of a lock in one line."""
    if held is not None and held.permits is not None:
        limit, free = held.permits.limit, held.permits.free
        if limit == 0:
            return f"{plain(key)} is a closed semaphore: its limit is 0"
        return f"{plain(key)} is a semaphore: {limit - free} of {limit} permits held"
    owner = "" if held is None else _who(held)
    match state_of(held, now):
        case "free":
            return f"{plain(key)} is free: the store has no lease of it"
        case "unreadable":
            return f"{plain(key)} has an unreadable record and cannot be acquired"
        case "expired":
            return f"{plain(key)} is free: the lease of {owner} has expired"
        case "revoked":
            return f"{plain(key)} is held by {owner}, but was revoked"
        case "closing":
            return f"{plain(key)} is being released by {owner}"
        case "overdue":
            return f"{plain(key)} is held by {owner}, OVERDUE"
        case _:
            return f"{plain(key)} is held by {owner}"


def _who(held: LockInfo) -> str:
    if held.readers:
        return f"{len(held.readers)} readers" if len(held.readers) > 1 else "1 reader"
    return plain(held.owner or held.holder) or "an unknown holder"


def details(held: LockInfo, now: float) -> Iterator[tuple[str, str]]:
    """Yield the other fields of a lock as pairs of name and text."""
    if held.permits is not None:
        yield from _permit_lines(held.permits, now)
        return
    overdue, left = overdue_for(held, now), time_left(held, now)
    unlock = date_text(held.auto_unlock_epoch)
    revoked = None if held.revoked_by is None else f"by {held.revoked_by}: {held.revoke_reason}"
    unless = "" if held.closing or held.revoked_by is not None else " unless it is renewed"
    until = _with(expires_epoch(held, now), f"{_short(left)} left{unless}" if left else None)
    said = {
        "decode_error": held.decode_error,
        "program": f"{FOREIGN}; its fields are shown as labels" if held.is_foreign else None,
        "value": held.value,
        "purpose": held.purpose,
        "progress": held.progress,
        "since": _with(held.acquired_epoch, _ago(held_for(held, now))),
        "until": until,
        "ttl": _with_renewal(held),
        "expected": None if held.expected is None else f"to take {duration_text(held.expected)}",
        "overdue": None if overdue is None else _with(held.alert_epoch, f"for {duration_text(overdue)}"),
        "unlock": unlock and f"a reaper may revoke it from {unlock} on",
        "revoked": revoked,
        "wanted": None if held.wanted_by is None else f"by {held.wanted_by}, before any further reader",
        "token": None if held.token is None else str(held.token),
        "labels": " ".join(f"{name}={value}" for name, value in held.labels.items()),
        "host": f"{held.host or 'unknown'}, process {held.pid or 'unknown'}" if held.host or held.pid else None,
        "where": held.where,
        "trace": held.traceparent,
        "holder": held.holder,
    }
    for name, text in said.items():
        if text:
            yield name, plain(text)
    for line in (held.backtrace or "").splitlines():
        yield "backtrace", plain(line)
    for reader in held.readers:
        yield "reader", plain(" ".join(_of_reader(reader, now)))


def _of_reader(reader: LockInfo, now: float) -> Iterator[str]:
    yield reader.holder
    for text in (_for(held_for(reader, now)), f"({reader.purpose})" if reader.purpose else None, _progress(reader)):
        if text:
            yield text
    if reader.revoked_by is not None:
        yield f"revoked by {reader.revoked_by}: {reader.revoke_reason}"


def _progress(held: LockInfo) -> str | None:
    return f"[{held.progress}]" if held.progress else None


def _permit_lines(permits: Permits, now: float) -> Iterator[tuple[str, str]]:
    for one in permits.held:
        above = "above the limit" if one.slot is not None and one.slot >= permits.limit else None
        state = state_of(one, now)
        said = (plain(one.owner), above, state if state != "held" else None, _for(held_for(one, now)), one.purpose)
        token = None if one.token is None else f"token {one.token}"
        yield f"slot {one.slot}", plain(", ".join(text for text in (*said, token, one.decode_error) if text))
    if permits.next_waiter is not None:
        yield "waiting", plain(permits.next_waiter.owner)


def queue(waiting: Sequence[Contender], now: float) -> Iterator[tuple[str, str]]:
    """Yield a line for each entry of a queue."""
    for one in waiting:
        who = plain(one.holder) or "an unknown holder"
        if one.is_stray:
            yield "stray", f"{who} is a stray entry of the queue, which blocks no waiter"
        else:
            yield "waiting", " ".join(text for text in (who, _for(_waited(one, now))) if text)


def _for(duration: float | None) -> str | None:
    return None if duration is None else f"for {duration_text(duration)}"


def _with_renewal(held: LockInfo) -> str | None:
    """Return the ttl and the time since the last renewal; by default a holder renews eight times in a ttl."""
    if held.ttl is None:
        return None
    what = "renewed" if held.revoked_by is None else "last changed"
    renewed = "" if held.age is None or held.age < 0 else f", {what} {_short(held.age)} ago"
    return f"{_short(held.ttl)}{renewed}"


def _ago(duration: float | None) -> str | None:
    return None if duration is None else f"{duration_text(duration)} ago"


def _with(epoch: float | None, words: str | None) -> str | None:
    """Return an instant followed by its explanation; either may be unknown."""
    at = date_text(epoch)
    return f"{at} ({words})" if at and words else at or words


def _short(duration: float) -> str:
    return duration_text(round(duration) if duration >= 1 else duration)


def lock_row(held: LockInfo, now: float) -> list[str]:
    """Return a lock as a row of the list."""
    if (permits := held.permits) is not None:
        owners = ", ".join(one.owner for one in permits.held)
        taken = f"{permits.limit - permits.free} of {permits.limit}"
        return [plain(held.key), taken, plain(owners), "", "", "", "semaphore"]
    age, left = held_for(held, now), time_left(held, now)
    said = (held.value, held.purpose, _progress(held))
    what = " ".join(text for text in said if text)
    if held.wanted_by is not None:
        what = f"wanted by {held.wanted_by.rpartition('/')[0] or held.wanted_by}"
    return [
        plain(held.key),
        f"shared {len(held.readers)}" if held.readers and state_of(held, now) == "held" else state_of(held, now),
        plain(_owners(held)),
        "" if age is None else duration_text(round(age)),
        _short(left) if left else "",
        "" if held.token is None else str(held.token),
        plain(held.decode_error or (FOREIGN if held.is_foreign else what)),
    ]


def _owners(held: LockInfo) -> str:
    owners = [reader.owner or reader.holder for reader in held.readers[:OWNERS_SHOWN]]
    more = ["..."] if len(held.readers) > OWNERS_SHOWN else []
    return ", ".join([*owners, *more]) or held.owner or held.holder


OWNERS_SHOWN: Final = 3
LOCK_HEADS: Final = ("KEY", "STATE", "OWNER", "HELD FOR", "LEFT", "TOKEN", "PURPOSE")
LOCK_WORDS: Final = ("OWNER", "PURPOSE")
"""Columns of free text, which may be long."""


def entry_row(entry: AuditEntry) -> list[str]:
    """Return an audit entry as a row of the history."""
    whose = "" if entry.slot is None else f" permit {entry.slot}"
    if entry.mode == SHARED:
        whose = " reader" if entry.owner else " readers"
    said = [date_text(entry.at_epoch) or "", entry.key, entry.what + whose, entry.by, entry.reason, entry.owner]
    return [*(plain(text) for text in said), "" if entry.token is None else str(entry.token)]


ENTRY_HEADS: Final = ("AT", "KEY", "WHAT", "BY", "REASON", "OWNER", "TOKEN")
ENTRY_WORDS: Final = ("BY", "REASON", "OWNER")
