"""The scripts that carry out commands: which statements they send, and what the rows mean.

Must not know connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from lockstead.errors import OutcomeUnknown, StoreUnavailable
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
)
from lockstead.script import Script
from lockstead.stores.paging import cursor, text_place
from lockstead.stores.postgres.encoding import At, at, changed, encoded, listing, named, seconds, shown, snapshot
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.statements import Statements, bucket, topic
from lockstead.values import Name

T = TypeVar("T")

Request: TypeAlias = "tuple[bytes, Sequence[str | None]]"
"""A statement and its parameters."""

Operation: TypeAlias = Script[Request, "list[Row]", T]

LEFT_MAX: Final = 10_000
"""Maximum number of records remembered as left free; far more than a process releases and acquires again."""


class Operations:
    """The scripts of one store. Safe to share between threads."""

    def __init__(self, url: str, statements: Statements, on_acquire: Callable[[str], None]) -> None:
        """url: without credentials. on_acquire is called with the topic of each record that is asked for."""
        self._url = url
        self._statements = statements
        self._on_acquire = on_acquire
        # released by us while nobody waited, so most likely still free: acquired by a plain UPDATE
        self._left: set[At] = set()

    def carry_out(self, command: Command[Any], ends_at: float) -> Operation[Any]:
        """Carry out a command by one statement, unless that finds nothing to change. ends_at: monotonic clock."""
        match command:
            case Create():
                return (yield from self._create(command))
            case Remove():
                return (yield from self._remove(command, ends_at))
            case Extend():
                number = _bucket(command.name) if command.fields else None
                asked = (*_expected(command), encoded(dict(command.fields)), number)
                row = yield from self._change(self._statements.extend, command, asked, ends_at)
                return snapshot(row) if isinstance(row, list) else row
            case Replace():
                self._on_acquire(topic(command.name))
                fields = dict(command.fields)
                asked = (*_expected(command), encoded(fields), _bucket(command.name))
                row = yield from self._change(self._statements.replace, command, asked, ends_at)
                return snapshot(row, fields) if isinstance(row, list) else row
            case Read():
                return shown((yield self._statements.read, at(command.name)))
            case List():
                return (yield from self._list(command))
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")

    def extend_many(self, commands: Sequence[Extend]) -> Operation[list[Any]]:
        """Renew many records by one statement. None stands for one that must be renewed alone."""
        asked = [
            {
                **named(command.name),
                "fields": dict(command.fields),
                "granted": command.incarnation,
                "revision": command.revision,
                "bucket": bucket(topic(command.name)) if command.fields else None,
            }
            for command in commands
        ]
        return _each(self._statements.extend_many, asked, changed)

    def read_many(self, commands: Sequence[Read]) -> Operation[list[Any]]:
        """Read many records by one statement."""
        return _each(self._statements.read_many, [named(command.name) for command in commands], shown)

    def _list(self, command: List) -> Operation[Listing]:
        last = text_place(command, 2) or ("", "")
        under = (command.space.value, *last, None if command.page is None else str(command.page))
        if command.key is None:
            rows = yield self._statements.list, under
        else:
            rows = yield self._statements.list_key, (*under, command.key, command.part_prefix)
        next_cursor = cursor(command, str(rows[-1][0]), str(rows[-1][1])) if len(rows) == command.page else None
        return listing(command, rows, next_cursor)

    def _create(self, command: Create) -> Operation[Snapshot | Conflict]:
        self._on_acquire(topic(command.name))
        place, fields = at(command.name), dict(command.fields)
        asked = (*place, encoded(fields))
        rows: list[Row] = []
        if place in self._left:
            self._left.discard(place)
            rows = yield self._statements.retake, asked
        if not rows:
            rows = yield self._statements.create, asked
        return snapshot(rows[0], fields) if rows else Conflict()

    def _remove(self, command: Remove, ends_at: float) -> Operation[Removed | Conflict | Absent]:
        asked = (*_expected(command), _bucket(command.name))
        row = yield from self._change(self._statements.remove, command, asked, ends_at)
        if not isinstance(row, list):
            return row
        removed_at, notified = row
        if notified is None:
            if len(self._left) >= LEFT_MAX:
                self._left.clear()
            self._left.add(at(command.name))
        return Removed(seconds(removed_at))

    def _change(
        self, statement: bytes, command: Extend | Replace | Remove, asked: Sequence[str | None], ends_at: float
    ) -> Operation[Row | Conflict | Absent]:
        """Carry out a change; if it changed no row, read whether there is another record or none."""
        # a change that begins when hardly any time is left ends with an unknown outcome
        last_begins_at = (time.monotonic() + ends_at) / 2
        while True:
            rows = yield statement, asked
            if rows:
                return rows[0]
            try:
                found = yield self._statements.state, at(command.name)
            except OutcomeUnknown as error:
                raise StoreUnavailable(str(error)) from error  # of the read: the change certainly changed nothing
            if not found:
                return Absent()
            if command.incarnation not in (None, found[0][0]) or command.revision not in (None, found[0][1]):
                return Conflict()
            if time.monotonic() >= last_begins_at:
                # a trigger may prevent every change of a row
                raise StoreUnavailable(f"{self._url} changes nothing of {command.name.key!r}, though it is as expected")
            # the expected record was written between the two statements


def _each(
    statement: bytes, asked: Sequence[Mapping[str, Any]], read: Callable[[Sequence[Row]], Any]
) -> Operation[list[Any]]:
    """Return what is read from the row of each record that is asked for; read gets no rows where there is none."""
    rows = yield statement, (encoded([{"n": number, **one} for number, one in enumerate(asked)]),)
    found = {int(row[0] or 0): [row[1:]] for row in rows}
    return [read(found.get(number, ())) for number in range(len(asked))]


def _expected(command: Extend | Replace | Remove) -> tuple[str | None, ...]:
    return (*at(command.name), command.incarnation, command.revision)


def _bucket(name: Name) -> str:
    return str(bucket(topic(name)))
