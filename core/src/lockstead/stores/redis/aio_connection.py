"""How bytes go to Redis and back, awaiting: connections of redis-py, each for one exchange at a time.

Its pools and clients are not used: they repeat requests, and cannot tell what was never sent. Must not know what is
asked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Address, Kind
from lockstead.stores.redis.encoding import Words, encoded
from lockstead.stores.redis.errors import unanswered, unconnected
from lockstead.stores.redis.route import Ask, shown

if TYPE_CHECKING:
    from lockstead.stores.redis.aio_bounded import AsyncBounded

IDLE_CHECKED: Final = 0.02
"""Seconds of idling after which a connection is checked before it is used: the server may have closed it."""

Peer: TypeAlias = "tuple[Address, bool]"
"""A server, and whether it is asked as a Sentinel."""


class AsyncConnection:
    """One connection for one caller at a time. The caller that opened it closes it."""

    __slots__ = ("_used_at", "client", "is_good", "opened_at", "where")

    def __init__(self, client: AsyncBounded, where: str) -> None:
        self.client = client
        self.where = where
        self.is_good = False
        self.opened_at = self._used_at = time.monotonic()

    async def connect(self, bounds: Bounds, *, is_secure: bool, is_master: bool) -> None:
        """Connect within bounds; with is_master, refuse a server of any other role. Raises StoreError."""
        try:
            await self.client.open(bounds)
            if is_master:
                check_master((await self.client.exchange(encoded([(b"ROLE",)]), 1, bounds))[0], self.where)
            if bounds.is_over:
                raise StoreUnavailable(f"cannot connect to Redis at {self.where} within {bounds.limit:.3g} s")
        except BaseException as error:
            await self.aclose()
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise
            raise unconnected(error, self.where, is_secure=is_secure) from error
        self.is_good, self._used_at = True, time.monotonic()

    async def is_usable(self) -> bool:
        """Return whether a connection that has idled is still open, and nothing unasked has come on it."""
        if time.monotonic() - self._used_at < IDLE_CHECKED:
            return True
        try:
            return not await self.client.has_more()
        except Exception:  # noqa: BLE001 - closed, whatever it says
            return False

    async def exchange(self, commands: Sequence[Words], bounds: Bounds) -> list[Any]:
        """Send commands together and return a reply for each, errors of the server among them, within bounds."""
        self.is_good = False  # after a failure, half an answer may be left on it
        try:
            replies = await self.client.exchange(encoded(commands), len(commands), bounds)
        except Exception as error:  # the library fails in its own ways at what no Redis sends
            raise unanswered(error, self.where, bounds.limit) from error
        self.is_good, self._used_at = True, time.monotonic()
        return replies

    async def exchange_one(self, packed: bytes, bounds: Bounds) -> Any:
        """Send one command, encoded already, and return its reply like `exchange`: the way of nearly all requests."""
        self.is_good = False
        try:
            reply = await self.client.exchange_one(packed, bounds)
        except Exception as error:
            raise unanswered(error, self.where, bounds.limit) from error
        self.is_good, self._used_at = True, time.monotonic()
        return reply

    async def aclose(self) -> None:
        """Close it at once. Idempotent; raises nothing."""
        self.is_good = False
        await self.client.end()


async def connected(access: Access, peer: Peer, ends_at: float) -> AsyncConnection:
    """Return a new connection that is ready by `ends_at` (monotonic clock). Raises StoreError."""
    from lockstead.stores.redis.aio_bounded import bounded

    address, is_sentinel = peer
    bounds = Bounds(ends_at - time.monotonic())
    connection = AsyncConnection(bounded(access, address, bounds, to_sentinel=is_sentinel), shown(address))
    # nodes of a Cluster redirect requests themselves
    is_master = not is_sentinel and access.kind is not Kind.CLUSTER
    await connection.connect(bounds, is_secure=access.is_secure, is_master=is_master)
    return connection


async def exchange(pool: AsyncPool[Peer, AsyncConnection], ask: Ask, bounds: Bounds) -> list[Any]:
    """Send what is asked to its server, within bounds. Raises StoreError."""
    peer = (ask.address, ask.to_sentinel)
    connection = await pool.take(peer, bounds.ends_at)
    try:
        return await connection.exchange(ask.commands, bounds)
    finally:
        await pool.give_back(peer, connection)


async def exchange_one(pool: AsyncPool[Peer, AsyncConnection], address: Address, packed: bytes, bounds: Bounds) -> Any:
    """Send one command, encoded already, to a server; like `exchange`."""
    peer = (address, False)
    connection = await pool.take(peer, bounds.ends_at)
    try:
        return await connection.exchange_one(packed, bounds)
    finally:
        await pool.give_back(peer, connection)


def check_master(reply: Any, where: str) -> None:
    """Raise StoreError if the reply to ROLE is not a master's, InvalidResponse if no Redis sends it."""
    from redis import exceptions

    if isinstance(reply, exceptions.NoPermissionError):
        return  # a user who may not ask learns it from the first write
    if isinstance(reply, Exception):
        raise reply
    role = reply[0] if isinstance(reply, list) and reply else None
    if not isinstance(role, bytes):
        raise exceptions.InvalidResponse("ROLE was answered with something else")
    if role == b"sentinel":
        raise StoreRefused(f"{where} is a Sentinel; write redis+sentinel://{where}/SERVICE")
    if role != b"master":
        found = role.decode("utf-8", "replace").replace("slave", "replica")
        raise StoreUnavailable(
            f"Redis at {where} is a {found} and no master; name the master, or write redis+sentinel:// or "
            "redis+cluster://"
        )
