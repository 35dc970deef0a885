# Generated from aio_driver.py by `make blocking`: edit that file instead.
"""What carries out scripts on the servers of a store, blocking. Must not know what is asked."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.driver import DriverBase
from lockstead.stores.pool import Pool
from lockstead.stores.redis.access import Access
from lockstead.stores.redis.connection import Connection, Peer, connected
from lockstead.stores.redis.route import Ask, Route

CONNECTIONS_MAX: Final = 1000
"""Connections in use at once, in a process and in each of its event loops; a server takes 10,000 by default."""

IDLE_CHECKED: Final = 0.02
"""Seconds of idling after which a connection is checked before it is used: the server may have closed it."""


class Driver(DriverBase[Ask, list[Any]]):
    """The connections of one process, or of one event loop, to the servers of a store."""

    def __init__(self, name: str, access: Access, route: Route) -> None:
        self.name = name
        self._route = route
        self.pool: Pool[Peer, Connection] = Pool(
            name, partial(connected, access), CONNECTIONS_MAX, checked_after=IDLE_CHECKED
        )

    def exchange(self, bounds: Bounds, request: Ask) -> list[Any]:
        """Send commands to their server, within its share of bounds. Raises StoreError."""
        if bounds.is_over:
            raise StoreUnavailable(f"no time is left of {bounds.limit:.3g} s to ask Redis; it was not sent")
        if request.share < 1.0:
            bounds = bounds.part(request.share)
        peer = (request.address, request.to_sentinel)
        try:
            connection = self.pool.take(peer, bounds.ends_at)
            try:
                return connection.exchange(request.commands, bounds)
            finally:
                self.pool.give_back(peer, connection)
        except (OutcomeUnknown, StoreUnavailable):
            # the server may be gone, or not be the one to ask any more
            if not request.to_sentinel:
                self._route.failed(request.address)
                self.pool.drop(peer)
            raise
