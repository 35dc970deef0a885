"""How a record stands in a table of Cassandra, and which statements write and read it.

All conditional writes expect the very state that was read: no other statement ever writes to the table. Must not know
the driver, nor what the fields of a record mean.
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
    "WHERE space = ? AND key = ? AND part = ? IF held = ? AND incarnation = ?"
)
FREE_AT: Final = FREE + " AND revision = ?"
DELETE: Final = "DELETE FROM {into} WHERE space = ? AND key = ? AND part = ? IF held = ? AND incarnation = ?"
DELETE_AT: Final = DELETE + " AND revision = ?"
WRITES: Final = (INSERT, UPDATE, FREE, FREE_AT, DELETE, DELETE_AT)

# what looks: at one partition with the consistency of Paxos, at all of them with that of a quorum
READ: Final = "SELECT held, granted, incarnation, revision, fields FROM {into} WHERE space = ? AND key = ? AND part = ?"
LIST_KEY: Final = (
    "SELECT key, part, held, granted, incarnation, revision, fields FROM {into} WHERE space = ? AND key = ?"
)
LIST_ALL: Final = "SELECT space, key, part, held, granted, incarnation, revision, fields FROM {into}"
SERIAL_READS: Final = (READ, LIST_KEY)

GRANTED_MAX: Final = 2**63 - 1
"""The last count that the column holds."""


class Row(NamedTuple):
    """A row as it stands. What is None has been damaged; granted counts grants and outlives them.

    A row that does not say whether it is held is held, and by nobody: an operator can remove it.
    """

    held: bool | None
    granted: int | None
    incarnation: UUID | None
    revision: UUID | None
    fields: dict[str, str] | None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Row:
        """Read what the driver gives for a row: of other types than ours are the columns of somebody else's table."""
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
        """Whether nothing is missing."""
        return None not in self

    @property
    def incarnation_text(self) -> str:
        """The incarnation with the count of its grant before it, so that who replaces it knows the next count."""
        damaged = DAMAGED if self.held is None else ""
        return f"{damaged}{self.granted or 0}-{self.incarnation or ''}"

    @property
    def revision_text(self) -> str:
        """The revision as it is shown."""
        return str(self.revision or "")

    def snapshot(self, space: Space) -> Snapshot:
        """Return the row. Only a lock's count outlives the record, so only there it is a token."""
        token = self.granted if space is Space.LOCK else None
        fields = self.fields if self.is_sound and self.fields is not None else unreadable(NO_HEAD)
        return Snapshot(dict(fields), self.incarnation_text, self.revision_text, token=token)


def granted_row(fields: Mapping[str, str], after: int, wall: float) -> Row:
    """Return the row of a new incarnation. Its count is higher than the last one, also if that one was lost.

    StoreRefused if there is no higher count.
    """
    if after >= GRANTED_MAX:
        raise StoreRefused(
            f"the count of grants of this key is {after}, and none comes after it: somebody else wrote it; let an "
            "administrator delete its row, and begin anew whatever checks its tokens"
        )
    drawn = uuid4()
    return Row(True, max(after + 1, int(wall * 1000)), drawn, drawn, dict(fields))


def extended_row(row: Row, fields: Mapping[str, str]) -> Row:
    """Return the row with fields merged into it, of a revision that nobody has seen before."""
    return row._replace(revision=uuid4(), fields={**(row.fields or {}), **fields})


def expected(incarnation: str) -> Row | None:
    """Read `incarnation_text`: held, granted and incarnation of a row. None for what is none, and so stands nowhere."""
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


def _uuid(said: object) -> UUID | None:
    return said if isinstance(said, UUID) else None
