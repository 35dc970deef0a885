"""Values: names, sequencers, tickets, the outcome of a previous lease, durations. All immutable, all without I/O.

Must not know how a store encodes any of them. Naming a lock imports this module, so what tickets need is imported
with the first ticket.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Self, TypeAlias

Duration: TypeAlias = "float | int | str | timedelta"
"""Seconds, a `timedelta`, or text: "300", "5m", "1h30m", "250ms", or ISO 8601 ("PT5M")."""

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 1024
"""Maximum bytes of the value that a leader advertises."""
HEIR_BYTES_MAX: Final = 200
"""Maximum bytes of the owner that a leader names as its heir."""
DURATION_MAX: Final = 100 * 365.25 * 86400.0


EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"


class Space(Enum):
    """The kinds of record that a store keeps apart, so that no key of a user can reach a reserved name."""

    LOCK = "lock"
    MEMBER = "member"
    COMPANION = "companion"
    AUDIT = "audit"
    PERMIT = "permit"

    # a member is one object, and every look into a store hashes one: by identity it costs a tenth of hashing its name
    __hash__ = object.__hash__

    @property
    def is_lock(self) -> bool:
        """Return whether a record here is a lock: its grants are counted by tokens, and it is waited for."""
        return self is Space.LOCK or self is Space.PERMIT


PERMITS_MAX: Final = 10_000
"""Maximum limit of a semaphore: a waiter lists all its slots."""

TURN: Final = "turn"
"""The part of the permit record that waiters acquire in turn; the other permit records of a key are its slots."""
TURN_TTL: Final = 30.0
"""Maximum ttl of the turn, in seconds: whatever its record says, it is over when it has not changed for so long."""


SCRATCH_KEY: Final = "lockstead-doctor"
"""The reserved key of the records that `doctor` writes, all in the space of members; a listing of locks shows none."""
BENCH_PREFIX: Final = "lockstead-bench"
"""What the keys of `bench` begin with."""


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a record in a store: a user's key, the kind of record, and a part.

    part is empty except for members (incarnation/nonce), audit entries (instant-nonce) and permits ("0", "1", "turn").
    """

    key: str
    space: Space = Space.LOCK
    part: str = ""

    @property
    def is_slot(self) -> bool:
        """Return whether the record is one of the slots of a key, any of which serves a waiter."""
        return self.space is Space.PERMIT and self.part != TURN

    @property
    def is_turn(self) -> bool:
        """Return whether the record is the turn of the waiters for a permit."""
        return self.part == TURN and self.space is Space.PERMIT

    @property
    def topic(self) -> Name:
        """Return what a subscriber to this record is notified of: the record itself, or all slots of its key."""
        return Name(self.key, Space.PERMIT) if self.is_slot else self


@dataclass(frozen=True, slots=True)
class Sequencer:
    """Fencing token, mode and key as one string that a resource can check: `token:mode:key`.

    mode: "exclusive", "shared", or "permit/2" for the slot 2 of a semaphore; ValueError for any other.
    It orders holders; it does not prove who holds the lock now. Source: Chubby, OSDI 2006, section 2.4.
    """

    key: str
    token: int
    mode: str = EXCLUSIVE

    def __post_init__(self) -> None:
        if not _MODE.fullmatch(self.mode):
            raise ValueError(f"the mode of a sequencer is exclusive, shared or permit/N, not {_shown(self.mode)}")

    def __str__(self) -> str:
        return f"{self.token}:{self.mode}:{self.key}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the output of `str`; ValueError if it is not a sequencer, TypeError if it is not text."""
        if not isinstance(text, str):
            raise TypeError(f"a sequencer is text, not {type(text).__name__}; pass what lease.sequencer() gave")
        found = _SEQUENCER.fullmatch(text)
        if found is None:
            raise ValueError(
                f"not a sequencer: {_shown(text)}; expected token:mode:key, as in '7:exclusive:apt', "
                "with the mode exclusive, shared or permit/N"
            )
        return cls(key=checked_key(found["key"]), token=int(found["token"]), mode=found["mode"])

    @classmethod
    def of(cls, name: Name, token: int, mode: str) -> Self:
        """Return the sequencer of a lease in this mode, whose record has this name."""
        return cls(name.key, token, mode if name.space is Space.LOCK else f"permit/{name.part}")

    @property
    def is_permit(self) -> bool:
        """Return whether it names a slot of a semaphore."""
        return self.mode.startswith("permit/")

    @property
    def name(self) -> Name:
        """The name of the record whose grants the token counts."""
        return Name(self.key, Space.PERMIT, self.mode.rpartition("/")[2]) if self.is_permit else Name(self.key)

    @property
    def fence(self) -> str:
        """What a resource compares tokens under: one name for readers and writers of a key, one for each slot."""
        return f"{self.mode if self.is_permit else 'lock'}:{self.key}"

    @property
    def rank(self) -> tuple[int, str]:
        """Token and mode: greater for a later holder, and for a reader than for a writer with the same token.

        A lease keeps its token when it is downgraded; from the first reader on nobody may write with that token.
        """
        return self.token, self.mode


_PERMIT: Final = re.compile(r"permit/(0|[1-9][0-9]{0,8})")
_MODE: Final = re.compile(rf"{EXCLUSIVE}|{SHARED}|permit/(?:0|[1-9][0-9]{{0,8}})")
_SEQUENCER: Final = re.compile(rf"(?P<token>[0-9]{{1,40}}):(?P<mode>{_MODE.pattern}):(?P<key>.+)", re.DOTALL)

TICKET_VERSION: Final = 2
"""The highest version; tickets of exclusive leases are written as version 1."""
TICKET_PREFIX: Final = "lockstead1."
TICKET_CHARACTERS_MAX: Final = 65536
"""Maximum length of a ticket. Its text may come from anyone; a real one has a few hundred characters."""

_TICKET: Final = re.compile(r"lockstead([0-9]{1,9})\.")


@dataclass(frozen=True, slots=True)
class LeaseTicket:
    """What another process needs to use a lease. `str` returns text that fits an environment variable.

    store is the store's URL without credentials; ttl is in seconds. A ticket names a lease: it is not a secret, and
    does not prove that the lease is still held. mode: of the lease. group, registration: of a shared one, the identity
    in its record and the incarnation of the registration of the reader that made the ticket. slot: of a permit.
    """

    store: str
    key: str
    holder: str
    incarnation: str
    ttl: float
    mode: str = EXCLUSIVE
    group: str = ""
    registration: str = ""
    slot: int | None = None

    @property
    def name(self) -> Name:
        """The name of the lease's record."""
        return Name(self.key) if self.slot is None else Name(self.key, Space.PERMIT, str(self.slot))

    def __str__(self) -> str:
        import base64
        import json

        fields: list[str | float] = [self.store, self.key, self.holder, self.incarnation, self.ttl]
        version = 1
        if self.mode != EXCLUSIVE or self.slot is not None:
            # a client that knows only exclusive locks must refuse it
            mode = self.mode if self.slot is None else f"permit/{self.slot}"
            fields += [mode, self.group, self.registration]
            version = TICKET_VERSION
        body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        return f"lockstead{version}." + base64.urlsafe_b64encode(_sum(body) + body).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str | LeaseTicket) -> LeaseTicket:
        """Parse the output of `str`; ValueError if it is not a ticket, is damaged, or has another major version.

        TypeError if it is not text. Fields that a later version of this major appends are ignored.
        """
        if isinstance(text, LeaseTicket):
            return text
        if not isinstance(text, str):
            raise TypeError(f"a lease ticket is text, not {type(text).__name__}; pass what detach() returned")
        _check_version(text)
        said = _ticket_fields(text)
        if said is None:
            raise ValueError(f"not a lease ticket: {_shown(text)}; expected the whole text, as in '{TICKET_PREFIX}...'")
        return cls(*said)


def _ticket_fields(text: str) -> tuple[Any, ...] | None:
    """Return the fields of a ticket's text; None if a character of it is missing or changed."""
    import base64
    import json

    found = _TICKET.match(text)
    if found is None or len(text) > TICKET_CHARACTERS_MAX:
        return None
    encoded = text[found.end() :]
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        if raw[:4] == _sum(raw[4:]):
            raw = raw[4:]
        elif raw[:1] != b"[":  # the first tickets carried no sum: they are the array itself
            return None
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    match fields:
        case [str(store), str(key), str(holder), str(incarnation), int() | float() as ttl, *later] if ttl is not True:
            # an empty expectation would be none at all, and whatever stands there would be removed
            whole = store and key and holder and incarnation and len(key.encode(errors="replace")) <= KEY_BYTES_MAX
            # these words reach logs and terminals, and a number beyond every float is one of JSON's
            if whole and (key + holder + incarnation).isprintable() and 0 < ttl <= DURATION_MAX:
                said = store, key, holder, incarnation, float(ttl)
                return said if found[1] == "1" else _with_mode(said, later)
    return None


def _with_mode(said: tuple[Any, ...], later: list[Any]) -> tuple[Any, ...] | None:
    """Return the fields of a ticket of version 2; None if its mode is not known."""
    match later:
        case ["shared", str(group), str(registration), *_] if group and registration:
            return (*said, SHARED, group, registration) if (group + registration).isprintable() else None
        case [str(mode), *_] if (found := _PERMIT.fullmatch(mode)) is not None:
            return (*said, EXCLUSIVE, "", "", int(found[1]))
    return None


def _sum(body: bytes) -> bytes:
    import zlib

    return zlib.crc32(body).to_bytes(4, "big")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:24] + "…")


def _check_version(ticket: str) -> None:
    found = _TICKET.match(ticket)
    if found is None or found[1] in ("1", "2"):
        return
    version = int(found[1])
    way_out = "upgrade this process" if version > TICKET_VERSION else "issue a new one"
    raise ValueError(f"the lease ticket has version {version}, this lockstead reads {TICKET_VERSION}: {way_out}")


class LeaseOutcome(Enum):
    """How the previous lease ended."""

    CLEAN = "CLEAN"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_unclean(self) -> bool:
        """Return whether work may have stopped half done; False for UNKNOWN, which proves nothing."""
        return self in (LeaseOutcome.EXPIRED, LeaseOutcome.REVOKED)


@dataclass(frozen=True, slots=True)
class PreviousLease:
    """How the previous lease ended, and its holder. After anything but CLEAN, repair what it may have left half
    done.

    CLEAN: released by its holder, or never held; also if it was broken and its section returned before it noticed.
    REVOKED: broken by an operator, whether its holder noticed and stopped, was cut off at once, or never came back.
    EXPIRED: its holder died, or lost it without an operator's action. UNKNOWN: this is a member, or the server
    itself removes the record of a holder that died (`StoreClock.SERVER_EXPIRES`; Redis after a week), so that a free
    key proves nothing. A lease under which no work was done is skipped, if it was released or swept.
    """

    ending: LeaseOutcome
    owner: str = ""
    holder: str = ""


_PIECES: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_ISO_8601: Final = "P(?=[0-9T]){}{}{}{}(?:T(?=[0-9]){}{}{})?".format(
    *(f"(?:([0-9]+(?:[.,][0-9]+)?){unit})?" for unit in "YMWDHMS")
)
_ISO_UNITS: Final = (365 * 86400.0, 30 * 86400.0, 7 * 86400.0, 86400.0, 3600.0, 60.0, 1.0)
"""Seconds of each unit of an ISO 8601 duration; a year has 365 days, a month 30."""


def seconds(value: Duration, what: str) -> float:
    """Return a duration in seconds; ValueError or TypeError, whose message names `what`, if it is not one.

    Durations are finite, not negative, and at most 100 years: threads and sockets cannot wait for longer.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        number = _seconds_of_text(value.strip(), what)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{what} must be seconds, a timedelta or text like '5m', not {type(value).__name__}")
    if not math.isfinite(number) or number < 0:
        for_ever = "; leave it out to wait forever" if what == "timeout" else ""
        raise ValueError(f"{what} must be a finite, non-negative duration, not {value!r}{for_ever}")
    if number > DURATION_MAX:
        raise ValueError(f"{what} must be at most 100 years, not {value!r}")
    return number


def _seconds_of_text(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    pieces = _PIECES.findall(text)
    if pieces and "".join(number + unit for number, unit in pieces) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in pieces)
    found = re.fullmatch(_ISO_8601, text)
    if found:
        parts = zip(found.groups(), _ISO_UNITS, strict=True)
        return sum(float(number.replace(",", ".")) * unit for number, unit in parts if number)
    raise ValueError(f"{what} {text!r} is not a duration; write seconds, '5m', '1h30m' or ISO 8601 ('PT5M')")


def checked_key(key: str) -> str:
    """Return the key, or ValueError: empty, too long, or with control characters."""
    if not isinstance(key, str):
        raise TypeError(f"a key is text, not {type(key).__name__}")
    if not key:
        raise ValueError("the key is empty; name the lock, as in 'gs://bucket/prefix#apt'")
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise ValueError(f"the key {key[:24]!r}… is longer than {KEY_BYTES_MAX} bytes; use a shorter one, or a digest")
    if not key.isprintable():
        raise ValueError(f"the key {key!r} has control or unprintable characters; leave them out")
    if not key.isascii():
        import unicodedata

        # one word in two spellings would be two locks, and nobody could see that they are
        if not unicodedata.is_normalized("NFC", key):
            raise ValueError(f"the key {key!r} is not in Unicode's form NFC; pass unicodedata.normalize('NFC', key)")
    return key


def checked_permits(permits: object, least: int) -> int:
    """Return a number of permits; TypeError or ValueError if it is not a whole number from `least` on."""
    if isinstance(permits, bool) or not isinstance(permits, int):
        raise TypeError(f"permits must be a whole number, not {permits!r}")
    if not least <= permits <= PERMITS_MAX:
        raise ValueError(f"permits is {permits}; it must be at least {least} and at most {PERMITS_MAX}")
    return permits


def checked_slot(slot: object) -> int:
    """Return the number of a slot; TypeError or ValueError if it cannot be one."""
    if isinstance(slot, bool) or not isinstance(slot, int):
        raise TypeError(f"slot must be a whole number, not {slot!r}")
    if not 0 <= slot < PERMITS_MAX:
        raise ValueError(f"slot is {slot}; slots are numbered from 0 to the limit minus 1")
    return slot
