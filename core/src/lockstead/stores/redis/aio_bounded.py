"""How redis-py's connections are kept within bounds, awaiting: each reads from a stream that counts.

The library limits single steps only, and reads as much as a server announces. Imported when a connection is made, for
redis-py is. Must not know what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.asyncio import connection as awaited
from redis.exceptions import ResponseError

from lockstead.errors import StoreError, StoreRefused
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Address

if TYPE_CHECKING:
    _Base = awaited.Connection
else:
    _Base = object


class _Reader:
    """A stream that counts before it reads what a server has announced."""

    def __init__(self, stream: asyncio.StreamReader, bounds: Callable[[], Bounds]) -> None:
        self._stream = stream
        self._bounds = bounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def readexactly(self, count: int) -> bytes:
        self._bounds().took(count)
        return await self._stream.readexactly(count)

    async def read(self, count: int = -1) -> bytes:
        came = await self._stream.read(count)
        self._bounds().took(len(came))
        return came

    async def readline(self) -> bytes:
        line = await self._stream.readline()  # which has a limit of its own
        self._bounds().took(len(line))
        return line


class AsyncBounded(_Base):
    """A connection that keeps to its bounds."""

    bounds: Bounds

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call]  # not typed there
        self._reader: Any = _Reader(self._reader, lambda: self.bounds)

    async def open(self, bounds: Bounds) -> None:
        """Connect, log in, select the database."""
        self.bounds = bounds
        async with asyncio.timeout(bounds.left()):
            await self.connect()  # type: ignore[no-untyped-call]

    async def has_more(self) -> bool:
        """Return whether there is something to read, or the end."""
        return bool(await self.can_read())

    async def exchange(self, packed: bytes, count: int, bounds: Bounds) -> list[Any]:
        """Send encoded commands, and return their replies, errors of the server among them."""
        self.bounds = bounds
        replies: list[Any] = []
        async with asyncio.timeout(bounds.left()):
            await self.send_packed_command([packed], check_health=False)
            for _ in range(count):
                try:
                    replies.append(await self.read_response())
                except ResponseError as error:
                    replies.append(error)
        return replies

    async def exchange_one(self, packed: bytes, bounds: Bounds) -> Any:
        """Send one encoded command, and return its reply."""
        return (await self.exchange(packed, 1, bounds))[0]

    async def end(self) -> None:
        """Close it at once: does not wait, so a coroutine that is being collected may."""
        with suppress(Exception):
            if self._writer is not None:
                self._writer.transport.abort()
        with suppress(Exception):
            await self.disconnect(nowait=True)


class Plain(AsyncBounded, awaited.Connection):
    """A connection without TLS."""


class Secure(AsyncBounded, awaited.SSLConnection):
    """A connection with TLS."""


def bounded(access: Access, address: Address, bounds: Bounds, *, to_sentinel: bool = False) -> AsyncBounded:
    """Make a connection that is not open yet. Raises StoreError."""
    try:
        made = (Secure if access.is_secure else Plain)(**access.arguments(address, to_sentinel=to_sentinel))
    except StoreError:
        raise
    except Exception as error:
        raise StoreRefused(f"no connection to Redis can be made: {type(error).__name__}: {error}") from error
    made.bounds = bounds
    return made
