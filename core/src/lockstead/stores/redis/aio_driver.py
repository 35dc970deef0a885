"""What carries out scripts on the servers of a store, awaiting. Must not know what is asked."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeVar

from lockstead.aio_script import drive
from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.bounds import Bounds
from lockstead.stores.kept import MALFORMED, senseless
from lockstead.stores.redis.access import Access
from lockstead.stores.redis.aio_connection import connected
from lockstead.stores.redis.route import Ask, Asking, Route

T = TypeVar("T")

CONNECTIONS_MAX: Final = 1000
"""Connections in use at once, in a process and in each of its event loops; a server takes 10,000 by default."""


class AsyncDriver:
    """The connections of one process, or of one event loop, to the servers of a store. name is for messages."""

    def __init__(self, name: str, access: Access, route: Route) -> None:
        self._route = route
        self._pool = AsyncPool(name, partial(connected, access), CONNECTIONS_MAX)

    async def run(self, script: Asking[T], bounds: Bounds) -> T:
        """Drive a script to its end. OutcomeUnknown for replies of another shape than any of Redis's own."""
        try:
            return await drive(script, partial(self.exchange, bounds))
        except MALFORMED as error:
            raise senseless("Redis", error) from error

    async def exchange(self, bounds: Bounds, ask: Ask) -> list[Any]:
        """Send what is asked to its server, within its share of bounds. Raises StoreError."""
        if bounds.is_over:
            raise StoreUnavailable(f"no time is left of {bounds.limit:.3g} s to ask Redis; it was not sent")
        if ask.share < 1.0:
            bounds = bounds.part(ask.share)
        peer = (ask.address, ask.to_sentinel)
        try:
            connection = await self._pool.take(peer, bounds.ends_at)
            try:
                return await connection.exchange(ask.commands, bounds)
            finally:
                await self._pool.give_back(peer, connection)
        except (OutcomeUnknown, StoreUnavailable):
            # the server may be gone, or not be the one to ask any more
            if not ask.to_sentinel:
                self._route.failed(ask.address)
                await self._pool.drop(peer)
            raise

    async def aclose(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back. Idempotent."""
        await self._pool.aclose()
