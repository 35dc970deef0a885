"""Rows of the table as records, and the parameters of statements.

Must not know SQL or connections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from lockstead.errors import OutcomeUnknown
from lockstead.protocol.commands import Absent, Conflict, List, Listing, Snapshot
from lockstead.reading import COUNTER_MAX, clean, whole
from lockstead.stores.kept import is_damaged, map_of_text, unreadable
from lockstead.stores.postgres.libpq import Row
from lockstead.values import Name

At: TypeAlias = "tuple[str, str, str]"

MISCOUNTED: Final = "another program changed its counters, and they are out of range"

encoded: Final = json.JSONEncoder(separators=(",", ":")).encode


def at(name: Name) -> At:
    """Return the key columns of a record."""
    return name.space.value, name.key, name.part


def named(name: Name) -> dict[str, str]:
    """Return the key columns by name, for a statement on many records."""
    return dict(zip(("space", "key", "part"), at(name), strict=True))


def shown(rows: Sequence[Row]) -> Snapshot | Absent:
    """Return the result of a read of one record."""
    return snapshot(rows[0]) if rows else Absent()


def changed(rows: Sequence[Row]) -> Snapshot | Conflict | Absent | None:
    """Return the result of one of many changes; None if another transaction had the row locked."""
    if not rows:
        return Absent()
    if rows[0][6] == "t":
        return None
    return Conflict() if rows[0][0] is None else snapshot(rows[0])


def listing(command: List, rows: Sequence[Row], next_cursor: str | None) -> Listing:
    """Return the result of a List."""
    named = ((Name(str(row[0]), command.space, str(row[1])), row[2:]) for row in rows)
    return Listing(tuple((name, snapshot(row)) for name, row in named if command.shows(name)), next_cursor)


def snapshot(row: Row, fields: Mapping[str, str] | None = None) -> Snapshot:
    """Return a record from granted, revision, the times of its last change and now, and its fields unless given.

    The times are null if another server wrote it, or this one before it was restarted.
    """
    granted, revision, updated, now = row[:4]
    if fields is None:
        fields = unreadable(MISCOUNTED) if _is_miscounted(row) else map_of_text(row[4])
        if is_damaged(fields):
            return Snapshot(fields, str(granted), str(revision))
    if updated is None or now is None:
        return Snapshot(fields, str(granted), str(revision), token=_count(granted))
    return Snapshot(fields, str(granted), str(revision), seconds(updated), seconds(now), _count(granted))


def _is_miscounted(row: Row) -> bool:
    """Return whether another program set a counter of the row out of range."""
    for counter in map(str, row[:2]):
        count = whole(counter.removeprefix("-"))
        if count is not None and (counter.startswith("-") or count > COUNTER_MAX):
            return True
    return False


def seconds(microseconds: str | None) -> float:
    """Return a time of the server."""
    return _count(microseconds) / 1e6


def _count(said: str | None) -> int:
    """Return a number that the server sent; raise OutcomeUnknown if it is not one."""
    count = whole(said or "0")
    if count is None:
        raise OutcomeUnknown(f"no clear answer from PostgreSQL: expected a number, got {clean(str(said)[:40])!r}")
    return count
