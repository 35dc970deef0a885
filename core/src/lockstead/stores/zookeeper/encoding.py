"""Encoding: the paths of a record, its mark and its queue in ZooKeeper's tree, and the data of a node.

Every name is one node name, escaped injectively, so that no key can reach the nodes of another, "." or "..". Only the
permits of a key are below a node of that key, which is written with every change of a slot, so that it can be watched.
Must not know a connection, nor what the fields of a record mean.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from lockstead.reading import RECORD_BYTES_MAX, on_calendar
from lockstead.stores.kept import to_json
from lockstead.stores.port import Standing
from lockstead.values import Name, Space

_SEPARATOR: Final = ","
"""Between key and part; `quote` always escapes it."""

_MARK: Final = re.compile(r"[0-9a-f]{32}")

_PLACE: Final = re.compile(r"([0-9a-f]{32})-(-?[0-9]{10})")

NOTED_MAX: Final = 1000
"""Maximum bytes of the data of a queue entry."""

ESCAPED_MAX: Final = 4096
"""Keys whose escaped form is cached: each command of a lock needs it once or twice."""


class StoredRecord(NamedTuple):
    """The data of a record's node: the incarnation, which is also the name of its mark, and the fields."""

    mark: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Tree:
    """The node paths of one store. base is an absolute path without a trailing slash."""

    base: str

    def space(self, space: Space) -> str:
        """Return the parent of all records of a space."""
        return f"{self.base}/{space.value}"

    def record(self, name: Name) -> str:
        """Return the node of a record, or of the topic of a key's slots."""
        return f"{self.base}/{name.space.value}/{encode_name(name)}"

    def notices(self, name: Name) -> list[tuple[str, str, bytes, int]]:
        """Return the operations of a transaction that notify those who watch all slots of a key."""
        return [("set", self.record(name.topic), b"", -1)] if name.is_slot else []

    @property
    def queues(self) -> str:
        """The parent of all queues."""
        return f"{self.base}/queue"

    def queue(self, name: Name) -> str:
        """Return the parent of the queue entries of a lock."""
        return f"{self.base}/queue/{encode_name(name).replace('/', _SEPARATOR)}"


def encode_name(name: Name) -> str:
    """Return the node name of a record below its space."""
    if name.space is Space.LOCK or name == Name(name.key, Space.PERMIT):
        return _escaped(name.key)
    return f"{_escaped(name.key)}{_separator(name.space)}{_escaped(name.part)}"


def _separator(space: Space) -> str:
    return "/" if space is Space.PERMIT else _SEPARATOR


def decode_name(space: Space, node: str) -> Name | None:
    """Return the name of a node; None if the node is not one of ours."""
    key, separator, part = node.partition(_separator(space))
    try:
        name = Name(_plain(key), space, _plain(part))
    except UnicodeDecodeError:
        return None
    return name if bool(separator) is (space is not Space.LOCK) and encode_name(name) == node else None


def is_mark(incarnation: str) -> bool:
    """Return whether an incarnation has the format of a mark's name."""
    return _MARK.fullmatch(incarnation) is not None


def in_order(places: list[str]) -> list[str]:
    """Return the entries of a queue in order of arrival; nodes that are not our entries are left out."""
    found = [match for match in map(_PLACE.fullmatch, places) if match is not None]
    return [match[0] for match in sorted(found, key=lambda match: int(match[2]))]


def standing(node: str, stat: Any) -> Standing:
    """Return the description of one node of a queue; a node that is not ephemeral is not one of our entries."""
    is_stray = _PLACE.fullmatch(node) is None or not stat.ephemeralOwner
    return Standing(node if is_stray else "", on_calendar(stat.ctime / 1000), is_stray)


def encode_record(mark: str, fields: dict[str, str]) -> bytes:
    """Encode a record as the data of its node."""
    return to_json({"incarnation": mark, "fields": fields}).encode("utf-8", "surrogatepass")


def decode_record(data: bytes | None) -> StoredRecord | None:
    """Decode the data of a record's node; return None if it is damaged, too large, or another program's."""
    if data is not None and len(data) > RECORD_BYTES_MAX:
        return None
    try:
        stored = json.loads((data or b"").decode("utf-8", "surrogatepass"))
        mark, fields = stored["incarnation"], stored["fields"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(mark, str) or not is_mark(mark) or not isinstance(fields, dict):
        return None
    return StoredRecord(mark, fields) if all(isinstance(value, str) for value in fields.values()) else None


@lru_cache(ESCAPED_MAX)
def _escaped(text: str) -> str:
    escaped = quote(text, safe="", errors="surrogatepass")
    # the two names that a path may not contain; quote does not escape dots
    return escaped.replace(".", "%2E") if escaped in {".", ".."} else escaped


def _plain(text: str) -> str:
    return unquote(text, errors="surrogatepass")
