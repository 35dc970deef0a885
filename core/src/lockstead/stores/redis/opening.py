"""How a connection to a Redis server is opened: address, TLS and login are redis-py's, kept within bounds.

The library limits single steps only, and reads as much as a server announces. Imported when a connection is made, for
redis-py is. Must not know what is asked later.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import connection as library
from redis.exceptions import InvalidResponse, NoPermissionError

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import BoundedSocket, Bounds, dialled
from lockstead.stores.redis.access import Access, Address
from lockstead.stores.redis.errors import unconnected
from lockstead.stores.servers import endpoint

if TYPE_CHECKING:
    _Base = library.Connection
else:
    _Base = object


class _Dials(library.Connection):
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


class Opened(_Base):
    """A connection whose socket is used by others once it is open. The caller that opened it closes it."""

    bounds: Bounds

    def _connect(self) -> Any:
        return BoundedSocket(super()._connect(), self.bounds)  # type: ignore[no-untyped-call]  # not typed there

    def open(self, bounds: Bounds, where: str, *, is_master: bool) -> None:
        """Connect, log in, select the database; with is_master, refuse a server of any other role."""
        self.bounds = bounds
        self.connect()  # type: ignore[no-untyped-call]
        if is_master:
            self.send_command("ROLE", check_health=False)  # type: ignore[no-untyped-call]
            with suppress(NoPermissionError):  # a user who may not ask learns it from the first write
                _check_master(self.read_response(), where)
        self.raw.setblocking(False)

    @property
    def raw(self) -> socket.socket:
        """The socket, which may be in TLS. ConnectionResetError if it is closed."""
        counting: BoundedSocket | None = self._sock
        if counting is None:
            raise ConnectionResetError("the connection was closed")
        return counting.raw

    def close(self) -> None:
        """Close it at once. Idempotent; raises nothing."""
        with suppress(Exception):
            self.disconnect()  # type: ignore[no-untyped-call]


class Plain(Opened, _Dials):
    """A connection without TLS."""


class Secure(Opened, library.SSLConnection, _Dials):
    """A connection with TLS."""


def opened(
    access: Access, address: Address, bounds: Bounds, *, to_sentinel: bool = False, is_master: bool = False
) -> Opened:
    """Return a connection that is logged in and does not block; with is_master, to a master. Raises StoreError."""
    where = endpoint(address)
    try:
        made = (Secure if access.is_secure else Plain)(**access.arguments(address, to_sentinel=to_sentinel))
    except StoreError:
        raise
    except Exception as error:
        raise StoreRefused(f"cannot connect to Redis: {type(error).__name__}: {error}") from error
    try:
        made.open(bounds, where, is_master=is_master)
    except BaseException as error:
        made.close()
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise
        # an error reply may repeat the words of the login: only errors of other kinds are shown as the cause
        cause = error if isinstance(error, OSError) else None
        raise unconnected(error, where, is_secure=access.is_secure) from cause
    return made


def _check_master(reply: Any, where: str) -> None:
    """Raise StoreError if the reply to ROLE is not a master's, InvalidResponse if no Redis sends it."""
    role = reply[0] if isinstance(reply, list) and reply else None
    if not isinstance(role, bytes):
        raise InvalidResponse("ROLE was answered with something else")
    if role == b"sentinel":
        raise StoreRefused(f"{where} is a Sentinel; write redis+sentinel://{where}/SERVICE")
    if role != b"master":
        found = role.decode("utf-8", "replace").replace("slave", "replica")
        raise StoreUnavailable(
            f"Redis at {where} is a {found} and not a master; name the master, or write redis+sentinel:// or "
            "redis+cluster://"
        )
