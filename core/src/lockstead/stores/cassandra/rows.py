"""Encoding of records as rows of a Cassandra table, and the statements that write and read them.

All writes are conditional on the exact state that was read; no other statement writes to the table. Must not know the
driver, nor what the fields of a record mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Snapshot
from lockstead.reading import whole
from lockstead.stores.kept import DAMAGED, NO_HEAD, bounded, unreadable
from lockstead.values import Name, Space

TABLE: Final = "lockstead_record"

NAME_BYTES_MAX: Final = 65_000
"""Limit for key and part together. The server's limit for a key is 65,535 bytes; it does not check a part."""

CREATE_KEYSPACE: Final = 'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" WITH replication = {replication}'
CREATE_TABLE: Final = (
    'CREATE TABLE IF NOT EXISTS "{keyspace}".{table} (space text, key text, part text, held boolean, granted bigint, '
    "incarnation uuid, revision uuid, fields frozen<map<text, text>>, PRIMARY KEY ((space, key), part))"
)
"""All records of one key and space are in one partition, so that one serial read lists them."""

# {into} is the table with its keyspace. Writes: each statement names the complete state that it expects
INSERT: Final = (
    "INSERT INTO {into} (space, key, part, held, granted, incarnation, revision, fields) "
    "VALUES (?, ?, ?, true, ?, ?, ?, ?) IF NOT EXISTS"
)
UPDATE: Final = (
    "UPDATE {into} SET held = true, granted = ?, incarnation = ?, revision = ?, fields = ? "
    "WHERE space = ? AND key = ? AND part = ? IF held = ? AND incarnation = ? AND revision = ?"
)
FREE: Final = (
    "UPDATE {into} SET held = false, revision = ?, fields = {{}} "
    "WHERE space = ? AND key = ? AND part = ? IF held = ? AND incarnation = ?"
)
FREE_AT: Final = FREE + " AND revision = ?"
DELETE: Final = "DELETE FROM {into} WHERE space = ? AND key = ? AND part = ? IF held = ? AND incarnation = ?"
DELETE_AT: Final = DELETE + " AND revision = ?"
WRITES: Final = (INSERT, UPDATE, FREE, FREE_AT, DELETE, DELETE_AT)

# reads: one partition with Paxos (serial) consistency, all partitions with quorum consistency
READ: Final = "SELECT held, granted, incarnation, revision, fields FROM {into} WHERE space = ? AND key = ? AND part = ?"
LIST_KEY: Final = (
    "SELECT key, part, held, granted, incarnation, revision, fields FROM {into} WHERE space = ? AND key = ?"
)
LIST_ALL: Final = "SELECT space, key, part, held, granted, incarnation, revision, fields FROM {into}"
SERIAL_READS: Final = (READ, LIST_KEY)

GRANTED_MAX: Final = 2**63 - 1
"""The largest count that the column can hold."""


class Row(NamedTuple):
    """A row. None means a damaged column; granted counts grants and outlives them.

    A row without `held` counts as held but has no holder; an operator can remove it.
    """

    held: bool | None
    granted: int | None
    incarnation: UUID | None
    revision: UUID | None
    fields: dict[str, str] | None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Row:
        """Return the row from the driver's mapping; columns of unexpected types (a foreign table) become None."""
        held, granted, fields = found.get("held"), found.get("granted"), found.get("fields")
        return cls(
            held if isinstance(held, bool) else None,
            granted if isinstance(granted, int) and 0 <= granted <= GRANTED_MAX else None,
            _uuid(found.get("incarnation")),
            _uuid(found.get("revision")),
            bounded(fields) if isinstance(fields, Mapping) else None,
        )

    @property
    def is_sound(self) -> bool:
        """Whether no column is damaged."""
        return None not in self

    @property
    def incarnation_text(self) -> str:
        """The incarnation prefixed with the count of its grant, so that a Replace knows the next count."""
        damaged = DAMAGED if self.held is None else ""
        return f"{damaged}{self.granted or 0}-{self.incarnation or ''}"

    @property
    def revision_text(self) -> str:
        """The revision as text."""
        return str(self.revision or "")

    def snapshot(self, space: Space) -> Snapshot:
        """Return the row as a snapshot. Only a lock's count outlives the record, so only locks have a token."""
        token = self.granted if space.is_lock else None
        fields = self.fields if self.is_sound and self.fields is not None else unreadable(NO_HEAD)
        return Snapshot(dict(fields), self.incarnation_text, self.revision_text, token=token)


def granted_row(fields: Mapping[str, str], after: int, wall: float) -> Row:
    """Return the row of a new incarnation. Its count is higher than the last one, even if that one was lost.

    Raises StoreRefused if there is no higher count.
    """
    if after >= GRANTED_MAX:
        raise StoreRefused(
            f"the count of grants of this key is {after}, the largest there is: another program wrote it; let an "
            "administrator delete its row, and reset whatever checks its tokens"
        )
    drawn = uuid4()
    return Row(True, max(after + 1, int(wall * 1000)), drawn, drawn, dict(fields))


def extended_row(row: Row, fields: Mapping[str, str]) -> Row:
    """Return the row with fields merged into it and a new unique revision."""
    return row._replace(revision=uuid4(), fields={**(row.fields or {}), **fields})


def expected(incarnation: str) -> Row | None:
    """Parse `incarnation_text` into held, granted and incarnation of a row; return None if invalid: no row has it."""
    damaged = incarnation.startswith(DAMAGED)
    text, dash, drawn = incarnation.removeprefix(DAMAGED).partition("-")
    count = whole(text)
    if count is None or not dash:
        return None
    try:
        return Row(None if damaged else True, count, UUID(drawn) if drawn else None, None, None)
    except ValueError:
        return None


def expected_revision(revision: str) -> tuple[UUID | None] | None:
    """Parse `revision_text`; return None if it is invalid."""
    try:
        return (UUID(revision) if revision else None,)
    except ValueError:
        return None


def at(name: Name) -> tuple[str, str, str]:
    """Return the primary key of a name's row; raise StoreRefused if it is longer than the server's index supports."""
    if len(name.key.encode()) + len(name.part.encode()) > NAME_BYTES_MAX:
        raise StoreRefused(f"the name of the record {name.key[:24]!r}… is longer than {NAME_BYTES_MAX} bytes")
    return name.space.value, name.key, name.part


def _uuid(value: object) -> UUID | None:
    return value if isinstance(value, UUID) else None
