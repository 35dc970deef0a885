"""Decides how commands and answers are written for Redis: names of keys, one script call a command, what it said.

Pure: sends nothing, reads no clock. Must not know what the fields of a record mean, nor where a key's server is.

All keys of one lock carry the same hash tag, so they stand in one slot of a Cluster:

    PREFIX:{KEY}:lock            the record              PREFIX:{KEY}:token          the counter of its tokens
    PREFIX:{KEY}:member:PART     a registration          PREFIX:{KEY}:index-member   their parts, by when they go
    PREFIX:{KEY}:audit:PART      an audit entry          PREFIX:{KEY}:index-audit    likewise
    PREFIX:{KEY}:companion       (not used)              PREFIX:{KEY}:waiters        channels to wake, by since when
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.redis_scripts import ENROL, EXTEND, GRANT, PASS_ON, READ, REMOVE, LuaScript
from lockstead.values import Name, Space

Words: TypeAlias = "tuple[bytes | str | int, ...]"
"""One command of Redis."""

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR

GRACE: Final = {Space.LOCK: 7 * DAY, Space.MEMBER: HOUR, Space.COMPANION: 7 * DAY, Space.AUDIT: 7 * DAY}
"""Milliseconds for which a record stays after its time is up, so that the next holder learns how the last one ended."""

FOR_EVER: Final = 366 * DAY
"""Milliseconds after its last write for which a record stays that says no time: an audit entry."""

COUNTER_LIFE: Final = 30 * DAY
"""Milliseconds for which a counter of tokens outlives the last grant. Without it the server's clock counts alone."""

WAITERS_LIFE: Final = 60_000
"""Milliseconds for which a list of waiters stays after the last one came."""

_SPACES: Final = {space.value: space for space in Space}
_INDEXED: Final = frozenset({Space.MEMBER, Space.AUDIT})


@dataclass(frozen=True, slots=True)
class Request:
    """One script call. name is for messages; keys are all in one slot."""

    script: LuaScript
    name: Name
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...] = field(repr=False)

    @property
    def what(self) -> str:
        """What is asked, for messages."""
        return f"{self.script.name} of {self.name.key!r}"

    def by_digest(self) -> Words:
        """Give the call of a script that the server knows."""
        return ("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.args)

    def in_full(self) -> Words:
        """Give the call that teaches the server the script too."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of keys under a prefix."""

    prefix: str = "lockstead"

    def _tagged(self, key: str) -> str:
        # braces would move or end the hash tag; the rest of a key may stand as it is
        escaped = key.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        return f"{self._root}{{{escaped}}}:"

    @property
    def _root(self) -> str:
        return self.prefix.replace("%", "%25").replace("{", "%7B").replace("}", "%7D") + ":"

    def record(self, name: Name) -> bytes:
        """Give the key of a record."""
        part = f":{name.part}" if name.part else ""
        return f"{self._tagged(name.key)}{name.space.value}{part}".encode()

    def token(self, name: Name) -> bytes:
        """Give the key of the counter of a lock's tokens."""
        return f"{self._tagged(name.key)}token".encode()

    def waiters(self, name: Name) -> bytes:
        """Give the key of the list of those who wait for a lock."""
        return f"{self._tagged(name.key)}waiters".encode()

    def index(self, name: Name) -> bytes | None:
        """Give the key of the index that tells a record of this space; None where the key alone tells all."""
        return f"{self._tagged(name.key)}index-{name.space.value}".encode() if name.space in _INDEXED else None

    def channel(self, handle: str) -> bytes:
        """Give the channel by which a handle of the store is woken."""
        return f"{self._root}wake:{handle}".encode()

    def pattern(self, space: Space) -> bytes:
        """Give a pattern that fits the key of every record of a space, and perhaps others."""
        root = "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in self._root)
        return f"{root}{{*}}:{space.value}*".encode()

    def name(self, key: bytes) -> Name | None:
        """Read the name of a record from its key; None if it is none of ours."""
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return None
        opening = f"{self._root}{{"
        if not text.startswith(opening):
            return None
        escaped, closing, rest = text[len(opening) :].partition("}:")
        space_text, _, part = rest.partition(":")
        space = _SPACES.get(space_text)
        if not closing or space is None:
            return None
        return Name(escaped.replace("%7D", "}").replace("%7B", "{").replace("%25", "%"), space, part)


# --- requests ----------------------------------------------------------------------------------------------------


def request(command: Command[Any], keys: Keys) -> Request:
    """Write a command (any but List) as one script call."""
    match command:
        case Read(name):
            return Request(READ, name, (keys.record(name),), ())
        case Extend(name, fields, incarnation, revision):
            beside, args = _beside(name, keys)
            return Request(EXTEND, name, beside, (*_expected(incarnation, revision), *args, *_pairs(fields)))
        case Create(name, fields):
            return _grant(name, fields, "", "", command.stands, keys)
        case Replace(name, fields, incarnation, revision):
            return _grant(name, fields, incarnation, revision, command.stands, keys)
        case Remove(name, incarnation, revision):
            beside, args = _beside(name, keys)
            return Request(REMOVE, name, beside, (*_expected(incarnation, revision), *args))
        case _:
            raise TypeError(f"not a command for a store: {type(command).__name__}")


def enrol(name: Name, channel: bytes, since: bytes, seen: Snapshot | None, keys: Keys) -> Request:
    """Write the request to be woken when a lock is given back.

    since: what an earlier one answered, to keep a place. seen: what the record was when the caller looked.
    """
    head = "" if seen is None else f"{seen.incarnation} {seen.revision} "
    args = (channel, since, str(WAITERS_LIFE).encode(), head.encode())
    return Request(ENROL, name, (keys.record(name), keys.waiters(name)), args)


def pass_on(name: Name, keys: Keys) -> Request:
    """Write the request to wake the next one instead of us."""
    return Request(PASS_ON, name, (keys.record(name), keys.waiters(name)), ())


def _grant(
    name: Name, fields: Mapping[str, str], incarnation: str, revision: str, stands: float, keys: Keys
) -> Request:
    life = int(stands * 1000) + GRACE[name.space] if stands else FOR_EVER
    is_lock = name.space is Space.LOCK
    beside = keys.token(name) if is_lock else keys.index(name)
    # drawn here, so that no incarnation comes back even where a server forgets everything and its clock is put back
    nonce = os.urandom(8).hex()
    args = (incarnation, revision, nonce, str(life), str(COUNTER_LIFE) if is_lock else "0", name.part)
    return Request(
        GRANT,
        name,
        (keys.record(name),) if beside is None else (keys.record(name), beside),
        (*(arg.encode() for arg in args), *_pairs(fields)),
    )


def _beside(name: Name, keys: Keys) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Give the keys of a write to a record that stands, and the arguments that say what the second one is."""
    record = keys.record(name)
    if name.space is Space.LOCK:
        return (record, keys.waiters(name)), (b"waiters", b"")
    index = keys.index(name)
    if index is None:
        return (record,), (b"", b"")
    return (record, index), (b"index", name.part.encode())


def _expected(incarnation: str | None, revision: str | None) -> tuple[bytes, bytes]:
    return (incarnation or "").encode(), (revision or "").encode()


def _pairs(fields: Mapping[str, str]) -> list[bytes]:
    words: list[bytes] = []
    for name, value in fields.items():
        words.append(name.encode() if name[:1] != "@" else b"@" + name.encode())
        words.append(value.encode())
    return words


# --- answers -----------------------------------------------------------------------------------------------------


def answer(command: Command[Any], reply: Any) -> Any:
    """Read what a script said. Raises StoreRefused where the key holds something that is not ours."""
    said: bytes = reply[0]
    if said == b"ok":
        now = int(reply[1]) / 1e6
        match command:
            case Read(name):
                return _read(name, reply[2], now)
            case Extend(name):
                return _shown(name, reply[2], now)
            case Create() | Replace():
                return _snapshot(command.name, dict(command.fields), reply[2], now)
            case _:
                return Removed(now)
    if said == b"conflict":
        return Conflict()
    if said == b"absent":
        return Absent(int(reply[1]) / 1e6)
    raise not_ours(command.name)  # type: ignore[attr-defined]  # every command but List has a name


def _read(name: Name, flat: Sequence[bytes], now: float) -> Snapshot | Absent:
    return _shown(name, flat, now) if flat else Absent(now)


def _shown(name: Name, flat: Sequence[bytes], now: float) -> Snapshot:
    head: bytes | None = None
    fields: dict[str, str] = {}
    words = iter(flat)
    for field_name, value in zip(words, words, strict=True):
        if field_name[:1] != b"@":
            fields[field_name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        elif field_name == b"@":
            head = value
        else:
            fields[field_name[1:].decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    if head is None:
        raise not_ours(name)
    return _snapshot(name, fields, head, now)


def _snapshot(name: Name, fields: Mapping[str, str], head: bytes, now: float) -> Snapshot:
    try:
        incarnation, revision, updated, _life, token = head.decode("ascii").split(" ")
        updated_at = int(updated) / 1e6
        counted = int(token)
    except ValueError:
        raise not_ours(name) from None
    # a clock that was put back must not make a record younger than its last change
    return Snapshot(fields, incarnation, revision, updated_at, max(now, updated_at), counted)


def not_ours(name: Name) -> StoreRefused:
    """Give the error for a key that holds something else."""
    return StoreRefused(
        f"what stands in Redis under the {name.space.value} {name.key!r} was not written by lockstead, or is damaged; "
        "move it, or take another prefix (?prefix=...)"
    )
