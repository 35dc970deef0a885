"""How records are kept in one table of a PostgreSQL database: what a command changes, one statement changes.

Time is the server's `clock_timestamp()`, read by the statement itself; `updated` never goes back. A row outlives its
record, so that its counter, incarnation and fencing token in one, goes on. Must not know what the fields of a record
mean.
"""

from __future__ import annotations

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
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.stores.kept import senseless
from lockstead.stores.pool import Pool
from lockstead.stores.postgres.connection import Connection
from lockstead.stores.postgres.doctor import BEHIND, examination
from lockstead.stores.postgres.encoding import At, at, changed, encoded, listing, named, seconds, shown, written
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.opening import CONNECTIONS_MAX, SERVES, opened
from lockstead.stores.postgres.statements import bucket, statements
from lockstead.stores.postgres.url import Target
from lockstead.stores.postgres.watches import Listener
from lockstead.stores.subscriptions import OnChange, Subscription
from lockstead.stores.transport import transport
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="postgresql",
    guarantee="one primary server and its clock; over a fail-over what was replicated synchronously",
    clock=StoreClock.ONE_CLOCK,
    tokens=TokenSource.NATIVE,
)


class PostgresStore:
    """Records in a PostgreSQL database. Promises nothing over a fail-over that loses what was committed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._statements = statements(target.schema)
        self._pool = Pool(target.url, self._open, CONNECTIONS_MAX, age_max=SERVES)
        self._listener = Listener(target, self._statements, self._ask_within)
        self._left: set[At] = set()
        """What we gave back while nobody waited: most likely it is free still, and taken by a plain UPDATE."""

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
        """Carry out one command within `limit` seconds: by one statement, unless it finds nothing to change.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown or StoreRefused.
        """
        try:
            return self._carry_out(command, time.monotonic() + limit)
        except UNLIKE_ROWS as error:
            raise senseless(self.url, error) from error

    def _carry_out(self, command: Command[A], ends_at: float) -> A:
        answer: object
        match command:
            case Create():
                answer = self._create(command, ends_at)
            case Remove():
                answer = self._remove(command, ends_at)
            case Extend():
                rung = _rung(command.name) if command.fields else None
                asked = (*_expected(command), encoded(dict(command.fields)), rung)
                row = self._change(self._statements.extend, command, asked, ends_at)
                answer = written(row) if isinstance(row, list) else row
            case Replace():
                self._listener.asks(command.name.key)
                fields = dict(command.fields)
                asked = (*_expected(command), encoded(fields), _rung(command.name))
                row = self._change(self._statements.replace, command, asked, ends_at)
                answer = written(row, fields) if isinstance(row, list) else row
            case Read():
                answer = shown(self._ask(self._statements.read, at(command.name), ends_at))
            case List():
                under = (command.space.value, command.key, command.part_prefix)
                answer = listing(command.space, self._ask(self._statements.list, under, ends_at))
            case _:
                raise TypeError(f"not a command for a store: {type(command).__name__}")
        return cast(A, answer)

    def _ask(self, statement: bytes, parameters: Sequence[str | None], ends_at: float) -> list[Row]:
        connection = self._pool.take(self.url, ends_at)
        try:
            return connection.ask(statement, parameters, max(0.001, ends_at - time.monotonic()))
        finally:
            self._pool.give_back(self.url, connection)

    def _open(self, _url: str, ends_at: float) -> Connection:
        return opened(self._target, self._statements, ends_at)

    def _ask_within(self, statement: bytes, parameters: tuple[str, ...], limit: float) -> list[Row]:
        return self._ask(statement, parameters, time.monotonic() + limit)

    def _create(self, command: Create, ends_at: float) -> Snapshot | Conflict:
        self._listener.asks(command.name.key)
        place, fields = at(command.name), dict(command.fields)
        asked = (*place, encoded(fields))
        rows: list[Row] = []
        if place in self._left:
            self._left.discard(place)
            rows = self._ask(self._statements.retake, asked, ends_at)
        if not rows:
            rows = self._ask(self._statements.create, asked, ends_at)
        return written(rows[0], fields) if rows else Conflict()

    def _remove(self, command: Remove, ends_at: float) -> Removed | Conflict | Absent:
        row = self._change(self._statements.remove, command, (*_expected(command), _rung(command.name)), ends_at)
        if not isinstance(row, list):
            return row
        stamped, told = row
        if told is None:
            if len(self._left) >= LEFT_MAX:
                self._left.clear()
            self._left.add(at(command.name))
        return Removed(seconds(stamped))

    def _change(
        self, statement: bytes, command: Extend | Replace | Remove, asked: Sequence[str | None], ends_at: float
    ) -> Row | Conflict | Absent:
        """Carry out a change; where it found nothing to change, look whether another record stands there, or none."""
        # a change that begins when hardly any time is left ends with an unknown outcome
        last_begins_at = (time.monotonic() + ends_at) / 2
        while True:
            rows = self._ask(statement, asked, ends_at)
            if rows:
                return rows[0]
            try:
                found = self._ask(self._statements.state, at(command.name), ends_at)
            except OutcomeUnknown as error:
                raise StoreUnavailable(str(error)) from error  # of the look: it is certain that nothing was changed
            if not found:
                return Absent()
            if command.incarnation not in (None, found[0][0]) or command.revision not in (None, found[0][1]):
                return Conflict()
            if time.monotonic() >= last_begins_at:
                # a trigger may keep every change of a row from being made
                raise StoreUnavailable(f"{self.url} changes nothing of {command.name.key!r}, though it is as expected")
            # what was expected came to stand there between the two

    # --- many at once --------------------------------------------------------------------------------------------

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out many commands, all Extends by one statement and all Reads by another. Raises nothing."""
        answers: list[Any] = [None] * len(commands)
        ends_at = time.monotonic() + limit
        extends: dict[Name, int] = {}
        reads: list[int] = []
        alone: list[int] = []
        locked: list[int] = []
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
                found = several([commands[number] for number in numbers], ends_at)
            except StoreRefused:
                alone = sorted((*alone, *numbers))  # one that is refused refuses all: each is asked by itself
                continue
            except StoreError as error:
                found = [error] * len(numbers)
            except UNLIKE_ROWS as error:
                found = [senseless(self.url, error)] * len(numbers)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
            # 18.0 and 18.1 lose a row of such a statement if somebody changed it in the same moment
            alone += [number for number in numbers if isinstance(answers[number], Conflict)]
            locked += [number for number in numbers if answers[number] is None]
        for left, number in zip(range(len(alone) + len(locked), 0, -1), (*alone, *locked), strict=True):
            # one that waits for a locked row leaves as much time to each after it
            share = 1 if left > len(locked) else left
            try:
                answers[number] = self.perform(commands[number], max(0.001, (ends_at - time.monotonic()) / share))
            except StoreError as error:
                answers[number] = error
        return answers

    def _extend_many(self, commands: Sequence[Extend], ends_at: float) -> list[Any]:
        asked = [
            {
                "n": number,
                **named(command.name),
                "fields": dict(command.fields),
                "granted": command.incarnation,
                "revision": command.revision,
                "bucket": bucket(command.name.key) if command.fields else None,
            }
            for number, command in enumerate(commands)
        ]
        rows = self._ask(self._statements.extend_many, (encoded(asked),), ends_at)
        found = {int(row[0] or 0): row[1:] for row in rows}
        return [changed([found[number]] if number in found else []) for number in range(len(commands))]

    def _read_many(self, commands: Sequence[Read], ends_at: float) -> list[Any]:
        asked = [{"n": number, **named(command.name)} for number, command in enumerate(commands)]
        rows = self._ask(self._statements.read_many, (encoded(asked),), ends_at)
        found = {int(row[0] or 0): row[1:] for row in rows}
        return [shown([found[number]] if number in found else []) for number in range(len(commands))]

    # --- waiting -------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Subscribe to changes of a record: by notifications, or by looks of one thread where there can be none."""
        return self._listener.subscribe(name, on_change)

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """What of PostgreSQL keeps which promise."""
        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Look at the server's durability, its standbys, what stands between, and the role's rights."""
        connection = self._pool.take(self.url, time.monotonic() + limit)
        try:
            verified = self._target.is_verified
            yield transport(
                [connection.host],
                tls=connection.is_encrypted,
                is_verified=verified,
                has_password=False,
                way="sslmode=verify-full",
            )
            yield from examination(connection, self._target.schema, limit)
        finally:
            self._pool.give_back(self.url, connection)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget every inherited connection; psycopg closes none that another process opened."""
        self._pool = self._pool.forget()
        self._listener = self._listener.forget()

    def close(self) -> None:
        """Close every connection; those in use as soon as they are given back."""
        self._listener.close()
        self._pool.close()


UNLIKE_ROWS: Final = (ValueError, IndexError, KeyError)
"""What comes of reading rows that have other columns than those that were asked for."""

LEFT_MAX: Final = 10_000
"""Records of which it is kept in mind that they were left free; far more than a process gives back and takes again."""


def _expected(command: Extend | Replace | Remove) -> tuple[str | None, ...]:
    return (*at(command.name), command.incarnation, command.revision)


def _rung(name: Name) -> str:
    return str(bucket(name.key))
