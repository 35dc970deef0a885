"""How redis-py's connections are kept within bounds: each reads from a socket, or a stream, that counts.

The library limits single steps only, and reads as much as a server announces. Imported when a connection is made, for
redis-py is. Must not know what is asked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import redis.asyncio.connection as awaited
from redis import connection as blocking

from lockstead.stores.bounds import BoundedSocket, Bounds, dialled

if TYPE_CHECKING:
    _Base = blocking.Connection
    _AwaitedBase = awaited.Connection
else:
    _Base = _AwaitedBase = object


class _Dials(blocking.Connection):
    """Connects within its bounds, to whichever address of the host takes a connection."""

    bounds: Bounds

    def _connect(self) -> socket.socket:
        plain = dialled(self.host, self.port, self.bounds)
        try:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in self.socket_keepalive_options.items():
                plain.setsockopt(socket.IPPROTO_TCP, name, value)
            plain.settimeout(self.bounds.left())  # for the handshake of TLS
        except BaseException:
            plain.close()
            raise
        return plain


class _Counts(_Base):
    """Gives a socket that counts."""

    bounds: Bounds

    def _connect(self) -> Any:
        counting = BoundedSocket(super()._connect(), self.bounds)  # type: ignore[no-untyped-call]  # not typed there
        counting.settimeout(self.socket_timeout)
        return counting


class Plain(_Counts, _Dials):
    """A connection without TLS."""


class Secure(_Counts, blocking.SSLConnection, _Dials):
    """A connection with TLS."""


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


class _AwaitedCounts(_AwaitedBase):
    bounds: Bounds

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call]  # not typed there
        self._reader: Any = _Reader(self._reader, lambda: self.bounds)


class AwaitedPlain(_AwaitedCounts, awaited.Connection):
    """An awaiting connection without TLS."""


class AwaitedSecure(_AwaitedCounts, awaited.SSLConnection):
    """An awaiting connection with TLS."""
