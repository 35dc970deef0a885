"""How bytes go to a Redis server and back, awaiting: a connection for one exchange at a time.

redis-py opens it. Its clients are not used: they repeat requests, and cannot tell what was never sent. Must not know
what is asked.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstead.errors import StoreUnavailable
from lockstead.stores.awaiting import aside, ready
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Address, Kind
from lockstead.stores.redis.errors import unanswered
from lockstead.stores.redis.resp import Replies, Words, encoded
from lockstead.stores.servers import endpoint

if TYPE_CHECKING:
    from lockstead.stores.redis.opening import Opened

READ_AT_ONCE: Final = 16_384
"""Bytes that are read in one step: more than any record takes."""

Peer: TypeAlias = "tuple[Address, bool]"
"""A server, and whether it is asked as a Sentinel."""


class AsyncConnection:
    """One connection for one caller at a time. The caller that opened it closes it."""

    __slots__ = ("_opened", "_replies", "is_good", "opened_at", "permit", "raw", "where")

    def __init__(self, opened: Opened, where: str) -> None:
        self._opened = opened
        self.raw = opened.raw
        self._replies = Replies()
        self.where = where
        self.is_good = True
        self.permit: object = None
        self.opened_at = time.monotonic()

    async def is_usable(self) -> bool:
        """Return whether an idle connection is still open, and nothing unasked has come on it."""
        try:
            self.arrived(Bounds(0.0), 0)
        except Exception:  # noqa: BLE001 - closed, whatever it says
            return False
        return True

    async def exchange(self, commands: Sequence[Words], bounds: Bounds) -> list[Any]:
        """Send commands together and return a reply for each, errors of the server among them, within bounds."""
        self.is_good = False  # after a failure, half an answer may be left on it
        count = len(commands)
        try:
            await self.send(encoded(commands), bounds)
            replies = await self.received(bounds, count)
            while len(replies) < count:
                replies += await self.received(bounds, count - len(replies))
        except Exception as error:
            raise unanswered(error, self.where, bounds.limit) from error
        self.is_good = True
        return replies

    async def send(self, message: bytes, bounds: Bounds) -> None:
        """Send a whole message. Raises OSError."""
        rest: bytes | memoryview = message
        while rest:
            try:
                sent = self.raw.send(rest)
                rest = memoryview(rest)[sent:] if sent < len(rest) else b""
            except (BlockingIOError, ssl.SSLWantWriteError):
                bounds.left()
                await ready(self.raw.fileno(), bounds.ends_at, reads=False, writes=True)

    async def received(self, bounds: Bounds, most: float = math.inf) -> list[Any]:
        """Wait until bytes have come, and return what `arrived` does; TimeoutError if none come in time."""
        bounds.left()
        await ready(self.raw.fileno(), bounds.ends_at)
        return self.arrived(bounds, most)

    def arrived(self, bounds: Bounds, most: float = math.inf) -> list[Any]:
        """Return the replies that have come. Does not wait. Raises OSError or ValueError.

        most: how many are to come; for what comes beyond that, ConnectionError.
        """
        replies: list[Any] = []
        try:
            while True:
                came = self.raw.recv(READ_AT_ONCE)
                if not came:
                    raise ConnectionResetError("the server closed the connection")
                bounds.took(len(came))
                replies += self._replies.feed(came)
                # no poll reports what was decrypted already
                if not (isinstance(self.raw, ssl.SSLSocket) and self.raw.pending()):
                    break
        except (BlockingIOError, ssl.SSLWantReadError):
            pass  # nothing has come, or nothing more
        if len(replies) + self._replies.is_torn > most:
            raise ConnectionError("the server sent more than was asked for")
        return replies

    async def aclose(self) -> None:
        """Close it at once: does not wait, so a coroutine that is being collected may. Idempotent; raises nothing."""
        self.is_good = False
        self._opened.close()


async def connected(access: Access, peer: Peer, ends_at: float) -> AsyncConnection:
    """Return a new connection that is ready by `ends_at` (monotonic clock). Raises StoreError."""
    from lockstead.stores.redis.opening import opened

    address, is_sentinel = peer
    bounds = Bounds(ends_at - time.monotonic())
    # nodes of a Cluster redirect requests themselves
    is_master = not is_sentinel and access.kind is not Kind.CLUSTER
    opening = partial(opened, access, address, bounds, to_sentinel=is_sentinel, is_master=is_master)
    try:
        connection = AsyncConnection(await aside(opening, ends_at, lambda late: late.close()), endpoint(address))
        if not bounds.is_over:
            return connection
        await connection.aclose()
    except TimeoutError:
        pass
    raise StoreUnavailable(f"cannot connect to Redis at {endpoint(address)} within {bounds.limit:.3g} s")
