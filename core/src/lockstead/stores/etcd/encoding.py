"""Encoding of records as keys of etcd, and of requests to its JSON gateway. Pure.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, unquote

from lockstead.frozen import frozen
from lockstead.protocol.commands import List, Snapshot
from lockstead.reading import RECORD_BYTES_MAX, TOO_LARGE, instant
from lockstead.stores import paging
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
"""Maximum length, in base64, of the value of a queue place."""

MIN_RETENTION_MAX: Final = 9e9
"""Seconds: the longest lease that etcd grants."""

_ABOVE: Final = {"/": "0", ":": ";"}
"""The character after a separator, with which the range of keys below it ends."""

Json = dict[str, Any]

_SHORT: Final = json.JSONEncoder(separators=(",", ":"))
_VALUE: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
"""Created once: each call of `json.dumps` would create another one."""


# --- names -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Root:
    """The common prefix of all keys of a store; empty, or ending with a slash."""

    text: str

    @classmethod
    def at(cls, prefix: str) -> Self:
        """Return the root for a prefix without slashes at its ends; raise ValueError for an invalid one."""
        if not prefix.isprintable() or len(prefix.encode()) > PREFIX_BYTES_MAX:
            raise ValueError(f"the prefix must be printable and at most {PREFIX_BYTES_MAX} bytes")
        return cls(f"{prefix}/" if prefix else "")

    def base(self, name: Name) -> str:
        """Return the beginning of the record's key, up to the colon before the slot."""
        part = f"/{quote(name.part, safe='')}" if name.part else ""
        return f"{self.text}{name.space.value}/{quote(name.key, safe='')}{part}"

    def slot(self, name: Name, slot: str) -> str:
        """Return the key of a record."""
        return f"{self.base(name)}:{slot}"

    def queue(self, name: Name) -> str:
        """Return the beginning of the places in a lock's queue."""
        part = f":{quote(name.part, safe='')}" if name.part else ""
        return f"{self.text}queue/{quote(name.key, safe='')}{part}/"

    def place(self, name: Name, waiter_id: str) -> str:
        """Return the key of a place in a queue."""
        return self.queue(name) + quote(waiter_id, safe="")

    def session(self, lease: str) -> str:
        """Return the key of the guard against places that are taken too late."""
        return f"{self.text}session/{int(lease):x}"

    def span(self, space: Space, key: str | None, part_prefix: str) -> tuple[str, str]:
        """Return the range of keys that a listing reads."""
        folder = f"{self.text}{space.value}/"
        if key is None:
            return folder, end_of(folder)
        has_parts = space in (Space.MEMBER, Space.AUDIT, Space.PERMIT)
        below = f"{folder}{quote(key, safe='')}{'/' if has_parts else ':'}"
        if not has_parts or not part_prefix:
            return below, end_of(below)
        below += quote(part_prefix, safe="")
        # what is escaped is ASCII, so this is above everything that begins with it
        return below, below + "\x7f"

    def name_of(self, key: str, space: Space) -> Name | None:
        """Return the name of the record with this key; None for a key that this library does not write."""
        body, colon, slot = key.removeprefix(f"{self.text}{space.value}/").rpartition(":")
        escaped, _slash, part = body.partition("/")
        try:
            name = Name(unquote(escaped, errors="strict"), space, unquote(part, errors="strict"))
        except UnicodeDecodeError:
            return None
        # with any slot: a foreign key beside a record is in the way, so it must be shown
        return name if colon and escaped and self.slot(name, slot) == key else None


def end_of(below: str) -> str:
    """Return the end of the range of keys that begin with a text ending in a separator."""
    return below[:-1] + _ABOVE[below[-1]]


def b64(text: str) -> str:
    """Return a key or a value as JSON has it."""
    return b2a_base64(text.encode(), newline=False).decode()


def first_key(command: List, start: str, stop: str) -> str:
    """Return the key, as JSON has it, with which the page of a listing begins. StoreRefused for a cursor of no page."""
    place = paging.text_place(command, 1)
    if place is None:
        return b64(start)
    try:
        key = b64decode(place[0], validate=True)
    except ValueError as error:
        raise paging.refused_cursor() from error
    if not start.encode() <= key < stop.encode():
        raise paging.refused_cursor()
    return place[0]


def page_of(body: Json) -> tuple[list[Json], str]:
    """Return the keys of a page, and the first key of the next page as JSON has it; "" after the last one.

    All keys of a name are in one page: a record that is replaced takes another of them, and a foreign key beside a
    record must not be taken for it. So those of the last name are left for the next page, unless there are no others.
    """
    found: list[Json] = body.get("kvs", [])
    if not body.get("more") or not found:
        return found, ""
    last = b64decode(found[-1]["key"])
    base = last[: last.rfind(b":") + 1]
    whole = [item for item in found if not b64decode(item["key"]).startswith(base)]
    following = base if whole else last + b"\0"
    return whole or found, b2a_base64(following, newline=False).decode()


def text(encoded: str) -> str:
    """Return a key from its form in JSON."""
    return b64decode(encoded).decode("utf-8", "replace")


# --- records -----------------------------------------------------------------------------------------------------


@frozen
class Kv:
    """A stored record. min_retention: seconds for which it must be kept; 0 means indefinitely.

    is_alone: no other record hangs on its lease, so any client that extends it may keep that lease alive.
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

    @property
    def value(self) -> str:
        """The value under the key."""
        lease = "alone" if self.is_alone else "shared"
        return _VALUE.encode({"fields": dict(self.fields), "min_retention": self.min_retention, "lease": lease})

    def snapshot(self, renewed_at: float | None = None, lifetime: float | None = None) -> Snapshot:
        """Return the record for the protocol; one that must end, but has no lease, is damaged."""
        token = int(self.created)
        never_ends = self.lease == NO_LEASE and self.min_retention > 0
        fields = unreadable("it hangs on no lease, so that it never ends") if never_ends else dict(self.fields)
        return Snapshot(fields, self.created, self.changed, None, None, token, False, renewed_at, lifetime)


def kv_of(item: Json) -> Kv:
    """Return the record in one key of a reply; if it is not one, with the fields of `unreadable`."""
    key, lease = text(item["key"]), item.get("lease", NO_LEASE)
    fields, min_retention, is_alone = _value(item.get("value", ""))
    if key[-2:] not in _SLOT_ENDS:
        fields = unreadable("its key ends in no slot of ours")
    return Kv(key, item["create_revision"], item["mod_revision"], lease, fields, min_retention, is_alone)


def _value(encoded: str) -> tuple[dict[str, str], float, bool]:
    """Return the fields, min_retention and is_alone in a value."""
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
    """Return whether a key of a queue is the place of a waiter; a key without a lease is a stray."""
    return bool(item.get("lease", NO_LEASE) != NO_LEASE)


def standing(queue: str, item: Json, noted: str) -> Standing:
    """Return the queue entry of one key; noted is its value."""
    who = unquote(text(item["key"]).removeprefix(queue), errors="replace")
    return Standing(who, instant(text(noted)) if len(noted) < NOTED_MAX else None, not is_place(item))


def seeking(base: str) -> list[Json]:
    """Return the reads of a record: its two keys, and the first key below its prefix, without the value.

    A foreign key must be seen where there is no record, but its value need not be read.
    """
    return [*(get(at(f"{base}:{slot}")) for slot in SLOTS), get(below(f"{base}:"), limit="1", keys_only=True)]


def is_slot(encoded: str) -> bool:
    """Return whether a key, as JSON has it, can be that of a record."""
    return text(encoded)[-2:] in _SLOT_ENDS


GETS_MAX: Final = 100
"""Gets in one transaction: etcd takes up to 128 operations."""

SOUGHT: Final = 3
"""Gets of one record."""


def sought(responses: list[Json]) -> Kv | None:
    """Return the record that `seeking` found."""
    return next((kv_of(one["response_range"]["kvs"][0]) for one in responses if one["response_range"].get("kvs")), None)


def first_of(found: list[Json]) -> Json:
    """Return the record among the keys of one name; a foreign key may be beside it."""
    return next((item for item in found if is_slot(item["key"])), found[0])


def ttl_of(min_retention: float) -> int:
    """Return the ttl of the lease (whole seconds) for a record that must be kept for so long."""
    return math.ceil(min_retention)


# --- requests ----------------------------------------------------------------------------------------------------


@frozen
class Request:
    """A request. what: its name in messages; path: below the endpoint."""

    what: str
    path: str
    content: bytes


@frozen
class Response:
    """A reply. sent_at: when the request was sent (boot clock)."""

    status: int
    body: bytes
    sent_at: float
    member: str = ""
    """The member that replied, as host:port."""


def request(what: str, path: str, body: Json) -> Request:
    """Return a request to the gateway."""
    return Request(what, f"/v3/{path}", _SHORT.encode(body).encode())


def range_of(what: str, keys: Json, **more: Any) -> Request:
    """Read keys."""
    return request(what, "kv/range", {**keys, **more})


def txn(what: str, operations: Sequence[Json], *, when: Sequence[Json] = (), otherwise: Sequence[Json] = ()) -> Request:
    """Do `operations` if all comparisons of `when` hold, else `otherwise`, in one step."""
    return request(what, "kv/txn", {"compare": when, "success": operations, "failure": otherwise})


def grant(ttl: int) -> Request:
    """Grant a lease of `ttl` seconds."""
    return request("LeaseGrant", "lease/grant", {"TTL": str(ttl)})


def keep_alive(*leases: str) -> Request:
    """Renew leases in one request; there is a reply for each, in order."""
    body = b"".join(json.dumps({"ID": lease}).encode() for lease in leases)
    return Request("LeaseKeepAlive", "/v3/lease/keepalive", body)


def revoke(lease: str) -> Request:
    """End a lease, and with it all records that hang on it."""
    return request("LeaseRevoke", "lease/revoke", {"ID": lease})


def authenticate(user: str, password: str) -> Request:
    """Sign a user in."""
    return request("Authenticate", "auth/authenticate", {"name": user, "password": password})


# --- inside of a transaction -------------------------------------------------------------------------------------


def at(key: str) -> Json:
    """Name one key."""
    return {"key": b64(key)}


def between(start: str, end: str) -> Json:
    """Name a range of keys."""
    return {"key": b64(start), "range_end": b64(end)}


def below(base: str) -> Json:
    """Name the keys that begin with a text, which ends in a separator."""
    return between(base, end_of(base))


_TARGETS: Final = {"create_revision": "CREATE", "mod_revision": "MOD", "lease": "LEASE"}


def compared(keys: Json, target: str, number: str, result: str = "EQUAL") -> Json:
    """Compare each of some keys; where there are none, etcd compares 0. Source: etcd's `applyCompare`."""
    return {"target": _TARGETS[target], "result": result, **keys, target: number}


def compared_record(kv: Kv) -> list[Json]:
    """Check that a record has not changed; foreign keys beside it do not matter."""
    return [compared(at(kv.key), "create_revision", kv.created), compared(at(kv.key), "mod_revision", kv.changed)]


def get(keys: Json, **more: Any) -> Json:
    """Read keys."""
    return {"request_range": {**keys, **more}}


def put(key: str, value: str, lease: str) -> Json:
    """Write a key."""
    return {"request_put": {**at(key), "value": b64(value), "lease": lease}}


def put_record(kv: Kv) -> Json:
    """Write a record."""
    return put(kv.key, kv.value, kv.lease)


def delete(keys: Json, **more: Any) -> Json:
    """Delete keys."""
    return {"request_delete_range": {**keys, **more}}
