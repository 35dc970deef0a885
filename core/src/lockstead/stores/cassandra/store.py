"""Records in a table of Cassandra or ScyllaDB, written by lightweight transactions, one row for each record.

Every write names the exact state it expects, so no write is applied twice and no late write affects a successor. The
count of grants stays in the row when the lock is free. Must not know what the fields of a record mean.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar, cast
from uuid import UUID, uuid4

from lockstead.errors import OutcomeUnknown, StoreRefused
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.stores import paging
from lockstead.stores.cassandra import rows
from lockstead.stores.cassandra.connection import Connection, Found, MakeCluster
from lockstead.stores.cassandra.rows import Row, at
from lockstead.stores.kept import is_expected
from lockstead.stores.port import StoreBase
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.cassandra.url import Where
    from lockstead.stores.examination import Finding, Guarantee

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="cassandra",
    guarantee="consensus: Paxos among the replicas of each key, as many as the keyspace has; no clock decides",
    clock=StoreClock.NONE,
    tokens=TokenSource.NATIVE,
    ttl_recommended=5.0,
)

AGAIN_MAX: Final = 0.02
"""Maximum seconds until an Extend that lost against another is retried; random, the maximum doubles up to 16 times."""


class CassandraStore(StoreBase):
    """Records in one table. Guarantees nothing if another program writes to, truncates or restores the table.

    make returns an unconnected Cluster supplied by the caller. wall returns seconds since the epoch, used only for the
    count of grants.
    """

    traits = TRAITS

    def __init__(
        self, where: Where, make: Callable[[], object] | None = None, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._where = where
        self.url = where.url
        self._wall = wall
        self._connection = Connection(where, cast(MakeCluster | None, make))

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds: one request, or two if the row must be known first.

        If several requests write, the replies to all but the last said that nothing was written. Raises
        StoreUnavailable (nothing was written), OutcomeUnknown or StoreRefused.
        """
        ends_at = time.monotonic() + limit
        answer: object
        match command:
            case Read():
                answer = self._read(command.name, ends_at)
            case Extend():
                answer = self._extend(command, ends_at)
            case Create():
                answer = self._create(command, ends_at)
            case Remove():
                answer = self._remove(command, ends_at)
            case Replace():
                answer = self._replace(command, ends_at)
            case List():
                answer = self._list(command, ends_at)
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")
        return cast(A, answer)

    # --- looking -------------------------------------------------------------------------------------------------

    def _read(self, name: Name, ends_at: float) -> Snapshot | Absent:
        row = self._find(name, ends_at)
        return Absent() if row is None else row.snapshot(name.space)

    def _find(self, name: Name, ends_at: float) -> Row | None:
        """Return the row of a record that is held or damaged; None if there is none."""
        found = self._connection.ask(rows.READ, at(name), ends_at)
        row = Row.of(found[0]) if found else None
        return row if row is not None and row.held is not False else None

    def _list(self, command: List, ends_at: float) -> Listing:
        space, place, state = command.space, paging.text_place(command, 1), None
        if command.key is None:
            before = None if place is None else _state(place[0])
            found, state = self._connection.page(rows.LIST_ALL, (), ends_at, command.page, before)
        elif place is None:
            # a partition is read at one instant, so its records are all in one page
            found = self._connection.ask(rows.LIST_KEY, (space.value, command.key), ends_at)
        else:
            raise paging.refused_cursor()
        ours = (row for row in found if row.get("space", space.value) == space.value)
        named = ((Name(row["key"], space, row["part"]), Row.of(row)) for row in ours)
        shown = (pair for pair in named if command.shows(pair[0]) and pair[1].held is not False)
        entries = tuple((name, row.snapshot(space)) for name, row in shown)
        return Listing(entries, None if state is None else paging.cursor(command, state.hex()))

    # --- writing -------------------------------------------------------------------------------------------------

    def _create(self, command: Create, ends_at: float) -> Snapshot | Conflict:
        # no read first: the reply to a refused INSERT contains the row
        name, space = command.name, command.name.space
        made = rows.granted_row(command.fields, 0, self._wall())
        values = (*at(name), made.granted, made.incarnation, made.revision, made.fields)
        refused = self._refusal(self._connection.ask(rows.INSERT, values, ends_at), made.revision)
        if refused is None:
            return made.snapshot(space)
        row = Row.of(refused)
        if row.held is not False:
            return Conflict()
        made = rows.granted_row(command.fields, row.granted or 0, self._wall())
        return Conflict() if self._swap(name, row, made, ends_at) is not None else made.snapshot(space)

    def _replace(self, command: Replace, ends_at: float) -> Snapshot | Conflict | Absent:
        state, revision = rows.expected(command.incarnation), rows.expected_revision(command.revision)
        if state is None or revision is None:
            return self._mismatch(command.name, ends_at)
        row = state._replace(revision=revision[0])
        made = rows.granted_row(command.fields, state.granted or 0, self._wall())
        refused = self._swap(command.name, row, made, ends_at)
        return made.snapshot(command.name.space) if refused is None else _unmet(refused)

    def _extend(self, command: Extend, ends_at: float) -> Snapshot | Conflict | Absent:
        name, longest = command.name, AGAIN_MAX
        while True:
            row = self._find(name, ends_at)
            if row is None:
                return Absent()
            if not is_expected(command, row.incarnation_text, row.revision_text):
                return Conflict()
            if not row.is_sound:
                raise StoreRefused(
                    f"the record of {name.key!r} in {self.url} is damaged: columns of its row are missing; "
                    "break it with now=True (--now)"
                )
            made = rows.extended_row(row, command.fields)
            refused = self._swap(name, row, made, ends_at)
            if refused is None:
                return made.snapshot(name.space)
            # another Extend was faster; ours wrote nothing and must merge the fields of the other
            time.sleep(max(0.0, min(random.uniform(0, longest), ends_at - time.monotonic())))
            longest = min(longest * 2, AGAIN_MAX * 16)

    def _remove(self, command: Remove, ends_at: float) -> Removed | Conflict | Absent:
        name = command.name
        state = rows.expected(command.incarnation)
        revision = () if command.revision is None else rows.expected_revision(command.revision)
        if state is None or revision is None:
            return self._mismatch(name, ends_at)
        drawn = uuid4()
        expects = (*at(name), state.held, state.incarnation, *revision)
        if name.space.is_lock:
            statement = rows.FREE if command.revision is None else rows.FREE_AT
            refused = self._refusal(self._connection.ask(statement, (drawn, *expects), ends_at), drawn)
        else:
            # each member and audit entry has a new name, so freed rows would fill the partition of their key
            statement = rows.DELETE if command.revision is None else rows.DELETE_AT
            refused = self._refusal(self._connection.ask(statement, expects, ends_at), None)
        return Removed() if refused is None else _unmet(refused)

    def _swap(self, name: Name, row: Row, made: Row, ends_at: float) -> Mapping[str, object] | None:
        """Replace `row` by `made`; return None, or the row that was found instead."""
        values = (made.granted, made.incarnation, made.revision, made.fields)
        expects = (row.held, row.incarnation, row.revision)
        found = self._connection.ask(rows.UPDATE, (*values, *at(name), *expects), ends_at)
        return self._refusal(found, made.revision)

    def _refusal(self, found: Found, drawn: UUID | None) -> Mapping[str, object] | None:
        """Return None if a conditional write was applied, else the row that prevented it."""
        if not found:
            raise OutcomeUnknown(f"{self.url}: the server does not say whether a conditional write was applied")
        seen = found[0]
        # a refusal that shows our own unique revision is a success, reported by the second delivery of one request
        is_ours = drawn is not None and seen.get("revision") == drawn
        return None if seen.get("[applied]") or is_ours else seen

    def _mismatch(self, name: Name, ends_at: float) -> Conflict | Absent:
        """Return the result of a command whose expected state no row can have."""
        return Absent() if self._find(name, ends_at) is None else Conflict()

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """Return what in this store is behind a guarantee."""
        from lockstead.stores.cassandra.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as in the port
        """Check the cluster: its version, its nodes, the replication of the keyspace, the table."""
        from lockstead.stores.cassandra.doctor import examination

        yield self._where.transport()
        yield from examination(self._connection.look, self._where, limit)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget every inherited connection without closing it; the child opens its own."""
        self._connection.after_fork()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()


def _state(text: str) -> bytes:
    """Return the state of a page from a cursor."""
    try:
        state = bytes.fromhex(text)
    except ValueError as error:
        raise paging.refused_cursor() from error
    if not state:
        raise paging.refused_cursor()  # the driver would begin again
    return state


def _unmet(refused: Mapping[str, object]) -> Conflict | Absent:
    """Return the result of a command whose expectation was not met; a missing row has no columns in the reply."""
    return Absent() if Row.of(refused).held is False or "incarnation" not in refused else Conflict()
