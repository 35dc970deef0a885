# Generated from aio_driver.py by `make blocking`: edit that file instead.
"""What carries out scripts on the servers of a store, blocking. Must not know what is asked."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.script import drive
from lockstead.stores.bounds import Bounds
from lockstead.stores.kept import MALFORMED, senseless
from lockstead.stores.pool import Pool
from lockstead.stores.redis.access import Access
from lockstead.stores.redis.connection import connected
from lockstead.stores.redis.route import Ask, Asking, Route

T = TypeVar("T")

CONNECTIONS_MAX: Final = 1000
"""Connections in use at once, in a process and in each of its event loops; a server takes 10,000 by default."""


class Driver:
    """The connections of one process, or of one event loop, to the servers of a store. name is for messages."""

    def __init__(self, name: str, access: Access, route: Route) -> None:
        self._route = route
        self._pool = Pool(name, partial(connected, access), CONNECTIONS_MAX)

    def run(self, script: Asking[T], bounds: Bounds) -> T:
        """Drive a script to its end. OutcomeUnknown for replies of another shape than any of Redis's own."""
        try:
            return drive(script, partial(self.exchange, bounds))
        except MALFORMED as error:
            raise senseless("Redis", error) from error

    def exchange(self, bounds: Bounds, ask: Ask) -> list[Any]:
        """Send what is asked to its server, within its share of bounds. Raises StoreError."""
        if bounds.is_over:
            raise StoreUnavailable(f"no time is left of {bounds.limit:.3g} s to ask Redis; it was not sent")
        if ask.share < 1.0:
            bounds = bounds.part(ask.share)
        peer = (ask.address, ask.to_sentinel)
        try:
            connection = self._pool.take(peer, bounds.ends_at)
            try:
                return connection.exchange(ask.commands, bounds)
            finally:
                self._pool.give_back(peer, connection)
        except (OutcomeUnknown, StoreUnavailable):
            # the server may be gone, or not be the one to ask any more
            if not ask.to_sentinel:
                self._route.failed(ask.address)
                self._pool.drop(peer)
            raise

    def close(self) -> None:
        """Close all idle connections now, and those in use as soon as they are given back. Idempotent."""
        self._pool.close()
