"""Limits of one command, for every transport: how long it may take, and how many bytes of replies may be read.

A read loop calls `left` before each wait and `took` after each piece. So it ends in time and with bounded memory, even
if the server sends a byte a second, sends endlessly, announces a huge reply, or sends nothing. Must not know a store.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from typing import Any, Final

from lockstead.protocol.commands import Command, List

ANSWER_MAX: Final = 1 << 20
"""Bytes that may be read for one command. A record takes some hundred bytes, a few thousand at most."""

LISTING_MAX: Final = 32 << 20
"""Bytes that may be read for one listing, or for the renewals of all leases of a process."""


class AnswerTooLong(OSError):  # noqa: N818 - the name describes the answer
    """Raised when the server sent more for one command than any valid reply of this kind takes."""


def is_too_long(error: BaseException) -> bool:
    """Return whether an error is, or comes from, an answer that was too long."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AnswerTooLong):
        cause = cause.__cause__
    return cause is not None


class Bounds:
    """The deadline of one command, and how many bytes may still be read for it. For one thread at a time."""

    __slots__ = ("_room", "ends_at", "limit")

    def __init__(self, limit: float, room: int = ANSWER_MAX) -> None:
        """limit is seconds, room is bytes."""
        self.limit = limit
        self.ends_at = time.monotonic() + limit
        # shared with all parts, so that several requests of one command are limited as a whole
        self._room = [room]

    def part(self, share: float) -> Bounds:
        """Return the bounds of one of several requests: a share of the time left. Bytes it reads also count here."""
        part = Bounds(share * max(0.0, self.ends_at - time.monotonic()))
        part._room = self._room
        return part

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.ends_at

    def left(self) -> float:
        """Return the seconds left, more than 0; raise TimeoutError if there are none."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for the request is over")
        return left

    def took(self, count: int) -> None:
        """Count bytes that were read; raise AnswerTooLong if they exceed the limit."""
        room = self._room
        room[0] -= count
        if room[0] < 0:
            raise AnswerTooLong("the answer is longer than any of this store")


def bounds_of(command: Command[Any], limit: float, answer_max: int = ANSWER_MAX) -> Bounds:
    """Return the bounds of a command that has `limit` seconds, and whose answer `answer_max` bytes unless it lists."""
    return Bounds(limit, LISTING_MAX if isinstance(command, List) else answer_max)


class BoundedSocket:
    """A connected socket, plain or TLS, for a client library; each operation counts against `bounds`, if any.

    For one thread at a time, except `shutdown`.
    """

    def __init__(self, connected: socket.socket, bounds: Bounds | None = None) -> None:
        self.raw = connected
        self.bounds = bounds
        self._patience = connected.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.raw.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Limit each operation to `seconds`, in addition to the bounds; 0 means not to wait at all."""
        self._patience = seconds

    def setblocking(self, waits: bool) -> None:
        """Set whether operations wait."""
        self.settimeout(None if waits else 0.0)

    def gettimeout(self) -> float | None:
        """Return the timeout set by `settimeout`."""
        return self._patience

    def _prepare(self) -> None:
        seconds = self._patience
        if self.bounds is not None and seconds != 0:
            left = self.bounds.left()
            seconds = left if seconds is None else min(seconds, left)
        if seconds == math.inf:
            seconds = None
        if self.raw.gettimeout() != seconds:
            self.raw.settimeout(seconds)

    def _took(self, count: int) -> None:
        if self.bounds is not None:
            self.bounds.took(count)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive like a socket does."""
        self._prepare()
        came = self.raw.recv(size, flags)
        self._took(len(came))
        return came

    def recv_into(self, buffer: bytearray | memoryview, size: int = 0) -> int:
        """Receive like a socket does."""
        self._prepare()
        count = self.raw.recv_into(buffer, size)
        self._took(count)
        return count

    def sendall(self, message: bytes) -> None:
        """Send the whole message within the bounds."""
        rest = memoryview(message)
        while rest:
            self._prepare()
            rest = rest[self.raw.send(rest) :]


def dialled(host: str, port: int, bounds: Bounds, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connect within the time left to the first address of the host that accepts; disables Nagle for small messages.

    tls: start TLS, too. Raises OSError or ValueError. The time of the name lookup is limited only by the system.
    """
    failed: OSError | None = None
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _name, address) in enumerate(addresses):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(bounds.left() / (len(addresses) - number))
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException as error:
            plain.close()
            if not isinstance(error, OSError):
                raise
            failed = error
        else:
            return plain if tls is None else in_tls(plain, tls, host, bounds)
    raise failed or OSError(f"no address is known of {host}")


def in_tls(plain: socket.socket, context: ssl.SSLContext, host: str, bounds: Bounds) -> ssl.SSLSocket:
    """Start TLS on a connection within the time left; close it on failure. Raises OSError or ValueError."""
    try:
        plain.settimeout(bounds.left())
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
