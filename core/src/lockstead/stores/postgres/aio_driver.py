"""What carries out scripts on a PostgreSQL server, awaiting. Must not know what the statements are."""

from __future__ import annotations

import time

from lockstead.stores.aio_driver import AsyncDriverBase
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.bounds import Bounds
from lockstead.stores.postgres.aio_connection import AsyncConnection, run
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.opening import AGE_MAX, CONNECTIONS_MAX, opened
from lockstead.stores.postgres.operations import Request
from lockstead.stores.postgres.statements import Statements
from lockstead.stores.postgres.url import Target


class AsyncDriver(AsyncDriverBase[Request, "list[Row]"]):
    """The connections of one process, or of one event loop, to one database."""

    pool: AsyncPool[str, AsyncConnection]

    def __init__(self, target: Target, statements: Statements) -> None:
        self.name = target.url
        self._target = target
        self._statements = statements
        self.pool = AsyncPool(self.name, self._opened, CONNECTIONS_MAX, age_max=AGE_MAX)

    async def _opened(self, _url: str, ends_at: float) -> AsyncConnection:
        return await run(opened(AsyncConnection, self._target, self._statements, ends_at))

    async def exchange(self, bounds: Bounds, request: Request) -> list[Row]:
        """Return the rows of one statement; see `Session.exchange`."""
        taken = await self.pool.take(self.name, bounds.ends_at)
        try:
            return await taken.ask(*request, max(0.001, bounds.ends_at - time.monotonic()))
        finally:
            await self.pool.give_back(self.name, taken)
