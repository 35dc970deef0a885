"""Records in one table of a PostgreSQL database; each command changes it by one statement.

Time is the server's `clock_timestamp()`, read by the statement itself; `updated` never goes back. A row outlives its
record, so its counter, which is both incarnation and fencing token, continues. Must not know what the fields of a
record mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import StoreError, StoreRefused
from lockstead.protocol.commands import (
    Command,
    Conflict,
    Extend,
    Read,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.stores.bounds import Bounds
from lockstead.stores.driven import DrivenStore
from lockstead.stores.kept import outcome
from lockstead.stores.loops import PerLoop
from lockstead.stores.postgres.aio_driver import AsyncDriver
from lockstead.stores.postgres.driver import Driver
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.operations import Operation, Operations
from lockstead.stores.postgres.statements import statements
from lockstead.stores.postgres.url import Target
from lockstead.stores.postgres.watches import Listener
from lockstead.stores.subscriptions import OnChange, Subscription
from lockstead.stores.transport import transport
from lockstead.values import Name

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee

TRAITS: Final = Traits(
    scheme="postgresql",
    guarantee="one primary server and its clock; over a failover what was replicated synchronously",
    clock=StoreClock.ONE_CLOCK,
    tokens=TokenSource.NATIVE,
)


class PostgresStore(DrivenStore[Driver, AsyncDriver]):
    """Records in a PostgreSQL database. Guarantees nothing over a failover that loses committed changes."""

    traits = TRAITS

    def __init__(self, target: Target) -> None:
        self._target = target
        self.url = target.url
        self._statements = statements(target.schema)
        super().__init__()

    def _begin(self) -> None:
        self._driver = Driver(self._target, self._statements)
        self._drivers = PerLoop(partial(AsyncDriver, self._target, self._statements), AsyncDriver.aclose)
        self._listener = Listener(self._target, self._statements, self._ask)
        self._operations = Operations(self.url, self._statements, self._listener.note_acquire)

    def _script(self, command: Command[Any], bounds: Bounds) -> Operation[Any]:
        return self._operations.carry_out(command, bounds.ends_at)

    def _ask(self, statement: bytes, parameters: Sequence[str | None], limit: float) -> list[Row]:
        return self._driver.exchange(Bounds(limit), (statement, parameters))

    # --- many at once --------------------------------------------------------------------------------------------

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> list[Any]:
        """Carry out many commands, all Extends by one statement and all Reads by another. Raises nothing."""
        answers: list[Any] = [None] * len(commands)
        bounds = Bounds(limit)
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
        together: list[tuple[list[int], Callable[[Sequence[Any]], Operation[list[Any]]]]]
        together = [(list(extends.values()), self._operations.extend_many), (reads, self._operations.read_many)]
        for numbers, several in together:
            if len(numbers) < 2:
                alone = sorted((*alone, *numbers))
                continue
            try:
                found = self._driver.run(several([commands[number] for number in numbers]), bounds)
            except StoreRefused:
                alone = sorted((*alone, *numbers))  # one that is refused refuses all: each is sent alone
                continue
            except StoreError as error:
                found = [error] * len(numbers)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
            # 18.0 and 18.1 lose a row of such a statement if it was changed concurrently
            alone += [number for number in numbers if isinstance(answers[number], Conflict)]
            locked += [number for number in numbers if answers[number] is None]
        for left, number in zip(range(len(alone) + len(locked), 0, -1), (*alone, *locked), strict=True):
            # one that waits for a locked row leaves the same time to each after it
            limit = (bounds.ends_at - time.monotonic()) / (1 if left > len(locked) else left)
            answers[number] = outcome(self.perform, commands[number], max(0.001, limit))
        return answers

    # --- waiting -------------------------------------------------------------------------------------------------

    def subscribe(self, name: Name, on_change: OnChange) -> Subscription:
        """Subscribe to changes of a record: by notifications, or by polling in one thread if there can be none."""
        return self._listener.subscribe(name, on_change)

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """Return what in this store is behind a guarantee."""
        from lockstead.stores.postgres.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:  # noqa: ARG002 - as the port
        """Check the server's durability, its standbys, the way to it, and the role's rights."""
        from lockstead.stores.postgres.doctor import examination

        pool = self._driver.pool
        taken = pool.take(self.url, time.monotonic() + limit)
        try:
            is_verified, way = self._target.is_verified, "sslmode=verify-full"
            yield transport([taken.host], tls=taken.is_encrypted, is_verified=is_verified, has_password=False, way=way)
            yield from examination(taken, self._target.schema, limit)
        finally:
            pool.give_back(self.url, taken)

    # --- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back."""
        self._listener.close()
        super().close()
