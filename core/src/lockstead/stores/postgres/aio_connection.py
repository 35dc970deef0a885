"""Connections to a PostgreSQL server that wait in the caller: the scripts of `session`, driven.

Must not know what the statements are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from lockstead.aio_script import drive
from lockstead.stores.awaiting import aside, ready
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.session import Aside, Exchange, Session, Wait

T = TypeVar("T")


class AsyncConnection(Session):
    """One connection, for one thread or task at a time, as a pool needs it."""

    async def is_usable(self) -> bool:
        """Return whether the idle connection is open and nothing has arrived."""
        return self.is_quiet()

    async def ask(self, statement: bytes, parameters: Sequence[str | None], limit: float) -> list[Row]:
        """Return the rows of one statement; see `Session.exchange`."""
        try:
            return await run(self.exchange(statement, parameters, limit))
        except (Exception, GeneratorExit):  # GeneratorExit: collected, perhaps in a thread that holds a lock
            raise
        except BaseException:
            self.cancel_aside()
            raise

    async def aclose(self) -> None:
        """Close the connection. Idempotent; raises nothing."""
        self.finish()


async def run(script: Exchange[T]) -> T:
    """Return the result of a script. Raises what the script raises."""
    return await drive(script, _answer)


async def _answer(request: Wait | Aside) -> Any:
    if isinstance(request, Aside):
        return await aside(*request)
    return await ready(*request)
