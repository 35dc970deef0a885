"""How a blocking request goes out and its answer comes in: over sockets of our own, each kept for the next.

Head and body leave in one write. h11 writes heads, once for each length, and reads answers; but the usual answer of
etcd, a 200 with a Content-Length, is cut out of what was received: h11 takes as long for it as all else that we do. No
request is ever sent twice. Must not know which member is asked first, nor what a request says.
"""

from __future__ import annotations

import re
import select
import ssl
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from typing import Final

import h11

from lockstead.frozen import frozen
from lockstead.stores.bounds import BoundedSocket, Bounds, dialled, in_tls
from lockstead.stores.etcd.encoding import Request

KEEPALIVE: Final = 10.0
"""Seconds for which an idle connection is used again. Longer than the longest pause of a waiter, so that polling needs
no handshakes, and below the patience of anything that forgets connections on the way."""

CONNECTIONS_MAX: Final = 64

HEADS_MAX: Final = 256
"""Heads of requests that are kept: they differ by the path and by the length of what follows."""

CHUNK: Final = 65536

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,9})\r\n")
_UNUSUAL: Final = re.compile(rb"\r\n(?:transfer-encoding|connection|[ \t])|[^\r]\n|\r[^\n]")


class Unsent(Exception):  # noqa: N818 - it is said of the request
    """No connection came about, so nothing was sent. The cause says why."""


class Unanswered(Exception):  # noqa: N818 - it is said of the request
    """The connection ended, or no HTTP came back, after the request may have been sent."""


def connected(endpoint: str, tls: ssl.SSLContext | None, bounds: Bounds) -> BoundedSocket:
    """Connect to host:port within what is left. OSError or ValueError if it fails."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    plain = dialled(host, int(port), bounds)
    return BoundedSocket(plain if tls is None else in_tls(plain, tls, host, bounds), bounds)


@frozen
class Head:
    """The head of a request, for h11 and as it is written."""

    event: h11.Request
    written: bytes


class Connection:
    """One connection to a member, for one thread at a time. A request that failed ends it."""

    __slots__ = ("_idle_since", "_poll", "_socket", "is_over")

    def __init__(self, connection: BoundedSocket) -> None:
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection.raw, select.POLLIN)
        self._idle_since = time.monotonic()
        self.is_over = False

    def is_old(self) -> bool:
        """Return whether it was idle for too long to be used again."""
        return time.monotonic() - self._idle_since > KEEPALIVE

    def is_stale(self) -> bool:
        """Return whether it is old, or has ended while idle: what is readable now is its end."""
        return self.is_old() or bool(self._poll.poll(0))

    def exchanged(self, head: Head, content: bytes, bounds: Bounds) -> tuple[int, bytes]:
        """Send a request and give status and body of its answer. Unanswered, or TimeoutError when the time is over."""
        self.is_over = True  # until proved otherwise
        connection = self._socket
        connection.bounds = bounds
        connection.settimeout(None)
        try:
            self._write(head.written + content)
            received = connection.recv(CHUNK)
            framed = length_of(received)
            if framed is None:
                return self._parsed(head.event, content, received)
            begins, ends = framed
            pieces, came = [received], len(received)
            while came < ends:
                more = connection.recv(CHUNK)
                if not more:
                    raise Unanswered("the connection was closed within the answer")
                pieces.append(more)
                came += len(more)
        except TimeoutError:
            raise
        except (OSError, h11.ProtocolError) as error:
            raise Unanswered(str(error) or type(error).__name__) from error
        if came == ends:
            self._idle()
        return 200, (received if len(pieces) == 1 else b"".join(pieces))[begins:ends]

    def _idle(self) -> None:
        self._idle_since = time.monotonic()
        self.is_over = False

    def _write(self, message: bytes) -> None:
        try:
            self._socket.sendall(message)
        except TimeoutError:
            raise
        except OSError:
            # whoever turns us away may have said why before he closed
            return

    def _parsed(self, head: h11.Request, content: bytes, received: bytes) -> tuple[int, bytes]:
        """Have h11 read an answer of which this much has come."""
        parser, status, body = h11.Connection(h11.CLIENT), 0, []
        for said in (head, h11.Data(data=content), h11.EndOfMessage()):
            parser.send(said)
        while True:
            if not received and parser.their_state is h11.SEND_RESPONSE:
                raise Unanswered("the connection was closed without an answer")
            parser.receive_data(received)
            while (event := parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.EndOfMessage):
                    if parser.their_state is h11.DONE and not parser.trailing_data[0]:
                        self._idle()
                    return status, b"".join(body)
                elif not isinstance(event, h11.InformationalResponse):
                    raise Unanswered("the answer has no end")
            received = self._socket.recv(CHUNK)

    def close(self) -> None:
        """End it."""
        self._socket.close()


class Sockets:
    """The connections of one store to all members. Safe to share between threads."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._idle: dict[str, list[Connection]] = {}
        self._is_open = True
        self._head: Callable[[str, str, str | None, int], Head] = lru_cache(HEADS_MAX)(head_of)

    def exchange(
        self, endpoint: str, request: Request, token: str | None, bounds: Bounds, share: float = 1.0
    ) -> tuple[int, bytes]:
        """Return status and body of a member's answer. share: the part of the time left that connecting may take.

        Unsent if it certainly did not go out; Unanswered or TimeoutError if that is not known.
        """
        head = self._head(endpoint, request.path, token, len(request.content))
        if not self._room.acquire(timeout=max(0.0, bounds.ends_at - time.monotonic())):
            raise Unsent(f"all {CONNECTIONS_MAX} connections are in use")
        try:
            connection = self._idle_one(endpoint) or self._new(endpoint, bounds.part(share))
            try:
                return connection.exchanged(head, request.content, bounds)
            finally:
                self._put_back(endpoint, connection)
        finally:
            self._room.release()

    def _idle_one(self, endpoint: str) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(endpoint)
                if not idle:
                    return None
                connection = idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()

    def _new(self, endpoint: str, bounds: Bounds) -> Connection:
        try:
            return Connection(connected(endpoint, self._tls, bounds))
        except (OSError, ValueError) as error:
            raise Unsent(f"{type(error).__name__}: {error}") from error

    def _put_back(self, endpoint: str, connection: Connection) -> None:
        with self._lock:
            idle = self._idle.setdefault(endpoint, [])
            spent = [*takewhile(Connection.is_old, idle)]
            del idle[: len(spent)]
            (idle if self._is_open and not connection.is_over else spent).append(connection)
        for one in spent:
            one.close()

    def close(self) -> None:
        """Close what is idle now, and what is in use as soon as it is not."""
        with self._lock:
            self._is_open = False
            idle = [connection for some in self._idle.values() for connection in some]
            self._idle.clear()
        for connection in idle:
            connection.close()


def length_of(received: bytes) -> tuple[int, int] | None:
    """Return where the body of a usual answer begins and ends; None for all that h11 is to read."""
    ends = received.find(b"\r\n\r\n") + 4
    if ends == 3 or not received.startswith(b"HTTP/1.1 200 "):
        return None
    head = received[: ends - 2].lower()
    length = _LENGTH.search(head)
    if length is None or head.count(b"\r\ncontent-length") != 1 or _UNUSUAL.search(head):
        return None
    return ends, ends + int(length[1])


def head_of(endpoint: str, path: str, token: str | None, length: int, *more: tuple[str, str]) -> Head:
    """Write the head of a request whose body has so many bytes; none: it is a GET. more: headers, by name."""
    headers = [("Host", endpoint), ("User-Agent", "lockstead"), ("Content-Type", "application/json"), *more]
    if token:
        headers.append(("Authorization", token))
    if length:
        headers.append(("Content-Length", str(length)))
    event = h11.Request(method="POST" if length else "GET", target=path, headers=headers)
    return Head(event, h11.Connection(h11.CLIENT).send(event))
