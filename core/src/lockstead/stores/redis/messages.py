"""What is published to one channel, read from a connection that is used for nothing else.

Must not know what a message means.
"""

from __future__ import annotations

import math

from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.connection import Connection
from lockstead.stores.redis.errors import refusal
from lockstead.stores.redis.resp import ServerError, encoded


class Messages:
    """The messages to a channel, read without blocking from a connection, which the caller closes."""

    __slots__ = ("_bounds", "_channel", "_connection", "first")

    def __init__(self, connection: Connection, channel: bytes, limit: float) -> None:
        """Subscribe within `limit` seconds. StoreError, OSError or ValueError if that fails.

        first: the messages that came with the answer.
        """
        self._connection = connection
        self._channel = channel
        bounds = Bounds(limit)
        connection.send(encoded([(b"SUBSCRIBE", channel)]), bounds)
        came: list[object] = []
        while not came:
            came = connection.received(bounds)
        if isinstance(came[0], ServerError):
            raise refusal(came[0], connection.where)
        self.first = [self._message(reply) for reply in came[1:]]
        self._bounds = Bounds(math.inf)

    def fileno(self) -> int:
        """Return what to poll for something to read; -1 if it is closed."""
        return self._connection.raw.fileno()

    def read(self) -> list[bytes]:
        """Return what has come. OSError or ValueError if the connection ends or sends anything else."""
        came = self._connection.arrived(self._bounds)
        if came:
            self._bounds = Bounds(math.inf)
        return [self._message(reply) for reply in came]

    def _message(self, reply: object) -> bytes:
        match reply:
            case [b"message", self._channel, bytes() as text]:
                return text
            case _:
                raise ConnectionError("what came is not a message to this channel")
