"""How bytes go to Redis and back, awaiting: the twin of `connection` in one event loop.

Must not know what is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Address, AsyncRedisPyConnection
from lockstead.stores.redis.connection import IDLE_CHECKED, role_of, wrong_role
from lockstead.stores.redis.encoding import Words, encoded
from lockstead.stores.redis.errors import unanswered, unconnected
from lockstead.stores.redis.route import Ask, shown

CLOSING: Final = 1.0
"""Seconds for a connection to close in good order."""


class AsyncConnection:
    """One connection, for one task at a time."""

    __slots__ = ("_connection", "_used_at", "where")

    def __init__(self, connection: AsyncRedisPyConnection, address: Address) -> None:
        self._connection = connection
        self.where = shown(address)
        self._used_at = 0.0

    async def connect(self, bounds: Bounds, *, is_secure: bool, role: str) -> None:
        """Connect within bounds and look whom we have, as the blocking twin does."""
        try:
            async with asyncio.timeout(bounds.left()):
                await self._connection.connect()
                found = await self._role() if role else ""
        except StoreError:
            await self.drop()
            raise
        except Exception as error:
            await self.drop()
            raise unconnected(error, self.where, is_secure=is_secure) from error
        except BaseException:
            await self.drop()
            raise
        if found and found != role:
            await self.drop()
            raise wrong_role(self.where, found, role)
        self._used_at = time.monotonic()

    async def _role(self) -> str:
        from redis.exceptions import NoPermissionError

        await self._connection.send_command("ROLE")
        try:
            return role_of(await self._connection.read_response())
        except NoPermissionError:
            return ""

    async def is_usable(self) -> bool:
        """Return whether a connection that has idled is still open, and nothing unasked was said on it."""
        if time.monotonic() - self._used_at < IDLE_CHECKED:
            return True
        try:
            is_clean = not await self._connection.can_read()
        except Exception:  # noqa: BLE001 - closed, whatever it says
            is_clean = False
        if not is_clean:
            await self.drop()
        return is_clean

    async def exchange(self, commands: Sequence[Words], bounds: Bounds) -> list[Any]:
        """Send commands together and give a reply for each, errors of the server among them."""
        from redis.exceptions import ResponseError

        replies: list[Any] = []
        self._connection.bounds = bounds
        try:
            async with asyncio.timeout(bounds.left()):
                await self._connection.send_packed_command([encoded(commands)], check_health=False)
                for _ in commands:
                    try:
                        replies.append(await self._connection.read_response())
                    except ResponseError as error:
                        replies.append(error)
        except Exception as error:  # the library stumbles over what no Redis says in ways of its own
            await self.drop()
            raise unanswered(error, self.where, bounds.limit) from error
        except BaseException:
            await self.drop()  # half an answer may be left on it
            raise
        self._used_at = time.monotonic()
        return replies

    async def drop(self) -> None:
        """Close it at once, without good order."""
        with suppress(Exception):
            await self._connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close it in good order."""
        with suppress(Exception):
            async with asyncio.timeout(CLOSING):
                await self._connection.disconnect()


class AsyncConnectionPool:
    """The connections of one store in one event loop, by server."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._idle: dict[tuple[Address, bool], list[AsyncConnection]] = {}
        self._is_open = True

    async def exchange(self, ask: Ask, bounds: Bounds) -> list[Any]:
        """Send what is asked to its server, within bounds. Raises StoreError."""
        connection = await self._taken(ask, bounds)
        if bounds.is_over:
            await connection.drop()
            raise StoreUnavailable(
                f"it took all of {bounds.limit:.3g} s to connect to Redis at {connection.where}; nothing was sent"
            )
        replies = await connection.exchange(ask.commands, bounds)
        if self._is_open:
            self._idle.setdefault((ask.address, ask.to_sentinel), []).append(connection)
        else:
            await connection.close()
        return replies

    async def _taken(self, ask: Ask, bounds: Bounds) -> AsyncConnection:
        idle = self._idle.setdefault((ask.address, ask.to_sentinel), [])
        while idle:
            connection = idle.pop()
            if await connection.is_usable():
                return connection
        try:
            made = self._access.awaiting(ask.address, bounds, to_sentinel=ask.to_sentinel)
        except StoreError:
            raise
        except Exception as error:
            raise StoreRefused(f"no connection to Redis can be made: {type(error).__name__}: {error}") from error
        connection = AsyncConnection(made, ask.address)
        role = "" if ask.is_routed or ask.to_sentinel else "master"
        await connection.connect(bounds, is_secure=self._access.is_secure, role=role)
        return connection

    async def drop(self, address: Address) -> None:
        """Close what idles on a server that failed."""
        for connection in self._idle.pop((address, False), []):
            await connection.drop()

    async def close(self) -> None:
        """Close what idles now, and what is in use when it is given back."""
        self._is_open = False
        idle = [connection for each in self._idle.values() for connection in each]
        self._idle.clear()
        for connection in idle:
            await connection.close()
