"""What is published to one channel, read from a connection that is used for nothing else.

redis-py's own reader takes a sixth of a hand-over longer, and blocks in the middle of a message. Must not know what a
message means.
"""

from __future__ import annotations

import ssl
from typing import Final

from lockstead.stores.bounds import AnswerTooLong, Bounds
from lockstead.stores.redis.connection import Connection
from lockstead.stores.redis.errors import refusal

READ_AT_ONCE: Final = 16_384
"""Bytes that are read in one step."""

MESSAGE_MAX: Final = 65_536
"""Bytes of a message: it names a record."""


class Messages:
    """The messages to a channel, read without blocking from a connection, which the caller closes."""

    __slots__ = ("_came", "_opening", "_socket", "first")

    def __init__(self, connection: Connection, channel: bytes, limit: float) -> None:
        """Subscribe within `limit` seconds. StoreError or redis-py's errors if that fails.

        first: the messages that came with the answer.
        """
        (reply,) = connection.exchange([(b"SUBSCRIBE", channel)], Bounds(limit))
        if isinstance(reply, Exception):
            raise refusal(reply, connection.where)
        client = connection.client
        self.first: list[bytes] = []
        while client.can_read(0):
            self.first.append(bytes(client.read_response()[2]))
        self._socket = client.raw
        self._socket.settimeout(0.0)
        self._opening = b"*3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$" % (len(channel), channel)
        self._came = b""

    def fileno(self) -> int:
        """Return what to poll for something to read; -1 if it is closed."""
        return self._socket.fileno()

    def read(self) -> list[bytes]:
        """Return what has come. OSError or ValueError if the connection ends or sends anything else."""
        came, found, opening = self._came + self._received(), list[bytes](), self._opening
        while came:
            if not came.startswith(opening[: len(came)]):
                raise ConnectionError("what came is not a message to this channel")
            size, _, text = came[len(opening) :].partition(b"\r\n")
            if len(size) > len(str(MESSAGE_MAX)) or int(size or b"0") > MESSAGE_MAX:
                raise AnswerTooLong("a message that names no record")
            whole = int(size or b"0") + 2
            if len(text) < whole:
                break
            found.append(text[: whole - 2])
            came = text[whole:]
        self._came = came
        return found

    def _received(self) -> bytes:
        came = b""
        try:
            while True:
                piece = self._socket.recv(READ_AT_ONCE)
                if not piece:
                    raise ConnectionResetError("the server closed the connection")
                came += piece
                # no poll reports what was decrypted already
                if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                    return came
        except (BlockingIOError, ssl.SSLWantReadError):
            return came
