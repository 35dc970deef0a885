"""How commands and answers are written for Redis: names of keys, one script call a command, its reply.

Pure: sends nothing, reads no clock. Must not know what the fields of a record mean, nor where a key's server is.

All keys of one lock have the same hash tag, so they are in one slot of a Cluster:

    PREFIX:{KEY}:lock            the record              PREFIX:{KEY}:token          the counter of its tokens
    PREFIX:{KEY}:member:PART     a registration          PREFIX:{KEY}:index-member   their parts, by when they go
    PREFIX:{KEY}:audit:PART      an audit entry          PREFIX:{KEY}:index-audit    likewise
    PREFIX:{KEY}:companion       (not used)              PREFIX:{KEY}:waiters        channels to wake, oldest first
    PREFIX:{KEY}:permit:PART     a permit's record       PREFIX:{KEY}:index-permit   likewise
    PREFIX:{KEY}:permit-token:PART   its counter         PREFIX:{KEY}:permit-waiters[:turn]   for any slot, for the turn
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from lockstead.errors import StoreRefused
from lockstead.frozen import frozen
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
from lockstead.reading import RECORD_BYTES_MAX, TOO_LARGE
from lockstead.stores.kept import MALFORMED, NO_HEAD, map_of_text, senseless, unreadable
from lockstead.stores.redis.resp import Words
from lockstead.stores.redis.scripts import (
    CREATE,
    CREATE_LISTED,
    ENROL,
    EXTEND,
    EXTEND_LISTED,
    GLANCE,
    PASS_ON,
    READ,
    REMOVE,
    REMOVE_LISTED,
    REPLACE,
    REPLACE_LISTED,
    LuaScript,
)
from lockstead.values import KEY_BYTES_MAX, Name, Space

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR

GRACE: Final = {
    Space.LOCK: 7 * DAY,
    Space.MEMBER: DAY,
    Space.COMPANION: 7 * DAY,
    Space.AUDIT: 7 * DAY,
    Space.PERMIT: 7 * DAY,
}
"""Milliseconds for which a record stays after its ttl, so that the next holder learns how the last lease ended.

And so that none is dropped during its lease when the server's clock is set forward by hours."""

FOR_EVER: Final = 366 * DAY
"""Milliseconds after its last write for which a record without a ttl stays: an audit entry."""

COUNTER_LIFE: Final = 30 * DAY
"""Milliseconds for which a counter of tokens outlives the last grant. Without it the server's clock counts alone.

Where the last record was not removed it stays for `FOR_EVER`: so long it is known that the lease was not released."""

WAITERS_LIFE: Final = 60_000
"""Milliseconds for which a list of waiters stays after the last one was added."""

PART_BYTES_MAX: Final = 256
"""Bytes of the part of a name at most: an incarnation and a nonce take some sixty."""

_SPACES: Final = {space.value: space for space in Space}
_INDEXED: Final = frozenset({Space.MEMBER, Space.AUDIT, Space.PERMIT})


@frozen
class Request:
    """One script call. name is for messages; keys are all in one slot."""

    script: LuaScript
    name: Name
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]

    @property
    def what(self) -> str:
        """What is asked, for messages."""
        return f"{self.script.name} of {self.name.key!r}"

    def by_digest(self) -> Words:
        """Return the call of a script that the server knows."""
        return (b"EVALSHA", self.script.digest, b"%d" % len(self.keys), *self.keys, *self.args)

    def in_full(self) -> Words:
        """Return the call that teaches the server the script too."""
        return (b"EVAL", self.script.text, b"%d" % len(self.keys), *self.keys, *self.args)


class Keys:
    """The names of keys under a prefix. Safe to share between threads."""

    def __init__(self, prefix: str = "lockstead") -> None:
        self._root = f"{_escaped(prefix)}:"
        # a lock is asked for again and again; what is kept is small
        self._tagged = lru_cache(maxsize=1000)(self._tag)

    def _tag(self, key: str) -> bytes:
        return f"{self._root}{{{_escaped(key)}}}:".encode()

    def record(self, name: Name) -> bytes:
        """Return the key of a record."""
        if name.space is Space.LOCK and not name.part:
            return self._tagged(name.key) + b"lock"
        part = f":{name.part}" if name.part else ""
        return self._tagged(name.key) + f"{name.space.value}{part}".encode()

    def token(self, name: Name) -> bytes:
        """Return the key of the counter of a lock's tokens."""
        return self._tagged(name.key) + (b"token" if name.space is Space.LOCK else _of_permit("token", name))

    def waiters(self, name: Name) -> bytes:
        """Return the key of the list of a lock's waiters; those for slots of one key share it."""
        return self._tagged(name.key) + (b"waiters" if name.space is Space.LOCK else _of_permit("waiters", name.topic))

    def index(self, name: Name) -> bytes | None:
        """Return the key of the index that tells a record of this space; None where the key alone tells all."""
        return self._tagged(name.key) + f"index-{name.space.value}".encode() if name.space in _INDEXED else None

    def indexes(self, name: Name) -> tuple[bytes, ...]:
        """Return the index of a record's space, if it has one."""
        index = None if name.space is Space.LOCK else self.index(name)
        return () if index is None else (index,)

    def channel(self, handle: str) -> bytes:
        """Return the channel by which a handle of the store is woken."""
        return f"{self._root}wake:{handle}".encode()

    def pattern(self, space: Space) -> bytes:
        """Return a pattern that fits the key of every record of a space, and perhaps others."""
        root = "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in self._root)
        parts = ":*" if space in _INDEXED else ""
        return f"{root}{{*}}:{space.value}{parts}".encode()

    def longest(self, space: Space) -> int:
        """Return how many bytes the key of a record of a space has at most, with one for each that was escaped."""
        parts = 1 + PART_BYTES_MAX if space in _INDEXED else 0
        return len(f"{self._root}{{}}:{space.value}".encode()) + KEY_BYTES_MAX + parts

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


def _of_permit(what: str, name: Name) -> bytes:
    return f"{name.space.value}-{what}{f':{name.part}' if name.part else ''}".encode()


def _escaped(text: str) -> str:
    """Braces would move or end the hash tag; everything else may stand as it is."""
    return text.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


# --- requests ----------------------------------------------------------------------------------------------------


def request(command: Command[Any], keys: Keys) -> Request:
    """Write a command (any but List) as one script call."""
    if isinstance(command, Read):
        return Request(READ, command.name, (keys.record(command.name),), ())
    name: Name = command.name  # type: ignore[attr-defined]  # every command but List has one
    record, index, part = keys.record(name), keys.indexes(name), name.part.encode()
    if not name.space.is_lock:
        return _listed(command, name, (record, *index), part)
    match command:
        case Create():
            granted = _granted(name, command.fields, command.min_retention)
            created = (b"", b"", *granted, _packed(command.forgotten), part)
            return Request(CREATE, name, (record, keys.token(name), *index), created)
        case Remove():
            removed = (*_expected(command), _PUT_BACK_LIFE, part)
            return Request(REMOVE, name, (record, keys.waiters(name), keys.token(name), *index), removed)
        case Extend():
            extended = (*_expected(command), _packed(command.fields), part)
            return Request(EXTEND, name, (record, keys.waiters(name), *index), extended)
        case Replace():
            replaced = (*_expected(command), *_granted(name, command.fields, command.min_retention), part)
            return Request(REPLACE, name, (record, keys.token(name), *index), replaced)
        case _:
            raise TypeError(f"not a command for a store: {type(command).__name__}")


def _listed(command: Command[Any], name: Name, keys: tuple[bytes, ...], part: bytes) -> Request:
    """Write a command on a record that is no lock: without a counter and waiters."""
    match command:
        case Create():
            granted = _granted(name, command.fields, command.min_retention)
            return Request(CREATE_LISTED, name, keys, (b"", b"", *granted, part))
        case Remove():
            return Request(REMOVE_LISTED, name, keys, (*_expected(command), part))
        case Extend():
            return Request(EXTEND_LISTED, name, keys, (*_expected(command), _packed(command.fields), part))
        case Replace():
            granted = _granted(name, command.fields, command.min_retention)
            return Request(REPLACE_LISTED, name, keys, (*_expected(command), *granted, part))
        case _:
            raise TypeError(f"not a command for a store: {type(command).__name__}")


def glance(name: Name, most: int, keys: Keys) -> Request:
    """Write the request to read a record if it has no more than `most` bytes, and to measure it otherwise."""
    return Request(GLANCE, name, (keys.record(name),), (b"%d" % most,))


def enrol(name: Name, channel: bytes, since: bytes, seen: Snapshot | None, keys: Keys) -> Request:
    """Write the request to be notified when a lock is released, or any slot of the key; of those, the answer is always
    that something changed.

    since: the answer to an earlier one, to keep a place. seen: the record when the caller last read it.
    """
    head = "any" if name.is_slot else "" if seen is None else f"{seen.incarnation} {seen.revision} "
    args = (channel, since, str(WAITERS_LIFE).encode(), head.encode())
    return Request(ENROL, name, (keys.record(name), keys.waiters(name)), args)


def pass_on(name: Name, keys: Keys) -> Request:
    """Write the request to notify the next waiter instead of us."""
    return Request(PASS_ON, name, (keys.record(name), keys.waiters(name)), ())


def _granted(name: Name, fields: Mapping[str, str], min_retention: float) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the arguments of every grant: a new incarnation, how long it stays, fields, life of the counter.

    The incarnation is random, so that none is repeated even where a server forgets all and its clock is set back.
    """
    life = int(min_retention * 1000) + GRACE[name.space] if min_retention else FOR_EVER
    return os.urandom(12).hex().encode(), b"%d" % life, _packed(fields), _COUNTER_LIFE


def _expected(command: Extend | Replace | Remove) -> tuple[bytes, bytes]:
    return (command.incarnation or "").encode(), (command.revision or "").encode()


_COUNTER_LIFE: Final = b"%d" % FOR_EVER
_PUT_BACK_LIFE: Final = b"%d" % COUNTER_LIFE

# made once: to make one takes as long as to use it
_pack: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def _packed(fields: Mapping[str, str]) -> bytes:
    return _pack(fields if isinstance(fields, dict) else dict(fields)).encode()


# --- answers -----------------------------------------------------------------------------------------------------


def answer(command: Command[Any], reply: bytes) -> Any:
    """Decode the reply of a script. Raises StoreRefused where the key holds something that is not ours.

    OutcomeUnknown for what no script of ours returns.
    """
    try:
        return _answer(command, reply)
    except MALFORMED as error:
        raise senseless("Redis", error) from error


def measured(reply: bytes) -> tuple[str, str, int] | None:
    """Read incarnation, revision and size of a record that was too large for a glance; None for any other answer."""
    if not reply.startswith(b"large "):
        return None
    try:
        _, incarnation, revision, size = reply.decode().split(" ")
        return incarnation, revision, int(size)
    except MALFORMED as error:
        raise senseless("Redis", error) from error


def _answer(command: Command[Any], reply: bytes) -> Any:
    word, _, rest = reply.partition(b" ")
    if word == b"ok":
        match command:
            case Remove():
                return Removed(int(rest) / 1e6)
            case Create() | Replace():
                return _written(command.name, rest, command.fields)
            case Read() | Extend():
                return _shown(command.name, rest)
    if word == b"forgot" and isinstance(command, Create):
        return _written(command.name, rest, {**command.fields, **command.forgotten})
    if word == b"conflict":
        return Conflict()
    if word == b"absent":
        return Absent(int(rest) / 1e6)
    if word == b"spent":
        raise spent(command.name)  # type: ignore[attr-defined]  # every command but List has a name
    if word == b"foreign" and isinstance(command, Read | Remove):
        return Conflict() if isinstance(command, Remove) else _foreign(rest)
    raise not_ours(command.name)  # type: ignore[attr-defined]  # as above


def _written(name: Name, rest: bytes, fields: Mapping[str, str]) -> Snapshot:
    """Read the answer to a grant: the time and the head; the fields are known."""
    return _snapshot(name, rest, dict(fields))


def _shown(name: Name, rest: bytes) -> Snapshot:
    """Read an answer that shows the record: the time, the head and the fields."""
    head, _, packed = rest.partition(b"\n")
    return _snapshot(name, head, map_of_text(packed))


def _foreign(rest: bytes) -> Snapshot:
    """Read the answer of a Read that found nothing of ours: the time, what it can be removed by, and its size."""
    _now, incarnation, size = rest.decode().split(" ")
    why = TOO_LARGE if int(size) > RECORD_BYTES_MAX else NO_HEAD
    return Snapshot(unreadable(why), incarnation, "0")


def _snapshot(name: Name, head: bytes, fields: dict[str, str]) -> Snapshot:
    """Read the time and the head of a record."""
    try:
        now, incarnation, revision, updated, _life, token = head.decode().split(" ")
        updated_at = int(updated) / 1e6
        store_now = int(now) / 1e6
        counted = int(token)
    except ValueError:
        raise not_ours(name) from None
    return Snapshot(fields, incarnation, revision, updated_at, store_now, counted)


def not_ours(name: Name) -> StoreRefused:
    """Return the error for a key that holds something else."""
    return StoreRefused(
        f"what Redis has under the {name.space.value} {name.key!r} was not written by lockstead, or is damaged; "
        "break it with now=True (--now), or take another prefix (?prefix=...)"
    )


def spent(name: Name) -> StoreRefused:
    """Return the error for a counter of tokens that Redis cannot increase: its numbers are exact up to 2^53 only."""
    return StoreRefused(
        f"the counter of fencing tokens of {name.key!r} in Redis is beyond 2^53, so that tokens would not grow; "
        "if nothing has been fenced by such a token, delete the key that ends in ':token', or take another prefix"
    )
