"""What the rows of the table mean, and how a record's name and fields are written for a statement.

Must not know SQL or connections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Absent, Conflict, Listing, Snapshot
from lockstead.reading import COUNTER_MAX, clean, whole
from lockstead.stores.kept import is_damaged, map_of_text, unreadable
from lockstead.stores.postgres.libpq import Row
from lockstead.values import Name, Space

At: TypeAlias = "tuple[str, str, str]"

MISCOUNTED: Final = "another program changed its counters, and they are out of range"

encoded: Final = json.JSONEncoder(separators=(",", ":")).encode


def at(name: Name) -> At:
    """Return what a row is found by."""
    return name.space.value, name.key, name.part


def named(name: Name) -> dict[str, str]:
    """Return the same for one of many."""
    return {"space": name.space.value, "key": name.key, "part": name.part}


def shown(rows: Sequence[Row]) -> Snapshot | Absent:
    """Return what a look at one record found."""
    return snapshot(rows[0]) if rows else Absent()


def changed(rows: Sequence[Row]) -> Snapshot | Conflict | Absent | None:
    """Return what one of many changes came to; None if somebody else had the row locked."""
    if not rows:
        return Absent()
    if rows[0][6] == "t":
        return None
    return Conflict() if rows[0][0] is None else written(rows[0])


def listing(space: Space, rows: Sequence[Row]) -> Listing:
    """Return what a look at many found."""
    return Listing(tuple((Name(str(row[0]), space, str(row[1])), snapshot(row[2:])) for row in rows))


def snapshot(row: Row) -> Snapshot:
    """Return a record from granted, revision, when it was stamped, the time now, and its fields."""
    granted, revision, updated, now, text = row
    fields = _fields(row, map_of_text(text))
    if is_damaged(fields):
        return Snapshot(fields, str(granted), str(revision))
    if updated is None or now is None:  # stamped by another server, or by this one before it was restarted
        return Snapshot(fields, str(granted), str(revision), token=_count(granted))
    return Snapshot(fields, str(granted), str(revision), seconds(updated), seconds(now), _count(granted))


def written(row: Row, fields: Mapping[str, str] | None = None) -> Snapshot:
    """Return what a statement has just stamped: granted, revision, when, the time now, and the fields unless known."""
    said = _fields(row, map_of_text(row[4])) if fields is None else fields
    granted, stamped, now = str(row[0]), seconds(row[2]), seconds(row[3])
    if fields is None and is_damaged(said):
        return Snapshot(said, granted, str(row[1]))
    return Snapshot(said, granted, str(row[1]), stamped, now, _count(granted))


def _fields(row: Row, fields: dict[str, str]) -> dict[str, str]:
    """Return the fields of a record, or what `unreadable` gives where another program changed its counters."""
    for said in row[:2]:
        text = str(said).removeprefix("-")
        if (count := whole(text)) is not None and (text != said or count > COUNTER_MAX):
            return unreadable(MISCOUNTED)
    return fields


def seconds(microseconds: str | None) -> float:
    """Return a time of the server."""
    return _count(microseconds) / 1e6


def _count(said: str | None) -> int:
    """Read a number of the server's; OutcomeUnknown for what is none, as only another server says."""
    count = whole(said or "0")
    if count is None:
        raise OutcomeUnknown(f"no clear answer from PostgreSQL: {clean(str(said)[:40])!r} stands where a number does")
    return count
