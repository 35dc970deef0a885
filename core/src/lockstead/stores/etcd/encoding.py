"""How records stand in etcd, and how requests to its JSON gateway look. Pure.

One key a record, below the store's prefix: `SPACE/KEY:SLOT`, or `SPACE/KEY/PART:SLOT`. KEY and PART are
percent-encoded, SLOT is `a` or `b`: etcd does not delete and put one key in one transaction, so a record of a new
incarnation takes the other slot. Incarnation and token are the create revision, the revision is the mod revision.
Must not know how requests are sent, nor which lease a record ought to hang on.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, unquote

from lockstead.frozen import frozen
from lockstead.protocol.commands import Snapshot
from lockstead.reading import RECORD_BYTES_MAX, TOO_LARGE, instant
from lockstead.stores.kept import NO_HEAD, NO_MAP, bounded, unreadable
from lockstead.stores.port import Standing
from lockstead.values import Name, Space

PREFIX_BYTES_MAX: Final = 512
PAGE: Final = 1000
"""Keys in one answer of a listing."""

NO_LEASE: Final = "0"
SLOTS: Final = ("a", "b")
_SLOT_ENDS: Final = frozenset(f":{slot}" for slot in SLOTS)
NOTED_MAX: Final = 64
"""Characters, as JSON has them, of what is noted with a place in a queue."""

MIN_RETENTION_MAX: Final = 9e9
"""Seconds: the longest lease that etcd grants."""

_ABOVE: Final = {"/": "0", ":": ";"}
"""The character that follows a separator: where the range of what stands below it ends."""

Json = dict[str, Any]

_SHORT: Final = json.JSONEncoder(separators=(",", ":"))
_VALUE: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
"""Made once: each call of `json.dumps` would make another one."""


# --- names -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Root:
    """What all keys of a store begin with; empty, or ending with a slash."""

    text: str

    @classmethod
    def at(cls, prefix: str) -> Self:
        """Return the root below a prefix without slashes at its ends. ValueError if it cannot be one."""
        if not prefix.isprintable() or len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise ValueError(f"the prefix must be printable and at most {PREFIX_BYTES_MAX} bytes")
        return cls(f"{prefix}/" if prefix else "")

    def base(self, name: Name) -> str:
        """Return what the record's key begins with, up to the slot's colon."""
        part = f"/{quote(name.part, safe='')}" if name.part else ""
        return f"{self.text}{name.space.value}/{quote(name.key, safe='')}{part}"

    def slot(self, name: Name, slot: str) -> str:
        """Return the key of a record."""
        return f"{self.base(name)}:{slot}"

    def queue(self, key: str) -> str:
        """Return what the places in a key's queue begin with."""
        return f"{self.text}queue/{quote(key, safe='')}/"

    def place(self, key: str, waiter_id: str) -> str:
        """Return the key of a place in a queue."""
        return self.queue(key) + quote(waiter_id, safe="")

    def session(self, lease: str) -> str:
        """Return the key that guards the queue against places that are taken too late."""
        return f"{self.text}session/{int(lease):x}"

    def span(self, space: Space, key: str | None, part_prefix: str) -> tuple[str, str]:
        """Return the range of keys that a listing reads."""
        folder = f"{self.text}{space.value}/"
        if key is None:
            return folder, end_of(folder)
        has_parts = space in (Space.MEMBER, Space.AUDIT)
        below = f"{folder}{quote(key, safe='')}{'/' if has_parts else ':'}"
        if not has_parts or not part_prefix:
            return below, end_of(below)
        below += quote(part_prefix, safe="")
        # what is escaped is ASCII, so this is above everything that begins with it
        return below, below + "\x7f"

    def name_of(self, key: str, space: Space) -> Name | None:
        """Return the name that a key stands for; None if it is none that we could have written."""
        body, colon, slot = key.removeprefix(f"{self.text}{space.value}/").rpartition(":")
        escaped, _slash, part = body.partition("/")
        try:
            name = Name(unquote(escaped, errors="strict"), space, unquote(part, errors="strict"))
        except UnicodeDecodeError:
            return None
        # with whatever slot: what stands there beside ours is in the way, and has to be seen
        return name if colon and escaped and self.slot(name, slot) == key else None


def end_of(below: str) -> str:
    """Return the end of the range of keys that begin with a text ending in a separator."""
    return below[:-1] + _ABOVE[below[-1]]


def b64(text: str) -> str:
    """Write a key or a value as JSON wants bytes."""
    return b2a_base64(text.encode(), newline=False).decode()


def text(encoded: str) -> str:
    """Read a key as JSON has it."""
    return b64decode(encoded).decode("utf-8", "replace")


# --- records -----------------------------------------------------------------------------------------------------


@frozen
class Kv:
    """One record as it is stored. min_retention: seconds for which it must be kept, 0 is forever.

    is_alone: no other record hangs on its lease, so that whoever extends it may keep that lease alive.
    """

    key: str
    created: str
    changed: str
    lease: str
    fields: Mapping[str, str]
    min_retention: float
    is_alone: bool

    @property
    def other_slot(self) -> str:
        """The key under which a record of a new incarnation is written."""
        return self.key[:-1] + ("b" if self.key.endswith("a") else "a")

    def snapshot(self, renewed_at: float | None = None, lifetime: float | None = None) -> Snapshot:
        """Return the record as the protocol sees it: one that has to end and that no lease ends is damaged."""
        token = int(self.created)
        never_ends = self.lease == NO_LEASE and self.min_retention > 0
        fields = unreadable("it hangs on no lease, so that it never ends") if never_ends else dict(self.fields)
        return Snapshot(fields, self.created, self.changed, None, None, token, False, renewed_at, lifetime)


def value_of(fields: Mapping[str, str], min_retention: float, *, is_alone: bool) -> str:
    """Write a record's value."""
    value = {"fields": dict(fields), "min_retention": min_retention, "lease": "alone" if is_alone else "shared"}
    return _VALUE.encode(value)


def kv_of(item: Json) -> Kv:
    """Read one key of an answer; what is not a record has the fields of `unreadable`."""
    key, lease = text(item["key"]), item.get("lease", NO_LEASE)
    fields, min_retention, is_alone = _value(item.get("value", ""))
    if key[-2:] not in _SLOT_ENDS:
        fields = unreadable("its key ends in no slot of ours")
    return Kv(key, item["create_revision"], item["mod_revision"], lease, fields, min_retention, is_alone)


def _value(encoded: str) -> tuple[dict[str, str], float, bool]:
    """Read a record's value: its fields, for how long it must be kept, and whether it hangs alone on its lease."""
    if len(encoded) > 2 * RECORD_BYTES_MAX:
        return unreadable(TOO_LARGE), 0.0, False
    try:
        value = json.loads(b64decode(encoded))
        fields, min_retention, lease = (
            value["fields"],
            float(value.get("min_retention", 0.0)),
            value.get("lease", "shared"),
        )
        if not isinstance(fields, dict) or not 0 <= min_retention <= MIN_RETENTION_MAX:
            return unreadable(NO_HEAD), 0.0, False
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return unreadable(NO_MAP), 0.0, False
    return bounded(fields), min_retention, lease == "alone"


def is_place(item: Json) -> bool:
    """Return whether a key of a queue is the place of a waiter. A key without a lease is a stray."""
    return bool(item.get("lease", NO_LEASE) != NO_LEASE)


def standing(queue: str, item: Json, noted: str) -> Standing:
    """Return one key of a queue. noted: the value with it."""
    who = unquote(text(item["key"]).removeprefix(queue), errors="replace")
    return Standing(who, instant(text(noted)) if len(noted) < NOTED_MAX else None, not is_place(item))


def seeking(base: str) -> list[Json]:
    """Return the reads of a record: its two keys, and the first key below its prefix, without the value.

    What somebody else put beside a record has to be seen where there is none, but nobody has to read all of it.
    """
    keys = [{"key": b64(f"{base}:{slot}")} for slot in SLOTS]
    below = get(f"{base}:", end_of(f"{base}:"), limit="1", keys_only=True)
    return [{"request_range": one} for one in (*keys, below)]


def is_slot(encoded: str) -> bool:
    """Return whether a key, as JSON has it, is one that a record can have."""
    return text(encoded)[-2:] in _SLOT_ENDS


GETS_MAX: Final = 100
"""Gets in one transaction: etcd takes up to 128 operations."""

SOUGHT: Final = 3
"""Gets of one record."""


def sought(responses: list[Json]) -> Kv | None:
    """Return the record that `seeking` found."""
    return next((kv_of(one["response_range"]["kvs"][0]) for one in responses if one["response_range"].get("kvs")), None)


def first_of(found: list[Json]) -> Json:
    """Return the record of those that stand under one name: there is one, unless somebody wrote another beside it."""
    return next((item for item in found if text(item["key"])[-2:] in _SLOT_ENDS), found[0])


def ttl_of(min_retention: float) -> int:
    """Return the whole seconds of the lease for a record that must be left alone for so long."""
    return math.ceil(min_retention)


# --- requests ----------------------------------------------------------------------------------------------------


@frozen
class Request:
    """One request: path below the endpoint, what says in words what is asked."""

    what: str
    path: str
    content: bytes


@frozen
class Response:
    """What came back: the status, the body, the instant (boot clock) at which the request was sent, and from whom."""

    status: int
    body: bytes
    sent_at: float
    member: str = ""
    """host:port of who answered."""


def request(what: str, path: str, body: Json) -> Request:
    """Return a request to the gateway."""
    return Request(what, f"/v3/{path}", _SHORT.encode(body).encode())


def range_of(what: str, start: str, end: str, **more: Any) -> Request:
    """Read a range of keys."""
    return request(what, "kv/range", get(start, end, **more))


def get(start: str, end: str, **more: Any) -> Json:
    """Return the body of a range, as a request of its own or inside of a transaction."""
    return {"key": b64(start), "range_end": b64(end), **more}


def txn(what: str, compare: list[Json], success: list[Json], failure: list[Json]) -> Request:
    """Do `success` if all comparisons hold, else `failure`, in one step."""
    return request(what, "kv/txn", {"compare": compare, "success": success, "failure": failure})


def grant(ttl: int) -> Request:
    """Ask for a lease of so many seconds."""
    return request("LeaseGrant", "lease/grant", {"TTL": str(ttl)})


def keep_alive(*leases: str) -> Request:
    """Renew leases, all in one request; they are answered one after the other."""
    body = b"".join(json.dumps({"ID": lease}).encode() for lease in leases)
    return Request("LeaseKeepAlive", "/v3/lease/keepalive", body)


def revoke(lease: str) -> Request:
    """End a lease, and with it everything that hangs on it."""
    return request("LeaseRevoke", "lease/revoke", {"ID": lease})


def authenticate(user: str, password: str) -> Request:
    """Sign a user in."""
    return request("Authenticate", "auth/authenticate", {"name": user, "password": password})


_TARGETS: Final = {"create_revision": "CREATE", "mod_revision": "MOD", "lease": "LEASE"}


def compared(base: str, target: str, number: str, result: str = "EQUAL") -> Json:
    """Compare all keys of a range; of an empty range etcd compares 0. Source: etcd's `applyCompare`."""
    return {
        "target": _TARGETS[target],
        "result": result,
        "key": b64(base),
        "range_end": b64(end_of(base)),
        target: number,
    }


def compared_record(kv: Kv) -> list[Json]:
    """Compare a record with what was seen of it, whatever stands beside it."""
    return [compared_key(kv.key, "create_revision", kv.created), compared_key(kv.key, "mod_revision", kv.changed)]


def put(key: str, value: str, lease: str) -> Json:
    """Write a key inside of a transaction."""
    return {"request_put": {"key": b64(key), "value": b64(value), "lease": lease}}


def delete(base: str, *, shows: bool = False) -> Json:
    """Delete a range of keys inside of a transaction, and give what stood there if it is to be shown."""
    more = {"prev_kv": True} if shows else {}
    return {"request_delete_range": {"key": b64(base), "range_end": b64(end_of(base)), **more}}


def delete_key(key: str) -> Json:
    """Delete one key inside of a transaction."""
    return {"request_delete_range": {"key": b64(key)}}


def number(text: str) -> str | None:
    """Return an incarnation or revision as etcd takes it; None for what cannot be one of its own."""
    return text if text.isascii() and text.isdigit() and not text.startswith("0") and len(text) < 19 else None


def compared_key(key: str, target: str, revision: str) -> Json:
    """Compare one key; of one that is not there etcd compares a revision of 0."""
    return {"target": _TARGETS[target], "result": "EQUAL", "key": b64(key), target: revision}
