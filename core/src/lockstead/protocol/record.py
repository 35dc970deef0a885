"""A lock's record, and its encoding as a flat map of text, the same in every store.

Must not know which store holds the map. Unknown fields are kept; a newer major version is refused; a damaged record is
never treated as free.
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
    traceparent,
    whole,
)
from lockstead.settings import LOCK_DELAY_MAX
from lockstead.values import (
    DURATION_MAX,
    EXCLUSIVE,
    HEIR_BYTES_MAX,
    PERMITS_MAX,
    SHARED,
    VALUE_BYTES_MAX,
    LeaseOutcome,
    Name,
    PreviousLease,
)

VERSION: Final = 1
PID_MAX: Final = 2**31 - 1
PROGRESS_BYTES_MAX: Final = 1000
"""Maximum bytes of the progress text as stored."""
REVOKED_BYTES_MAX: Final = 1024
"""Maximum bytes of the revocation (who broke a lease and why) as stored."""
BY_BYTES_MAX: Final = 200
"""Maximum bytes of the name in a revocation, which leaves room for the reason."""
_RESERVED: Final = {"progress": PROGRESS_BYTES_MAX, "revoked": REVOKED_BYTES_MAX, "value": VALUE_BYTES_MAX}
ROOM: Final = FIELDS_BYTES_MAX - len("progressrevoked") - PROGRESS_BYTES_MAX - REVOKED_BYTES_MAX - 256
"""Bytes for the other fields of a new record.

The rest is for fields that are written later: the progress, a revocation, and 256 bytes that drivers and renewals add.
"""
_ROOM_OF_LEADER: Final = ROOM - len("value") - VALUE_BYTES_MAX
"""The same for a leader's record, whose value may be changed later."""
WANTED_BYTES_MAX: Final = 600
"""Maximum bytes of the name of the writer that waits for readers."""
NAMED_MAX: Final = 200
"""Maximum characters of each name of the previous lease in a record."""
READERS: Final = "readers"
_CUT: Final = "…"


@frozen
class Revocation:
    """Who broke a lease, and why."""

    by: str
    reason: str


@frozen
class Record:
    """The decoded record of a lock.

    holder: the identity for comparing ownership (owner and nonce). ttl: seconds, fixed at the grant; None in records of
    other implementations. ended: the lease is over, whatever the record's age; it only informs the next holder. unused:
    no work was done under it. before: the previous lease that its holder learned of, if not the default for a free key.
    mode: "exclusive", or "shared" for a group of readers: their registrations are the members of this record. Any other
    word is of a later version: the record is respected until its time is up. wanted: the writer that waits for the
    readers, and the number of its last sign of life; empty if none waits.
    traceparent: the position of the holder's trace, by W3C Trace Context; an invalid one is left out.
    value: what a leader advertises; None in the record of a lock that elects no leader. heir: the owner that an ended
    record is left to for a moment.
    acquired_at, expires_at, alert_at, auto_unlock_at: seconds since the epoch by the writer's wall clock, for people
    and foreign readers only, never for a decision. Informational values outside their range (dates, durations, pids)
    are left out. Text is one clean line, except for a backtrace.
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
    mode: str = EXCLUSIVE
    wanted: str = ""
    value: str | None = None
    heir: str | None = None
    traceparent: str | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_foreign(self) -> bool:
        """Return whether another implementation wrote the record."""
        return self.ttl is None

    @property
    def is_exclusive(self) -> bool:
        """Return whether one holder has the lock for itself."""
        return self.mode == EXCLUSIVE

    @property
    def is_group(self) -> bool:
        """Return whether the record is that of a group of readers."""
        return self.mode == SHARED

    @property
    def shown_owner(self) -> str:
        """Return who holds the lock, for people."""
        return READERS if self.is_group else self.owner or self.holder

    @property
    def wanted_by(self) -> str:
        """Return the writer that waits for the readers, as `wanted_text` gives it; empty if none does."""
        return self.wanted.rpartition("#")[0] or self.wanted

    @property
    def is_ending(self) -> bool:
        """Return whether the record must no longer be extended."""
        return self.closing or self.ended or self.revoked is not None


_TEXTS: Final = ("owner", "purpose", "progress", "host", "where", "wanted", "backtrace")
_BOUNDED: Final = {"value": VALUE_BYTES_MAX, "heir": HEIR_BYTES_MAX}
_FLAGS: Final = ("closing", "tombstone", "ended", "unused")
_INSTANTS: Final = ("acquired_at", "expires_at", "alert_at", "auto_unlock_at")
_NUMBERS: Final = (*_INSTANTS, "expected")


def encode(record: Record) -> dict[str, str]:
    """Encode a record as fields of less than 8 KiB in all; long values are truncated, the backtrace first."""
    return truncated(encoded_unbounded(record))


def encoded_unbounded(record: Record) -> dict[str, str]:
    """Encode a record as fields of any size, to which more are added before they are `truncated`."""
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
    fields.update(_of_holder(record) | _ended_how(record))
    if not record.is_exclusive:
        fields["mode"] = record.mode
    if record.lock_delay:
        fields["lock_delay"] = number(record.lock_delay)
    if record.pid is not None:
        fields["pid"] = str(record.pid)
    if record.labels:
        labels = {clean(key): clean(text) for key, text in record.labels.items()}
        fields["labels"] = json.dumps(labels, ensure_ascii=False, separators=(",", ":"))
    return fields


def _of_holder(record: Record) -> dict[str, str]:
    said = {name: getattr(record, name) for name in _BOUNDED}
    fields = {name: shortened(clean(text), _BOUNDED[name]) for name, text in said.items() if text is not None}
    return fields if record.traceparent is None else {**fields, "traceparent": record.traceparent}


def _ended_how(record: Record) -> dict[str, str]:
    fields = {} if record.revoked is None else {"revoked": revocation_text(record.revoked)}
    return fields if record.before is None else {**fields, "before": previous_lease_text(record.before)}


def decode(name: Name, fields: Mapping[str, str], *, foreign: bool = False) -> Record:
    """Decode a record; StoreRefused, naming the key, if it is damaged, not ours, or of a newer major version.

    foreign: records without our version are locks of other implementations and respected as such. Text is cleaned and
    numbers are bounded here: any client with write access to the store may have written them.
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
        if is_gate(fields):
            permits = permits_text(gate_limit(name.key, fields))
            raise KeyIsSemaphore(
                f"{name.key!r} is a semaphore with {permits}; use lockstead.Semaphore (at the command line run -n, "
                "break --slot, permits), or another key"
            )
        raise StoreRefused(
            f"the record of {name.key!r} has version {clean(version[:40])}, this lockstead reads {VERSION}: "
            "upgrade this process"
        )
    # a waiter decodes with every poll, so only existing fields are processed
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


GATE_VERSION: Final = 2


class KeyIsSemaphore(StoreRefused):
    """The key is that of a semaphore, not of a lock."""


def is_gate(fields: Mapping[str, str]) -> bool:
    """Return whether a record is the gate of a semaphore. Its version keeps clients away that know locks only."""
    return _major(fields.get("v", "")) == GATE_VERSION and fields.get("mode") == "permits"


def gate_limit(key: str, fields: Mapping[str, str]) -> int:
    """Return the limit in the gate of a semaphore; StoreRefused if it is damaged."""
    limit = whole(fields.get("limit", ""))
    if limit is None or limit > PERMITS_MAX:
        said = clean(fields.get(DAMAGE, f"its limit is {fields.get('limit', '')[:40]!r}")[:200])
        raise StoreRefused(
            f"the semaphore {key!r} is damaged: {said}; set its limit: semaphore.resize(n), lockstead permits --set N"
        )
    return limit


def permits_text(limit: int) -> str:
    """Format a number of permits: "3 permits"."""
    return "1 permit" if limit == 1 else f"{limit} permits"


def _decode_foreign(name: Name, fields: Mapping[str, str]) -> Record:
    """Decode another implementation's record: fields beyond the two shared ones become labels."""
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
    """Decode the revocation that our own `break_lease` wrote; ignore another program's field of that name."""
    if text is None:
        return None
    try:
        return _revocation(name, "revoked", text)
    except StoreRefused:
        return None


def is_ours(fields: Mapping[str, str]) -> bool:
    """Return whether lockstead wrote a record in a readable version, however damaged it is."""
    major = _major(fields.get("v", ""))
    return major is not None and major <= VERSION


_MAJOR: Final = re.compile(r"([0-9]{1,9})(\..*)?", re.DOTALL)
"""Not `isdigit`, which accepts superscripts, and of bounded length: `int` rejects thousands of digits."""


def _major(version: str) -> int | None:
    found = _MAJOR.fullmatch(version)
    return None if found is None else int(found[1])


def revocation_text(revoked: Revocation) -> str:
    """Encode a revocation as one field of bounded size."""
    by, reason = shortened(clean(revoked.by), BY_BYTES_MAX), shortened(clean(revoked.reason), REVOKED_BYTES_MAX)
    while (over := len((text := _revocation_text(by, reason)).encode()) - REVOKED_BYTES_MAX) > 0:
        # in JSON a character of a clean text takes at most twice its bytes
        reason = shortened(reason, len(reason.encode()) - (over + 1) // 2)
    return text


def _revocation_text(by: str, reason: str) -> str:
    return json.dumps({"by": by, "reason": reason}, ensure_ascii=False, separators=(",", ":"))


def progress_text(text: str) -> str:
    """Encode the progress as one field of bounded size."""
    return shortened(clean(text[:PROGRESS_BYTES_MAX]), PROGRESS_BYTES_MAX)


def shortened(text: str, most: int) -> str:
    """Return a clean text of at most `most` bytes; a truncated one ends with an ellipsis, if there is room."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    kept = raw[: max(0, most - len(_CUT.encode()))].decode("utf-8", "ignore")
    return kept and kept + _CUT


def previous_lease_text(before: PreviousLease) -> str:
    """Encode the outcome of the previous lease as one field of bounded size."""
    owner, holder = clean(before.owner[:NAMED_MAX]), clean(before.holder[:NAMED_MAX])
    fields = {"ending": before.ending.value, "owner": owner, "holder": holder}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def wanted_text(writer: str, sign: int | None = None) -> str:
    """Encode the mark of a writer that waits for readers, of bounded size; without a sign of life only its name."""
    name = shortened(clean(writer), WANTED_BYTES_MAX)
    return name if sign is None else f"{name}#{sign}"


def number(value: float) -> str:
    """Format a number with at most six decimals, without an exponent."""
    text = f"{value:.6f}"
    return text if text[-1] != "0" else text.rstrip("0").rstrip(".")


def with_timestamps(command: Command[Any], wall_now: float, clock: StoreClock = StoreClock.ONE_CLOCK) -> Command[Any]:
    """Return a command with a lifetime with the informational `acquired_at` and `expires_at` added.

    No `expires_at` is added if the server drops expired records: renewals then write nothing, so it would become wrong.

    wall_now: seconds since the epoch on the writer's wall clock. Called by the driver just before the send, since a
    script has no wall clock. It also makes every Extend change a value.
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
    """Truncate long fields, the backtrace first, so that the store accepts the record and fields added later."""
    # a character takes at most four bytes, so most records need not be encoded to see that they fit
    room = _ROOM_OF_LEADER if "value" in fields else ROOM
    if 4 * (sum(map(len, fields)) + sum(map(len, fields.values()))) <= room:
        return fields
    over = _size(fields) - room
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
        over = _size(fields) - room
    return fields


def _size(fields: Mapping[str, str]) -> int:
    """Count the bytes of all fields except those with a reserved size."""
    counted = ((key, value) for key, value in fields.items() if key not in _RESERVED)
    return sum(len(key.encode()) + len(value.encode()) for key, value in counted)


def _damaged(name: Name, what: str, text: str) -> StoreRefused:
    return _unreadable(name, f"{what} is {text[:40]!r}")


def _unreadable(name: Name, why: str) -> StoreRefused:
    return StoreRefused(f"the record of {name.key!r} is damaged: {why}; break it with now=True (--now)")


def _text(_: Name, __: str, text: str) -> str:
    return clean(text)


def _bounded(_: Name, what: str, text: str) -> str:
    most = _BOUNDED[what]
    return shortened(clean(text[: most + 1]), most)


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
    """Decode a ttl or lock-delay: a value longer than lockstead writes is damage, since it would block forever."""
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
        fields = json.loads(text)
        return Revocation(by=clean(str(fields["by"])), reason=clean(str(fields["reason"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(name, what, text) from None


def _predecessor(_: Name, __: str, text: str) -> PreviousLease:
    """Decode `previous_lease_text`. An invalid value means an unknown outcome and does not block the lock."""
    try:
        fields = json.loads(text)
        names = {one: clean(fields[one][:NAMED_MAX]) for one in ("owner", "holder") if isinstance(fields.get(one), str)}
        return PreviousLease(LeaseOutcome(fields["ending"]), **names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return PreviousLease(LeaseOutcome.UNKNOWN)


def _traceparent(_: Name, __: str, text: str) -> str | None:
    return traceparent(text)


def _labels(name: Name, what: str, text: str) -> Mapping[str, str]:
    try:
        labels = json.loads(text)
        if isinstance(labels, dict):
            return {clean(str(key)): clean(str(value)) for key, value in labels.items()}
    except (ValueError, RecursionError):
        pass
    raise _damaged(name, what, text)


_READERS: Final[dict[str, tuple[str, Callable[[Name, str, str], Any]]]] = {
    "identity": ("holder", _text),
    **{name: (name, _text) for name in _TEXTS},
    **{name: (name, _bounded) for name in _BOUNDED},
    "backtrace": ("backtrace", _lines),
    **{name: (name, _instant) for name in _INSTANTS},
    "expected": ("expected", _lifetime),
    **{name: (name, _life) for name in ("ttl", "lock_delay")},
    "token": ("token", _whole),
    "pid": ("pid", _process),
    **{name: (name, _flag) for name in _FLAGS},
    "revoked": ("revoked", _revocation),
    "before": ("before", _predecessor),
    "mode": ("mode", _text),
    "labels": ("labels", _labels),
    "traceparent": ("traceparent", _traceparent),
}
"""For each field: the attribute of `Record`, and its decoder."""
