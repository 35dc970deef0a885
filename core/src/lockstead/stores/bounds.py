"""How long one command may take, and how many bytes its answers may have: the same for every transport.

A read loop asks `left` before each wait and tells `took` of each piece. So it ends in time, with bounded memory,
whatever a server does: send a byte a second, send without end, announce a giant, or say nothing. Must not know a store.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from typing import Any, Final

from lockstead.protocol.commands import Command, List

ANSWER_MAX: Final = 1 << 20
"""Bytes of all that is read for one command. A record takes some hundred bytes, and thousands at most."""

LISTING_MAX: Final = 32 << 20
"""Bytes of all that is read for one listing, or for the renewals of all leases of a process."""


class AnswerTooLong(OSError):  # noqa: N818 - it is said of the answer
    """More was sent for one command than any answer of this kind takes."""


class Bounds:
    """Until when one command has to be over, and how much may still be read for it. For one thread at a time."""

    __slots__ = ("_room", "ends_at", "limit")

    def __init__(self, limit: float, room: int = ANSWER_MAX) -> None:
        """limit is seconds, room is bytes."""
        self.limit = limit
        self.ends_at = time.monotonic() + limit
        # shared with the parts of it, so that a conversation of many requests is bounded as a whole
        self._room = [room]

    def part(self, share: float) -> Bounds:
        """Return the bounds of one request of several: a share of the time left. What it reads counts here too."""
        part = Bounds(share * max(0.0, self.ends_at - time.monotonic()))
        part._room = self._room
        return part

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.ends_at

    def left(self) -> float:
        """Return the seconds that are left, more than 0; TimeoutError if there are none."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for the request is over")
        return left

    def took(self, count: int) -> None:
        """Count what was read; AnswerTooLong if it is too much."""
        room = self._room
        room[0] -= count
        if room[0] < 0:
            raise AnswerTooLong("the answer is longer than any of this store")


def bounds_of(command: Command[Any], limit: float) -> Bounds:
    """Return the bounds of a command that has `limit` seconds."""
    return Bounds(limit, LISTING_MAX if isinstance(command, List) else ANSWER_MAX)


class BoundedSocket:
    """A connected socket, plain or in TLS, for a client library: each step of it counts against `bounds`, if there are.

    For one thread at a time, but for `shutdown`.
    """

    def __init__(self, connected: socket.socket, bounds: Bounds | None = None) -> None:
        self.raw = connected
        self.bounds = bounds
        self._patience = connected.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    @property
    def plain(self) -> socket.socket | None:
        """The socket itself, if nobody encrypts."""
        return None if isinstance(self.raw, ssl.SSLSocket) else self.raw

    def settimeout(self, seconds: float | None) -> None:
        """Limit each step, beside the bounds; 0 is not to wait at all."""
        self._patience = seconds

    def setblocking(self, waits: bool) -> None:
        """Wait, or do not."""
        self.settimeout(None if waits else 0.0)

    def gettimeout(self) -> float | None:
        """Return what `settimeout` was told."""
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
        """Receive as a socket does."""
        self._prepare()
        came = self.raw.recv(size, flags)
        self._took(len(came))
        return came

    def recv_into(self, buffer: bytearray | memoryview, size: int = 0) -> int:
        """Receive as a socket does."""
        self._prepare()
        count = self.raw.recv_into(buffer, size)
        self._took(count)
        return count

    def sendall(self, message: bytes) -> None:
        """Send all of it, within the bounds in all."""
        rest = memoryview(message)
        while rest:
            self._prepare()
            rest = rest[self.raw.send(rest) :]


def dialled(host: str, port: int, bounds: Bounds) -> socket.socket:
    """Connect within what is left, to whichever address of the host takes a connection, for small messages.

    Raises OSError. Waiting for the name to be looked up is the system's to limit.
    """
    failed: OSError | None = None
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _name, address) in enumerate(addresses):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(bounds.left() / (len(addresses) - number))
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            plain.close()
            failed = error
        else:
            return plain
    raise failed or OSError(f"no address is known of {host}")


def in_tls(plain: socket.socket, context: ssl.SSLContext, host: str, bounds: Bounds) -> ssl.SSLSocket:
    """Secure a connection within what is left; one that cannot be is closed. Raises OSError or ValueError."""
    try:
        plain.settimeout(bounds.left())
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
