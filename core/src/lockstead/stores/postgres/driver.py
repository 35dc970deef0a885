# Generated from aio_driver.py by `make blocking`: edit that file instead.
"""What carries out scripts on a PostgreSQL server, blocking. Must not know what the statements are."""

from __future__ import annotations

import time

from lockstead.stores.bounds import Bounds
from lockstead.stores.driver import DriverBase
from lockstead.stores.pool import Pool
from lockstead.stores.postgres.connection import Connection, run
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.opening import AGE_MAX, CONNECTIONS_MAX, opened
from lockstead.stores.postgres.operations import Request
from lockstead.stores.postgres.statements import Statements
from lockstead.stores.postgres.url import Target


class Driver(DriverBase[Request, "list[Row]"]):
    """The connections of one process, or of one event loop, to one database."""

    pool: Pool[str, Connection]

    def __init__(self, target: Target, statements: Statements) -> None:
        self.name = target.url
        self._target = target
        self._statements = statements
        self.pool = Pool(self.name, self._opened, CONNECTIONS_MAX, age_max=AGE_MAX)

    def _opened(self, _url: str, ends_at: float) -> Connection:
        return run(opened(Connection, self._target, self._statements, ends_at))

    def exchange(self, bounds: Bounds, request: Request) -> list[Row]:
        """Return the rows of one statement; see `Session.exchange`."""
        taken = self.pool.take(self.name, bounds.ends_at)
        try:
            return taken.ask(*request, max(0.001, bounds.ends_at - time.monotonic()))
        finally:
            self.pool.give_back(self.name, taken)
