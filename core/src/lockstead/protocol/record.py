"""What a lock's record says and how it is written as a flat map of text, the same in every store.

Must not know which store holds the map. Unknown fields are kept; a newer major version is refused; a damaged record
is never treated as free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from lockstead.errors import StoreRefused
from lockstead.frozen import frozen
from lockstead.protocol.commands import (
    FIELDS_BYTES_MAX,
    Command,
    Create,
    Extend,
    Read,
    Remove,
    Replace,
    StoreClock,
)
from lockstead.reading import (
    DAMAGE,
    RECORD_BYTES_MAX,
    TOO_LARGE,
    clean,
    clean_lines,
    decimal,
    on_calendar,
    whole,
)
from lockstead.settings import LOCK_DELAY_MAX
from lockstead.values import DURATION_MAX, LeaseOutcome, Name, PreviousLease

VERSION: Final = 1
PID_MAX: Final = 2**31 - 1
PROGRESS_BYTES_MAX: Final = 1000
"""Bytes of how far the work is, as it is stored."""
REVOKED_BYTES_MAX: Final = 1024
"""Bytes of who broke a lease and why, as it is stored."""
BY_BYTES_MAX: Final = 200
"""Bytes of who broke it, so that there is always room for why."""
ROOM: Final = FIELDS_BYTES_MAX - len("progressrevoked") - PROGRESS_BYTES_MAX - REVOKED_BYTES_MAX - 256
"""Bytes that the other fields of a record may take when it is written.

What is written later always fits: how far the work is, who broke the lease, and 256 bytes of what drivers and renewals
add.
"""
NAMED_MAX: Final = 200
"""Characters of each name of a predecessor that a record repeats."""
_CUT: Final = "…"


@frozen
class Revocation:
    """Who broke a lease, and why."""

    by: str
    reason: str


@frozen
class Record:
    """What a lock's record says while it is held.

    holder is the identity that ownership is compared by (owner and nonce). ttl is seconds, fixed at the grant; None
    in the records of other implementations. ended: nobody holds it any more, whatever its age; the record only tells
    the next holder how the lease went. unused: nobody worked under it. before: what its holder is told of the lease
    before, where that is not what a free key says. acquired_at, expires_at, alert_at, auto_unlock_at are seconds since
    the epoch by the writer's wall clock: for people and foreign readers only, never for a decision of ours. What is for
    people alone and is beyond a calendar (or a lifetime, or the numbers of processes) is left out. Text is in one line
    and clean, but for the lines of a backtrace.
    """

    holder: str
    ttl: float | None
    owner: str = ""
    acquired_at: float | None = None
    expires_at: float | None = None
    purpose: str | None = None
    expected: float | None = None
    alert_at: float | None = None
    auto_unlock_at: float | None = None
    progress: str | None = None
    token: int | None = None
    closing: bool = False
    revoked: Revocation | None = None
    lock_delay: float = 0.0
    host: str | None = None
    pid: int | None = None
    where: str | None = None
    backtrace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    tombstone: bool = False
    ended: bool = False
    unused: bool = False
    before: PreviousLease | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_foreign(self) -> bool:
        """Whether another implementation wrote it."""
        return self.ttl is None

    @property
    def is_ending(self) -> bool:
        """Whether nobody may extend it any more."""
        return self.closing or self.ended or self.revoked is not None


_TEXTS: Final = ("owner", "purpose", "progress", "host", "where", "backtrace")
_FLAGS: Final = ("closing", "tombstone", "ended", "unused")
_INSTANTS: Final = ("acquired_at", "expires_at", "alert_at", "auto_unlock_at")
_NUMBERS: Final = (*_INSTANTS, "expected")


def encode(record: Record) -> dict[str, str]:
    """Write a record as fields that stay below 8 KiB in all; what is too long is cut, the backtrace first."""
    return truncated(encoded_unbounded(record))


def encoded_unbounded(record: Record) -> dict[str, str]:
    """Write a record as fields of any size, for who adds some more before they are `truncated`."""
    fields = dict(record.unknown)
    fields["v"] = str(VERSION)
    fields["identity"] = record.holder
    if record.ttl is not None:
        fields["ttl"] = number(record.ttl)
    for name in _TEXTS:
        text = getattr(record, name)
        if text:
            fields[name] = progress_text(text) if name == "progress" else clean_lines(text)
    for name in _NUMBERS:
        value = getattr(record, name)
        if value is not None:
            fields[name] = number(value)
    if record.token is not None:
        fields["token"] = str(record.token)
    for name in _FLAGS:
        if getattr(record, name):
            fields[name] = "1"
    fields.update(_ended_how(record))
    if record.lock_delay:
        fields["lock_delay"] = number(record.lock_delay)
    if record.pid is not None:
        fields["pid"] = str(record.pid)
    if record.labels:
        labels = {clean(key): clean(text) for key, text in record.labels.items()}
        fields["labels"] = json.dumps(labels, ensure_ascii=False, separators=(",", ":"))
    return fields


def _ended_how(record: Record) -> dict[str, str]:
    said = {} if record.revoked is None else {"revoked": revocation_text(record.revoked)}
    return said if record.before is None else {**said, "before": previous_lease_text(record.before)}


def decode(name: Name, fields: Mapping[str, str], *, foreign: bool = False) -> Record:
    """Read a record; StoreRefused, naming the key, if it is damaged, not ours, or of a newer major version.

    foreign: records without our version are other implementations' locks and respected as such. Text is cleaned here,
    once, and numbers are bounded: anybody who may write to the store may have written them.
    """
    version = fields.get("v")
    if version is None:
        if foreign:
            return _decode_foreign(name, fields)
        raise StoreRefused(f"the record of {name.key!r} was not written by lockstead; move it, or use another key")
    major = _major(version)
    if major is None:
        raise StoreRefused(
            f"the record of {name.key!r} is damaged or not ours: v is {version[:40]!r}; remove it by hand, or take "
            "another key"
        )
    if major > VERSION:
        raise StoreRefused(
            f"the record of {name.key!r} has version {clean(version[:40])}, this lockstead reads {VERSION}: "
            "upgrade this process"
        )
    # a waiter decodes with every poll, so only what is there is looked at
    values: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for key, text in fields.items():
        known = _READERS.get(key)
        if known is not None:
            attribute, reader = known
            values[attribute] = reader(name, key, text)
        elif key != "v":
            unknown[key] = text
    if values.get("ttl") is None or not values.get("holder"):
        missing = "ttl" if values.get("ttl") is None else "identity"
        raise _unreadable(name, clean(fields.get(DAMAGE, f"it has no {missing}")[:200]))
    if sum(map(len, fields)) + sum(map(len, fields.values())) > RECORD_BYTES_MAX:
        raise _unreadable(name, TOO_LARGE)
    return Record(**values, unknown=unknown)


def _decode_foreign(name: Name, fields: Mapping[str, str]) -> Record:
    """Read another implementation's record: what it says beyond the two fields we share is kept for people to see."""
    identity = clean(fields.get("identity", ""))
    others = {
        clean(key): clean(text) for key, text in fields.items() if key not in ("identity", "expires_at", "revoked")
    }
    return Record(
        holder=identity,
        ttl=None,
        owner=identity,
        expires_at=_foreign_expiry(name, fields.get("expires_at")),
        revoked=_foreign_revocation(name, fields.get("revoked")),
        labels=others,
        unknown=dict(fields),
    )


def _foreign_expiry(name: Name, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return _number(name, "expires_at", text)
    except StoreRefused:
        raise StoreRefused(
            f"the record of {name.key!r}, written by another program, is damaged: expires_at is {text[:40]!r}; "
            "find out whose it is and remove it by hand"
        ) from None


def _foreign_revocation(name: Name, text: str | None) -> Revocation | None:
    """Read what our own `break_lease` left in it; a field of theirs that is called alike says nothing to us."""
    if text is None:
        return None
    try:
        return _revocation(name, "revoked", text)
    except StoreRefused:
        return None


def is_ours(fields: Mapping[str, str]) -> bool:
    """Return whether lockstead wrote a record, in a version that this one reads, however damaged it is."""
    major = _major(fields.get("v", ""))
    return major is not None and major <= VERSION


_MAJOR: Final = re.compile(r"([0-9]{1,9})(\..*)?", re.DOTALL)
"""Not `isdigit`, which takes superscripts for digits, and not any length: `int` refuses thousands of them."""


def _major(version: str) -> int | None:
    found = _MAJOR.fullmatch(version)
    return None if found is None else int(found[1])


def revocation_text(revoked: Revocation) -> str:
    """Write who broke a lease and why as one field of a bounded size."""
    by, reason = shortened(clean(revoked.by), BY_BYTES_MAX), shortened(clean(revoked.reason), REVOKED_BYTES_MAX)
    while (over := len((text := _revocation_text(by, reason)).encode()) - REVOKED_BYTES_MAX) > 0:
        # in JSON a character of a clean text takes twice its bytes at the most
        reason = shortened(reason, len(reason.encode()) - (over + 1) // 2)
    return text


def _revocation_text(by: str, reason: str) -> str:
    return json.dumps({"by": by, "reason": reason}, ensure_ascii=False, separators=(",", ":"))


def progress_text(text: str) -> str:
    """Write how far the work is as one field of a bounded size."""
    return shortened(clean(text[:PROGRESS_BYTES_MAX]), PROGRESS_BYTES_MAX)


def shortened(text: str, most: int) -> str:
    """Return a clean text in at most so many bytes; one that is cut ends with a mark, if there is room for more."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    kept = raw[: max(0, most - len(_CUT.encode()))].decode("utf-8", "ignore")
    return kept and kept + _CUT


def previous_lease_text(before: PreviousLease) -> str:
    """Write how the lease before ended, and whose it was, as one field of a bounded size."""
    owner, holder = clean(before.owner[:NAMED_MAX]), clean(before.holder[:NAMED_MAX])
    said = {"ending": before.ending.value, "owner": owner, "holder": holder}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def number(value: float) -> str:
    """Write a number with microseconds at the most, without an exponent."""
    text = f"{value:.6f}"
    return text if text[-1] != "0" else text.rstrip("0").rstrip(".")


def with_timestamps(command: Command[Any], wall_now: float, clock: StoreClock = StoreClock.ONE_CLOCK) -> Command[Any]:
    """Add what people read to a command that writes a lock's life: `acquired_at`, `expires_at`.

    No `expires_at` where a server drops what is not renewed: a renewal there writes nothing, and an old one would lie.

    wall_now is seconds since the epoch on the writer's wall clock. Called by the driver just before the send, since
    a script has no wall clock. It is also why an Extend changes a value even when nothing else does.
    """
    match command:
        case Remove() | Read():
            return command
        case Create() if command.lifetime:
            fields = _granted(command.fields, command.lifetime, wall_now, clock)
            lifetime, waiter_id, min_retention = command.lifetime, command.waiter_id, command.min_retention
            return Create(
                command.name, fields, lifetime, waiter_id, min_retention, command.renew_every, command.forgotten
            )
        case Replace() if command.lifetime:
            fields = _granted(command.fields, command.lifetime, wall_now, clock)
            expected, lifetime = (command.incarnation, command.revision), command.lifetime
            return Replace(
                command.name, fields, *expected, lifetime, command.waiter_id, command.min_retention, command.renew_every
            )
        case Extend() if command.lifetime and clock is not StoreClock.SERVER_EXPIRES:
            fields = {**command.fields, "expires_at": number(wall_now + command.lifetime)}
            return Extend(command.name, fields, command.incarnation, command.revision, command.lifetime)
        case _:
            return command


def _granted(fields: Mapping[str, str], lifetime: float, wall_now: float, clock: StoreClock) -> dict[str, str]:
    granted = {**fields, "acquired_at": number(wall_now)}
    if clock is not StoreClock.SERVER_EXPIRES:
        granted["expires_at"] = number(wall_now + lifetime)
    for field_name in ("alert_at", "auto_unlock_at"):
        after = fields.get(field_name)
        if after is not None:
            granted[field_name] = number(wall_now + float(after))
    return granted


def truncated(fields: dict[str, str]) -> dict[str, str]:
    """Cut what is too long, so that a store takes the fields and what is written later: the backtrace first."""
    # no character takes more than four bytes, so nearly every record is seen to fit without being encoded
    if 4 * (sum(map(len, fields)) + sum(map(len, fields.values()))) <= ROOM:
        return fields
    over = _size(fields) - ROOM
    for name in ("backtrace", "labels", "purpose", "where"):
        if over <= 0:
            break
        text = fields.get(name)
        if text is None:
            continue
        kept = "" if name == "labels" else shortened(text, len(text.encode()) - over)
        if kept:
            fields[name] = kept
        else:
            del fields[name]
        over = _size(fields) - ROOM
    return fields


def _size(fields: Mapping[str, str]) -> int:
    """Count the bytes of fields, without those that have room of their own."""
    counted = ((key, value) for key, value in fields.items() if key not in ("progress", "revoked"))
    return sum(len(key.encode()) + len(value.encode()) for key, value in counted)


def _damaged(name: Name, what: str, text: str) -> StoreRefused:
    return _unreadable(name, f"{what} is {text[:40]!r}")


def _unreadable(name: Name, why: str) -> StoreRefused:
    return StoreRefused(f"the record of {name.key!r} is damaged: {why}; break it with now=True (--now)")


def _text(_: Name, __: str, text: str) -> str:
    return clean(text)


def _lines(_: Name, __: str, text: str) -> str:
    return clean_lines(text)


def _flag(_: Name, __: str, text: str) -> bool:
    return text == "1"


def _number(name: Name, what: str, text: str) -> float:
    value = decimal(text)
    if value is None:
        raise _damaged(name, what, text)
    return value


def _instant(name: Name, what: str, text: str) -> float | None:
    return on_calendar(_number(name, what, text))


def _lifetime(name: Name, what: str, text: str) -> float | None:
    value = _number(name, what, text)
    return value if 0 <= value <= DURATION_MAX else None


def _life(name: Name, what: str, text: str) -> float:
    """Read how long others must leave a record alone: longer than we write it is damage, for it blocks forever."""
    value = _number(name, what, text)
    if not 0 <= value <= (DURATION_MAX if what == "ttl" else LOCK_DELAY_MAX):
        raise _damaged(name, what, text)
    return value


def _whole(name: Name, what: str, text: str) -> int:
    value = whole(text)
    if value is None:
        raise _damaged(name, what, text)
    return value


def _process(name: Name, what: str, text: str) -> int | None:
    value = _whole(name, what, text)
    return value if value <= PID_MAX else None


def _revocation(name: Name, what: str, text: str) -> Revocation:
    try:
        said = json.loads(text)
        return Revocation(by=clean(str(said["by"])), reason=clean(str(said["reason"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(name, what, text) from None


def _predecessor(_: Name, __: str, text: str) -> PreviousLease:
    """Read `previous_lease_text`. What nobody can read says that the end is unknown: it keeps nobody from the lock."""
    try:
        said = json.loads(text)
        names = {what: clean(said[what][:NAMED_MAX]) for what in ("owner", "holder") if isinstance(said.get(what), str)}
        return PreviousLease(LeaseOutcome(said["ending"]), **names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return PreviousLease(LeaseOutcome.UNKNOWN)


def _labels(name: Name, what: str, text: str) -> Mapping[str, str]:
    try:
        said = json.loads(text)
        if isinstance(said, dict):
            return {clean(str(key)): clean(str(value)) for key, value in said.items()}
    except (ValueError, RecursionError):
        pass
    raise _damaged(name, what, text)


_READERS: Final[dict[str, tuple[str, Callable[[Name, str, str], Any]]]] = {
    "identity": ("holder", _text),
    **{name: (name, _text) for name in _TEXTS},
    "backtrace": ("backtrace", _lines),
    **{name: (name, _instant) for name in _INSTANTS},
    "expected": ("expected", _lifetime),
    **{name: (name, _life) for name in ("ttl", "lock_delay")},
    "token": ("token", _whole),
    "pid": ("pid", _process),
    **{name: (name, _flag) for name in _FLAGS},
    "revoked": ("revoked", _revocation),
    "before": ("before", _predecessor),
    "labels": ("labels", _labels),
}
"""What a field is called in a `Record`, and how it is read."""
