"""How bytes go to Redis and back, blocking: connections of redis-py, each for one exchange at a time.

Its pools and clients are not used: they repeat requests, and cannot tell what was never sent. Must not know what is
asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Address, RedisPyConnection
from lockstead.stores.redis.encoding import Words, encoded
from lockstead.stores.redis.errors import refusal, unanswered, unconnected
from lockstead.stores.redis.messages import Messages
from lockstead.stores.redis.plain import PlainSocket
from lockstead.stores.redis.route import Ask, shown

IDLE_CHECKED: Final = 0.02
"""Seconds of idling after which a connection is looked at before it is used: the server may have closed it."""


class Connection:
    """One connection. Not safe to share between threads."""

    __slots__ = (
        "_connection",
        "_messages",
        "_plain",
        "_refusal",
        "_used_at",
        "address",
        "where",
    )

    def __init__(self, connection: RedisPyConnection, address: Address) -> None:
        from redis.exceptions import ResponseError

        self._connection = connection
        # an import in the way of every command takes a microsecond each time
        self._refusal: type[Exception] = ResponseError
        self.address = address
        self.where = shown(address)
        self._plain: PlainSocket | None = None
        self._messages: Messages
        self._used_at = 0.0

    def connect(self, *, is_secure: bool, role: str) -> None:
        """Connect and look whom we have: role is "master" or "sentinel", or empty for any. Raises what it means."""
        try:
            self._connection.connect()
            found = self._role() if role else ""
        except StoreError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise unconnected(error, self.where, is_secure=is_secure) from error
        if found and found != role:
            self.close()
            raise wrong_role(self.where, found, role)
        # what is encrypted is the library's to read
        plain = None if self._connection._sock is None else self._connection._sock.plain
        self._plain = None if plain is None else PlainSocket(plain)
        self._used_at = time.monotonic()

    def _role(self) -> str:
        from redis import exceptions

        self._connection.send_command("ROLE")
        try:
            return role_of(self._connection.read_response())
        except exceptions.NoPermissionError:
            return ""  # who may not ask learns it from the first write

    def is_usable(self) -> bool:
        """Return whether a connection that has idled is still open, and nothing unasked was said on it."""
        if time.monotonic() - self._used_at < IDLE_CHECKED:
            return True
        try:
            is_clean = not self._has_more()
        except Exception:  # noqa: BLE001 - closed, whatever it says
            is_clean = False
        if not is_clean:
            self.close()
        return is_clean

    def _has_more(self) -> bool:
        """Return whether there is something to read, or the end."""
        if self._plain is not None:
            return self._plain.has_more()
        return self._connection.can_read(0)

    def exchange(self, commands: Sequence[Words], bounds: Bounds) -> list[Any]:
        """Send commands together and give a reply for each, errors of the server among them, within bounds."""
        return self._exchange_packed([encoded(commands)], len(commands), bounds)

    def _exchange_packed(self, packed: list[bytes], count: int, bounds: Bounds) -> list[Any]:
        connection, refusal = self._connection, self._refusal
        try:
            self._keep_to(bounds)
            connection.send_packed_command(packed, check_health=False)
            replies: list[Any] = []
            for _ in range(count):
                try:
                    replies.append(connection.read_response())
                except refusal as error:
                    replies.append(error)
        except Exception as error:  # the library stumbles over what no Redis says in ways of its own
            self.close()
            raise unanswered(error, self.where, bounds.limit) from error
        except BaseException:
            self.close()  # half an answer may be left on it
            raise
        self._used_at = time.monotonic()
        return replies

    def exchange_one(self, packed: bytes, bounds: Bounds) -> Any:
        """Send one command, written already, and give its reply like `exchange`: the way of nearly all requests."""
        plain = self._plain
        if plain is None:
            return self._exchange_packed([packed], 1, bounds)[0]
        reply: Any
        try:
            plain.prepare()
            reply = plain.exchange(packed, bounds)
        except Exception as error:
            self.close()
            raise unanswered(error, self.where, bounds.limit) from error
        except BaseException:
            self.close()  # half an answer may be left on it
            raise
        self._used_at = time.monotonic()
        return reply if isinstance(reply, bytes) else self._refusal(reply)

    def _keep_to(self, bounds: Bounds) -> None:
        """Have every step of the library count."""
        connected = self._connection._sock
        if connected is not None:
            connected.bounds = bounds
            connected.settimeout(None)

    @property
    def descriptor(self) -> int:
        """What to poll for something to read; -1 if it is closed."""
        connected = self._connection._sock
        return -1 if connected is None else connected.fileno()

    def listen(self, channel: bytes, limit: float) -> list[bytes]:
        """Subscribe to a channel, within `limit` seconds; from then on only `messages` may be called.

        Returns the messages that came with the answer.
        """
        (reply,) = self.exchange([(b"SUBSCRIBE", channel)], Bounds(limit))
        if isinstance(reply, Exception):
            raise refusal(reply, self.where)
        came: list[bytes] = []
        try:
            while self._connection.can_read(0):
                came.append(bytes(self._connection.read_response()[2]))
            connected = self._connection._sock
            if connected is None:
                raise ConnectionResetError("the connection was closed")
            self._messages = Messages(connected.raw, channel)
        except Exception as error:
            self.close()
            raise unanswered(error, self.where, limit) from error
        return came

    def messages(self) -> list[bytes]:
        """Return what was published and has come, without waiting for more. Raises when the connection ends."""
        try:
            return self._messages.read()
        except (OSError, ValueError) as error:
            self.close()
            raise unanswered(error, self.where, 0.0) from error

    def close(self) -> None:
        """Close it. Idempotent."""
        self._plain = None
        self._connection.disconnect()


class ConnectionPool:
    """The connections of one store by server; as many as there are threads that ask at once. Safe to share."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._idle: dict[tuple[Address, bool], list[Connection]] = {}
        self._is_open = True

    def exchange(self, ask: Ask, bounds: Bounds) -> list[Any]:
        """Send what is asked to its server, within bounds. Raises StoreError."""
        connection = self._idling(ask.address, ask.to_sentinel)
        if connection is None:
            connection = self._new(ask.address, bounds, to_sentinel=ask.to_sentinel, is_routed=ask.is_routed)
        replies = connection.exchange(ask.commands, bounds)
        self._give_back(connection, ask.to_sentinel)
        return replies

    def exchange_one(self, address: Address, packed: bytes, bounds: Bounds, *, is_routed: bool) -> Any:
        """Send one command, written already, to a server; like `exchange`."""
        connection = self._idling(address, False)
        if connection is None:
            connection = self._new(address, bounds, is_routed=is_routed)
        reply = connection.exchange_one(packed, bounds)
        self._give_back(connection, False)
        return reply

    def _idling(self, address: Address, to_sentinel: bool) -> Connection | None:
        while True:
            with self._lock:
                if not self._is_open:
                    raise StoreUnavailable("the store is closed")
                idle = self._idle.get((address, to_sentinel))
                if not idle:
                    return None
                connection = idle.pop()
            if connection.is_usable():
                return connection

    def _new(
        self, address: Address, bounds: Bounds, *, to_sentinel: bool = False, is_routed: bool = False
    ) -> Connection:
        connection = self.connected(address, bounds, to_sentinel=to_sentinel, is_routed=is_routed)
        if bounds.is_over:
            connection.close()
            raise StoreUnavailable(
                f"it took all of {bounds.limit:.3g} s to connect to Redis at {connection.where}; nothing was sent"
            )
        return connection

    def _give_back(self, connection: Connection, to_sentinel: bool) -> None:
        with self._lock:
            if self._is_open:
                self._idle.setdefault((connection.address, to_sentinel), []).append(connection)
                return
        connection.close()

    def connected(
        self, address: Address, bounds: Bounds, *, to_sentinel: bool = False, is_routed: bool = False
    ) -> Connection:
        """Make a connection of one's own. Raises StoreError."""
        try:
            made = self._access.connection(address, bounds, to_sentinel=to_sentinel)
        except StoreError:
            raise
        except Exception as error:
            raise StoreRefused(f"no connection to Redis can be made: {type(error).__name__}: {error}") from error
        connection = Connection(made, address)
        role = "" if is_routed or to_sentinel else "master"
        connection.connect(is_secure=self._access.is_secure, role=role)
        return connection

    def drop(self, address: Address) -> None:
        """Close what idles on a server that failed."""
        with self._lock:
            idle = self._idle.pop((address, False), [])
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close what idles now, and what is in use when it is given back."""
        with self._lock:
            self._is_open = False
            idle = [connection for each in self._idle.values() for connection in each]
            self._idle.clear()
        for connection in idle:
            connection.close()


def role_of(reply: Any) -> str:
    """Read what ROLE was answered with. Raises InvalidResponse for what no Redis says."""
    from redis.exceptions import InvalidResponse

    said = reply[0] if isinstance(reply, list) and reply else None
    if not isinstance(said, bytes):
        raise InvalidResponse("ROLE was answered with something else")
    return said.decode("utf-8", "replace")


def wrong_role(where: str, found: str, wanted: str) -> StoreError:
    """Say what answers where something else was expected."""
    if found == "sentinel":
        return StoreRefused(f"{where} is a Sentinel; write redis+sentinel://{where}/SERVICE")
    return StoreUnavailable(
        f"Redis at {where} is a {found.replace('slave', 'replica')} and no {wanted}; name the master, or write "
        "redis+sentinel:// or redis+cluster://"
    )
