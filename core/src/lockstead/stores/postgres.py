"""Decides how records are kept in one table of a PostgreSQL database: what a command changes, one statement changes.

Time is the server's `clock_timestamp()`, read by the statement itself; `updated` never goes back. A row outlives its
record, so that its counter, incarnation and fencing token in one, goes on. Must not know what the fields of a record
mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
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
from lockstead.stores.postgres_doctor import BEHIND, examination
from lockstead.stores.postgres_listen import Listener, until_changed
from lockstead.stores.postgres_pool import Pool
from lockstead.stores.postgres_statements import bucket, statements
from lockstead.stores.postgres_url import Target
from lockstead.stores.postgres_wire import Row
from lockstead.values import Name, Space

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Promise

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="postgresql",
    guarantee="one primary server and its clock; over a fail-over what was replicated synchronously",
    clock=StoreClock.SHARED,
    tokens=TokenSource.NATIVE,
    wakes=True,
)

UNREADABLE: Final = {"v": "1"}
"""What is shown of a row whose fields are no map of text: neither free nor anybody's, and an operator can remove it."""

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class PostgresStore:
    """Records in a PostgreSQL database. Promises nothing over a fail-over that loses what was committed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._statements = statements(target.schema)
        self._pool = Pool(target, self._statements)
        self._listener = Listener(target, self._statements)

    def __repr__(self) -> str:
        return f"PostgresStore({self._target.url!r})"

    @property
    def traits(self) -> Traits:
        """What the protocol must know of this store."""
        return TRAITS

    @property
    def url(self) -> str:
        """The URL without user and password."""
        return self._target.url

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command as one statement, within `limit` seconds.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown or StoreRefused.
        """
        answer: object
        sql = self._statements
        match command:
            case Read():
                answer = _shown(self._ask(sql.read, _at(command.name), limit))
            case List():
                asked = (command.space.value, command.key, command.part_prefix)
                answer = _listing(command.space, self._ask(sql.list, asked, limit))
            case Create():
                self._listener.asks(command.name.key)
                fields = dict(command.fields)
                rows = self._ask(sql.create, (*_at(command.name), _encode(fields)), limit)
                answer = _written(rows[0], fields) if rows else Conflict()
            case Extend():
                rung = bucket(command.name.key) if command.fields else None
                asked_extend = (*_expected(command), _encode(dict(command.fields)), rung)
                row = self._change(sql.extend, command, asked_extend, limit)
                answer = _snapshot(row) if isinstance(row, list) else row
            case Replace():
                self._listener.asks(command.name.key)
                fields = dict(command.fields)
                asked_replace = (*_expected(command), _encode(fields), bucket(command.name.key))
                row = self._change(sql.replace, command, asked_replace, limit)
                answer = _written(row, fields) if isinstance(row, list) else row
            case Remove():
                row = self._change(sql.remove, command, (*_expected(command), bucket(command.name.key)), limit)
                answer = Removed(_seconds(row[3])) if isinstance(row, list) else row
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")
        return cast(A, answer)

    def _ask(self, statement: bytes, parameters: Sequence[str | int | None], limit: float) -> list[Row]:
        ends_at = time.monotonic() + limit
        link = self._pool.take(ends_at)  # `lend` would take a tenth of a lock cycle
        try:
            return link.ask(statement, parameters, max(0.001, ends_at - time.monotonic()))
        finally:
            self._pool.give_back(link)

    def _change(
        self, statement: bytes, command: Extend | Replace | Remove, asked: Sequence[str | int | None], limit: float
    ) -> Row | Conflict | Absent:
        """Carry out a change; where it found nothing to change, look whether another record stands there, or none."""
        left = _Left(limit)
        while True:
            rows = self._ask(statement, asked, left.seconds)
            if rows:
                return rows[0]
            try:
                found = self._ask(self._statements.state, _at(command.name), left.seconds)
            except OutcomeUnknown as error:
                raise StoreUnavailable(str(error)) from error  # of the look: it is certain that nothing was changed
            if not found:
                return Absent()
            if command.incarnation not in (None, found[0][0]) or command.revision not in (None, found[0][1]):
                return Conflict()
            if left.is_over:
                # a trigger may keep every change of a row from being made
                raise StoreUnavailable(f"{self.url} changes nothing of {command.name.key!r}, though it is as expected")
            # what was expected came to stand there between the two

    # --- many at once --------------------------------------------------------------------------------------------

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out many commands, all Extends by one statement and all Reads by another. Raises nothing."""
        answers: list[Any] = [None] * len(commands)
        left = _Left(limit)
        extends: dict[Name, int] = {}
        reads: list[int] = []
        alone: list[int] = []
        for number, command in enumerate(commands):
            if isinstance(command, Extend) and command.name not in extends:
                extends[command.name] = number  # a statement changes a row once: a second one of a name goes alone
            elif isinstance(command, Read):
                reads.append(number)
            else:
                alone.append(number)
        together: list[tuple[list[int], Callable[[Sequence[Any], float], list[Any]]]]
        together = [(list(extends.values()), self._extend_many), (reads, self._read_many)]
        for numbers, several in together:
            if len(numbers) < 2:
                alone = sorted((*alone, *numbers))
                continue
            try:
                found = several([commands[number] for number in numbers], left.seconds)
            except StoreRefused:
                alone = sorted((*alone, *numbers))  # one that is refused refuses all: each is asked by itself
                continue
            except StoreError as error:
                found = [error] * len(numbers)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        for number in alone:
            try:
                answers[number] = self.perform(commands[number], left.seconds)
            except StoreError as error:
                answers[number] = error
        return answers

    def _extend_many(self, commands: Sequence[Extend], limit: float) -> list[Any]:
        asked = [
            {
                "n": number,
                **_named(command.name),
                "fields": dict(command.fields),
                "granted": command.incarnation,
                "revision": command.revision,
                "bucket": bucket(command.name.key) if command.fields else None,
            }
            for number, command in enumerate(commands)
        ]
        rows = self._ask(self._statements.extend_many, (_encode(asked),), limit)
        found = {int(row[0] or 0): row[1:] for row in rows}
        return [_changed([found[number]] if number in found else []) for number in range(len(commands))]

    def _read_many(self, commands: Sequence[Read], limit: float) -> list[Any]:
        asked = [{"n": number, **_named(command.name)} for number, command in enumerate(commands)]
        rows = self._ask(self._statements.read_many, (_encode(asked),), limit)
        found = {int(row[0] or 0): row[1:] for row in rows}
        return [_shown([found[number]] if number in found else []) for number in range(len(commands))]

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait(self, name: Name, seconds: float, is_over: Callable[[float], bool]) -> bool:
        """Block until the record changed (True), `seconds` passed, or the caller wants to stop (False).

        Wakes by a notification, or by looking every now and then where there can be none.
        """

        def look() -> Row | None:
            rows = self._ask(self._statements.state, _at(name), LOOK_LIMIT)
            return rows[0] if rows else None

        return until_changed(self._listener, name.key, look, seconds, is_over)

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Promise, str]:
        """What of PostgreSQL keeps which promise."""
        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Look at the server's durability, its standbys, what stands between, and the role's rights."""
        with self._pool.lend(limit) as link:
            yield from examination(link, self._target.schema, limit)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget every inherited connection; psycopg closes none that another process opened."""
        self._pool = self._pool.forget()
        self._listener = self._listener.forget()

    def close(self) -> None:
        """Close every connection; those in use as soon as they are given back."""
        self._listener.close()
        self._pool.close()


LOOK_LIMIT: Final = 5.0
"""Seconds that a look at a record may take while waiting for it."""


class _Left:
    """What is left of a limit."""

    def __init__(self, limit: float) -> None:
        self._ends_at = time.monotonic() + limit

    @property
    def seconds(self) -> float:
        return max(0.001, self._ends_at - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at


def _at(name: Name) -> tuple[str, str, str]:
    return name.space.value, name.key, name.part


def _named(name: Name) -> dict[str, str]:
    return {"space": name.space.value, "key": name.key, "part": name.part}


def _expected(command: Extend | Replace | Remove) -> tuple[str | None, ...]:
    return (*_at(command.name), command.incarnation, command.revision)


def _fields(text: str | None) -> Mapping[str, str] | None:
    """Give the fields of a row; None if another program wrote there: a map of text is all that is ours."""
    fields = {} if text is None else json.loads(text)
    return fields if all(isinstance(value, str) for value in fields.values()) else None


def _snapshot(row: Row) -> Snapshot:
    granted, revision, updated, now, text = row[:5]
    fields = _fields(text)
    if fields is None:
        return Snapshot(UNREADABLE, str(granted), str(revision))
    if updated is None or now is None:  # stamped by another server, or by this one before it was restarted
        return Snapshot(fields, str(granted), str(revision), token=int(granted or 0))
    return _written(row, fields)


def _written(row: Row, fields: Mapping[str, str]) -> Snapshot:
    granted = str(row[0])
    return Snapshot(fields, granted, str(row[1]), _seconds(row[2]), _seconds(row[3]), int(granted))


def _seconds(microseconds: str | None) -> float:
    return int(microseconds or 0) / 1e6


def _shown(rows: Sequence[Row]) -> Snapshot | Absent:
    return _snapshot(rows[0]) if rows else Absent()


def _changed(rows: Sequence[Row]) -> Snapshot | Conflict | Absent:
    if not rows:
        return Absent()
    return Conflict() if rows[0][0] is None else _snapshot(rows[0])


def _listing(space: Space, rows: Sequence[Row]) -> Listing:
    return Listing(tuple((Name(str(row[0]), space, str(row[1])), _snapshot(row[2:])) for row in rows))
