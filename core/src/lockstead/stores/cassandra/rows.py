"""Decides how a record stands in a table of Cassandra, and which statements write and read it.

All conditional writes expect the very state that was read: no other statement ever writes to the table. Must not know
the driver, nor what the fields of a record mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Snapshot
from lockstead.values import Name, Space

TABLE: Final = "lockstead_record"

NAME_BYTES_MAX: Final = 65_000
"""Key and part together: the server's own limit for a key is 65,535 bytes, and it does not hold a part against it."""

CREATE_KEYSPACE: Final = 'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" WITH replication = {replication}'
CREATE_TABLE: Final = (
    'CREATE TABLE IF NOT EXISTS "{keyspace}".{table} (space text, key text, part text, held boolean, granted bigint, '
    "incarnation uuid, revision uuid, fields frozen<map<text, text>>, PRIMARY KEY ((space, key), part))"
)
"""All records of one key and space stand in one partition, so that one serial read lists them."""

# {into} is the table with its keyspace. What writes: each statement names the state that it expects and nothing less
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
    "WHERE space = ? AND key = ? AND part = ? IF held = true AND incarnation = ?"
)
FREE_AT: Final = FREE + " AND revision = ?"
DELETE: Final = "DELETE FROM {into} WHERE space = ? AND key = ? AND part = ? IF held = true AND incarnation = ?"
DELETE_AT: Final = DELETE + " AND revision = ?"
WRITES: Final = (INSERT, UPDATE, FREE, FREE_AT, DELETE, DELETE_AT)

# what looks: at one partition with the consistency of Paxos, at all of them with that of a quorum
READ: Final = "SELECT held, granted, incarnation, revision, fields FROM {into} WHERE space = ? AND key = ? AND part = ?"
LIST_KEY: Final = (
    "SELECT key, part, held, granted, incarnation, revision, fields FROM {into} WHERE space = ? AND key = ?"
)
LIST_ALL: Final = "SELECT space, key, part, held, granted, incarnation, revision, fields FROM {into}"
SERIAL_READS: Final = (READ, LIST_KEY)

UNREADABLE: Final = {"v": "1"}
"""What is shown of a damaged row: the table is ours, so the record is one of ours that says nothing. An operator can
remove it; to everybody else it is neither free nor anybody's."""


class Row(NamedTuple):
    """A row as it stands. What is None has been damaged; granted counts grants and outlives them."""

    held: bool | None
    granted: int | None
    incarnation: UUID | None
    revision: UUID | None
    fields: dict[str, str] | None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Row:
        """Read what the driver gives for a row."""
        fields = found.get("fields")
        return cls(
            found.get("held"),
            found.get("granted"),
            found.get("incarnation"),
            found.get("revision"),
            None if fields is None else dict(fields),
        )

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing."""
        return None not in self

    def is_at(self, incarnation: str | None, revision: str | None) -> bool:
        """Tell whether this is the state that a command expects; None expects nothing."""
        return (incarnation is None or incarnation == self.incarnation_text) and (
            revision is None or revision == self.revision_text
        )

    @property
    def incarnation_text(self) -> str:
        """The incarnation with the count of its grant before it, so that who replaces it knows the next count."""
        return f"{self.granted or 0}-{self.incarnation or ''}"

    @property
    def revision_text(self) -> str:
        """The revision as it is shown."""
        return str(self.revision or "")

    def snapshot(self, space: Space) -> Snapshot:
        """Show the row. Only a lock's count outlives the record, so only there it is a token."""
        token = self.granted if space is Space.LOCK else None
        fields = self.fields if self.is_sound and self.fields is not None else UNREADABLE
        return Snapshot(dict(fields), self.incarnation_text, self.revision_text, token=token)


def granted_row(fields: Mapping[str, str], after: int, wall: float) -> Row:
    """Give the row of a new incarnation: its count is above the last one, and above it even if that was forgotten."""
    drawn = uuid4()
    return Row(True, max(after + 1, int(wall * 1000)), drawn, drawn, dict(fields))


def extended_row(row: Row, fields: Mapping[str, str]) -> Row:
    """Give the row with fields merged into it, of a revision that nobody has seen before."""
    return row._replace(revision=uuid4(), fields={**(row.fields or {}), **fields})


def expected(incarnation: str) -> tuple[int, UUID | None] | None:
    """Read `incarnation_text`; None for what is none, and so stands nowhere."""
    count, dash, drawn = incarnation.partition("-")
    try:
        return (int(count), UUID(drawn) if drawn else None) if dash else None
    except ValueError:
        return None


def expected_revision(revision: str) -> tuple[UUID | None] | None:
    """Read `revision_text`; None for what is none."""
    try:
        return (UUID(revision) if revision else None,)
    except ValueError:
        return None


def at(name: Name) -> tuple[str, str, str]:
    """Where the row of a name stands; StoreRefused if it is longer than an index of the server's can tell."""
    if len(name.key.encode()) + len(name.part.encode()) > NAME_BYTES_MAX:
        raise StoreRefused(f"the name of the record {name.key[:24]!r}… is longer than {NAME_BYTES_MAX} bytes")
    return name.space.value, name.key, name.part


def deletion(keyspace: str, name: Name) -> str:
    """Give the statement with which an administrator removes a row, as it is typed."""
    space, key, part = (text.replace("'", "''") for text in at(name))
    return (
        f'DELETE FROM "{keyspace}".{TABLE} '  # noqa: S608 - to be read and typed, never run from here
        f"WHERE space = '{space}' AND key = '{key}' AND part = '{part}' IF EXISTS"
    )
