# Generated from aio_connection.py by `make blocking`: edit that file instead.
"""Connections to the members of an etcd: one request and its reply at a time.

Head and body are sent together, and never twice. Must not know which member is asked, nor what a request says.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import h11

from lockstead.stores.blocking import aside, is_readable, ready
from lockstead.stores.bounds import Bounds, dialled
from lockstead.stores.etcd.http1 import Head, body_span

CHUNK: Final = 65536

T = TypeVar("T")


class NotHttp(OSError):  # noqa: N818 - the name describes the answer
    """The server sent something that is not HTTP."""


class Connection:
    """A connection for one caller at a time. `is_good` is False after a failure; the caller then closes it."""

    __slots__ = ("_descriptor", "is_good", "opened_at", "permit", "raw")

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        self.raw = raw
        self._descriptor = raw.fileno()
        self.opened_at = time.monotonic()
        self.is_good = True
        self.permit: object = None

    def is_usable(self) -> bool:
        """Return whether the idle connection is open: if it is readable, it was closed or got an unexpected reply."""
        return not is_readable(self._descriptor)

    def exchange(self, head: Head, content: bytes, bounds: Bounds) -> tuple[int, bytes]:
        """Send a request and return status and body of its reply. Raises OSError or h11.ProtocolError."""
        self.is_good = False  # until the reply is complete and nothing follows it
        with suppress(ConnectionError):  # a server that refuses us may have said why before it closed
            self.send(head.written + content, bounds.ends_at)
        received = self._received(bounds)
        span = body_span(received)
        if span is None:
            return self._parsed(head, content, received, bounds)
        begins, ends = span
        body = bytearray(received[begins:])
        while len(body) < ends - begins:
            more = self._received(bounds)
            if not more:
                raise ConnectionError("the connection was closed within the reply")
            body += more
        self.is_good = len(body) == ends - begins
        return 200, bytes(body[: ends - begins])

    def _parsed(self, head: Head, content: bytes, received: bytes, bounds: Bounds) -> tuple[int, bytes]:
        """Read a reply with h11, of which this much was received."""
        parser, status, body, start = h11.Connection(h11.CLIENT), 0, bytearray(), b""
        for sent in (head.event, h11.Data(data=content), h11.EndOfMessage()):
            parser.send(sent)
        while True:
            if not received and parser.their_state is h11.SEND_RESPONSE:
                raise ConnectionError("the connection was closed without a reply")
            start = (start + received)[:5]
            if not b"HTTP/".startswith(start):
                raise NotHttp("not an HTTP reply")
            parser.receive_data(received)
            while (event := parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.EndOfMessage):
                    self.is_good = parser.their_state is h11.DONE and not parser.trailing_data[0]
                    return status, bytes(body)
                elif not isinstance(event, h11.InformationalResponse):
                    raise ConnectionError("the reply has no end")
            received = self._received(bounds)

    def _received(self, bounds: Bounds) -> bytes:
        bounds.left()  # a server that keeps sending is never late otherwise
        received = self.receive(bounds.ends_at)
        bounds.took(len(received))
        return received

    def receive(self, ends_at: float) -> bytes:
        """Return the next bytes, none at the end; raise TimeoutError at `ends_at` (monotonic clock)."""
        return self._done(partial(self.raw.recv, CHUNK), ends_at)

    def send(self, message: bytes, ends_at: float) -> None:
        """Send all of a message by `ends_at` (monotonic clock)."""
        rest = memoryview(message)
        while rest:
            rest = rest[self._done(partial(self.raw.send, rest), ends_at, reads=False) :]

    def _done(self, operation: Callable[[], T], ends_at: float, *, reads: bool = True) -> T:
        """Return the result of an operation as soon as the socket is ready for it. reads: what it waits for."""
        while True:
            try:
                return operation()
            except BlockingIOError:
                waits_to_read = reads
            except ssl.SSLWantReadError:
                waits_to_read = True
            except ssl.SSLWantWriteError:
                waits_to_read = False
            ready(self._descriptor, ends_at, reads=waits_to_read, writes=not waits_to_read)

    def close(self) -> None:
        """Close it. Idempotent; raises nothing."""
        self.is_good = False
        self.raw.close()


def opened(tls: ssl.SSLContext | None, endpoint: str, ends_at: float) -> Connection:
    """Return a connection to host:port by `ends_at` (monotonic clock). Raises OSError, ValueError, StoreUnavailable."""
    host, _, port = endpoint.rpartition(":")
    dial = partial(dialled, host.strip("[]"), int(port), Bounds(ends_at - time.monotonic()), tls)
    return Connection(aside(dial, ends_at, socket.socket.close))
