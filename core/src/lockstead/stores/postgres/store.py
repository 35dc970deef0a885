"""Records in one table of a PostgreSQL database; each command changes it by one statement.

Time is the server's `clock_timestamp()`, read by the statement itself; `updated` never goes back. A row outlives its
record, so its counter, which is both incarnation and fencing token, continues. Must not know what the fields of a
record mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.aio_script import drive as adrive
from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Command,
    Conflict,
    Extend,
    Read,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.script import drive
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.kept import senseless
from lockstead.stores.loops import PerLoop
from lockstead.stores.pool import Pool
from lockstead.stores.port import StoreBase
from lockstead.stores.postgres import aio_connection, connection
from lockstead.stores.postgres.aio_connection import AsyncConnection
from lockstead.stores.postgres.connection import Connection
from lockstead.stores.postgres.doctor import BEHIND, examination
from lockstead.stores.postgres.encoding import changed, encoded, named, shown
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.opening import AGE_MAX, CONNECTIONS_MAX, opened
from lockstead.stores.postgres.operations import Operations
from lockstead.stores.postgres.statements import bucket, statements, topic
from lockstead.stores.postgres.url import Target
from lockstead.stores.postgres.watches import Listener
from lockstead.stores.subscriptions import OnChange, Subscription
from lockstead.stores.transport import transport
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="postgresql",
    guarantee="one primary server and its clock; over a failover what was replicated synchronously",
    clock=StoreClock.ONE_CLOCK,
    tokens=TokenSource.NATIVE,
)


class PostgresStore(StoreBase):
    """Records in a PostgreSQL database. Guarantees nothing over a failover that loses committed changes."""

    traits = TRAITS
    behind = BEHIND

    def __init__(self, target: Target) -> None:
        self._target = target
        self.url = target.url
        self._statements = statements(target.schema)
        self._pool = Pool(target.url, self._open, CONNECTIONS_MAX, age_max=AGE_MAX)
        self._listener = Listener(target, self._statements, self._ask_within)
        self._operations = Operations(target.url, self._statements, self._listener.note_acquire)
        self._pools = self._looped()
        self._inherited: list[object] = []
        self._is_open = True

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds: by one statement, unless it changes no row.

        Raises StoreUnavailable (nothing was changed), OutcomeUnknown or StoreRefused.
        """
        ends_at = time.monotonic() + limit
        script = self._operations.carry_out(command, ends_at)
        try:
            return cast(A, drive(script, lambda request: self._ask(*request, ends_at)))
        except UNLIKE_ROWS as error:
            raise senseless(self.url, error) from error

    def _ask(self, statement: bytes, parameters: Sequence[str | None], ends_at: float) -> list[Row]:
        taken = self._pool.take(self.url, ends_at)
        try:
            return taken.ask(statement, parameters, max(0.001, ends_at - time.monotonic()))
        finally:
            self._pool.give_back(self.url, taken)

    def _ask_within(self, statement: bytes, parameters: tuple[str, ...], limit: float) -> list[Row]:
        return self._ask(statement, parameters, time.monotonic() + limit)

    def _open(self, _url: str, ends_at: float) -> Connection:
        return connection.run(opened(Connection, self._target, self._statements, ends_at))

    # --- awaiting ------------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, awaiting, from any event loop of asyncio.

        If it is cancelled during a statement, the connection is closed and the outcome is unknown.
        """
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")
        ends_at = time.monotonic() + limit
        script = self._operations.carry_out(command, ends_at)
        pool = await self._pools.get()
        try:
            return await adrive(script, lambda request: self._ask_awaiting(pool, *request, ends_at))
        except UNLIKE_ROWS as error:
            raise senseless(self.url, error) from error

    async def _ask_awaiting(
        self,
        pool: AsyncPool[str, AsyncConnection],
        statement: bytes,
        parameters: Sequence[str | None],
        ends_at: float,
    ) -> list[Row]:
        taken = await pool.take(self.url, ends_at)
        try:
            return await taken.ask(statement, parameters, max(0.001, ends_at - time.monotonic()))
        finally:
            await pool.give_back(self.url, taken)

    async def _open_awaiting(self, _url: str, ends_at: float) -> AsyncConnection:
        return await aio_connection.run(opened(AsyncConnection, self._target, self._statements, ends_at))

    def _looped(self) -> PerLoop[AsyncPool[str, AsyncConnection]]:
        def pool() -> AsyncPool[str, AsyncConnection]:
            return AsyncPool(self.url, self._open_awaiting, CONNECTIONS_MAX, age_max=AGE_MAX)

        return PerLoop(pool, AsyncPool.aclose)

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
                extends[command.name] = number  # a statement changes a row once: a second command is sent alone
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
                alone = sorted((*alone, *numbers))  # one that is refused refuses all: each is sent alone
                continue
            except StoreError as error:
                found = [error] * len(numbers)
            except UNLIKE_ROWS as error:
                found = [senseless(self.url, error)] * len(numbers)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
            # 18.0 and 18.1 lose a row of such a statement if it was changed concurrently
            alone += [number for number in numbers if isinstance(answers[number], Conflict)]
            locked += [number for number in numbers if answers[number] is None]
        for left, number in zip(range(len(alone) + len(locked), 0, -1), (*alone, *locked), strict=True):
            # one that waits for a locked row leaves the same time to each after it
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
                "bucket": bucket(topic(command.name)) if command.fields else None,
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
        """Subscribe to changes of a record: by notifications, or by polling in one thread if there can be none."""
        return self._listener.subscribe(name, on_change)

    # --- examining -----------------------------------------------------------------------------------------------

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Check the server's durability, its standbys, the way to it, and the role's rights."""
        taken = self._pool.take(self.url, time.monotonic() + limit)
        try:
            is_verified, way = self._target.is_verified, "sslmode=verify-full"
            yield transport([taken.host], tls=taken.is_encrypted, is_verified=is_verified, has_password=False, way=way)
            yield from examination(taken, self._target.schema, limit)
        finally:
            self._pool.give_back(self.url, taken)

    # --- life ----------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Forget every inherited connection; psycopg closes none that another process opened."""
        self._pool = self._pool.forget()
        self._inherited.append(self._pools)  # collected, it would wake the parent's event loop
        self._pools = self._looped()
        self._listener = self._listener.forget()
        self._operations = Operations(self.url, self._statements, self._listener.note_acquire)

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back."""
        self._is_open = False
        self._listener.close()
        self._pool.close()
        self._pools.close()


UNLIKE_ROWS: Final = (ValueError, IndexError, KeyError)
"""Errors of reading rows that do not have the expected columns."""
