"""How redis-py's connections are kept within bounds, blocking: each reads from a socket that counts.

The library limits single steps only, and reads as much as a server announces. Imported when a connection is made, for
redis-py is. Must not know what is asked.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import connection as blocking
from redis.exceptions import ResponseError

from lockstead.errors import StoreError, StoreRefused
from lockstead.stores.bounds import BoundedSocket, Bounds, dialled
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.plain import PlainSocket

if TYPE_CHECKING:
    _Base = blocking.Connection
else:
    _Base = object


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


class Bounded(_Base):
    """A connection that keeps to its bounds."""

    bounds: Bounds
    _plain: PlainSocket | None = None

    def _connect(self) -> Any:
        counting = BoundedSocket(super()._connect(), self.bounds)  # type: ignore[no-untyped-call]  # not typed there
        counting.settimeout(self.socket_timeout)
        return counting

    @property
    def raw(self) -> socket.socket:
        """The socket, which may be in TLS. ConnectionResetError if it is closed."""
        counting: BoundedSocket | None = self._sock
        if counting is None:
            raise ConnectionResetError("the connection was closed")
        return counting.raw

    def open(self, bounds: Bounds) -> None:
        """Connect, log in, select the database."""
        self.bounds = bounds
        self.connect()  # type: ignore[no-untyped-call]  # not typed there
        counting: BoundedSocket | None = self._sock
        # what is encrypted is the library's to read
        plain = None if counting is None else counting.plain
        self._plain = None if plain is None else PlainSocket(plain)

    def has_more(self) -> bool:
        """Return whether there is something to read, or the end."""
        return self._plain.has_more() if self._plain is not None else bool(self.can_read(0))

    def exchange(self, packed: bytes, count: int, bounds: Bounds) -> list[Any]:
        """Send encoded commands, and return their replies, errors of the server among them."""
        counting: BoundedSocket | None = self._sock
        if counting is not None:
            counting.bounds = bounds  # so every step of the library counts
            counting.settimeout(None)
        self.send_packed_command([packed], check_health=False)  # type: ignore[no-untyped-call]
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(self.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies

    def exchange_one(self, packed: bytes, bounds: Bounds) -> Any:
        """Send one encoded command, and return its reply."""
        if self._plain is None:
            return self.exchange(packed, 1, bounds)[0]
        reply = self._plain.exchange(packed, bounds)
        return reply if isinstance(reply, bytes) else ResponseError(reply)

    def end(self) -> None:
        """Close it at once."""
        self._plain = None
        with suppress(Exception):
            self.disconnect()  # type: ignore[no-untyped-call]


class Plain(Bounded, _Dials):
    """A connection without TLS."""


class Secure(Bounded, blocking.SSLConnection, _Dials):
    """A connection with TLS."""


def bounded(
    access: Access, address: Address, bounds: Bounds, *, to_sentinel: bool = False, patience: float | None = None
) -> Bounded:
    """Make a connection that is not open yet. Raises StoreError.

    patience: seconds for each write and read, where there is a limit beside the bounds.
    """
    try:
        made = (Secure if access.is_secure else Plain)(**access.arguments(address, patience, to_sentinel=to_sentinel))
    except StoreError:
        raise
    except Exception as error:
        raise StoreRefused(f"no connection to Redis can be made: {type(error).__name__}: {error}") from error
    made.bounds = bounds
    return made
