"""A script call over a socket without TLS, in few steps.

The way of nearly every request. A socket with a time-out is asked by Python whether it is ready
before every step, and the library reads in pieces: together that costs more than the server takes. Must not know what
is asked.
"""

from __future__ import annotations

import select
import socket
from typing import Final

from lockstead.stores.bounds import Bounds

READ_AT_ONCE: Final = 16_384
"""Bytes that are read in one step: more than any record takes."""


class PlainSocket:
    """A connected socket."""

    __slots__ = ("_arrivals", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._arrivals = select.poll()
        self._arrivals.register(connected, select.POLLIN)

    def has_more(self) -> bool:
        """Return whether there is something to read, or the end."""
        return bool(self._arrivals.poll(0))

    def exchange(self, request: bytes, bounds: Bounds) -> bytes | str:
        """Send a request and return its reply within bounds: a text, or the line of an error.

        Raises OSError for everything else; what is left on the connection is of no use then.
        """
        if self._socket.gettimeout() != 0.0:
            self._socket.settimeout(0.0)  # it must not wait by itself
        self._send(request, bounds)
        said = self._received(bounds)
        while b"\r\n" not in said:
            if len(said) > READ_AT_ONCE:
                raise ConnectionError("a reply that no script gives")
            said += self._received(bounds)
        line, _, text = said.partition(b"\r\n")
        if line[:1] == b"-" and not text:
            return line[1:].decode(errors="replace")
        if line[:1] != b"$" or not line[1:].isdigit() or len(line) > 12:
            raise ConnectionError("a reply that no script gives")
        whole = int(line[1:]) + 2
        if len(text) < whole:
            text = self._whole(text, whole, bounds)
        if len(text) > whole:
            raise ConnectionError("more than one reply")
        return text[:-2]

    def _whole(self, text: bytes, whole: int, bounds: Bounds) -> bytes:
        pieces, came = [text], len(text)
        while came < whole:
            piece = self._received(bounds)
            pieces.append(piece)
            came += len(piece)
        return b"".join(pieces)

    def _send(self, request: bytes, bounds: Bounds) -> None:
        sent = self._sent(request)
        while sent < len(request):
            room = select.poll()
            room.register(self._socket, select.POLLOUT)
            _await(room, bounds)
            sent += self._sent(request[sent:])

    def _sent(self, request: bytes) -> int:
        try:
            return self._socket.send(request)
        except BlockingIOError:
            return 0

    def _received(self, bounds: Bounds) -> bytes:
        """Return what comes next; TimeoutError if nothing does."""
        while True:
            _await(self._arrivals, bounds)
            try:
                came = _next_of(self._socket)
            except BlockingIOError:
                continue  # the system was mistaken: nothing is there
            bounds.took(len(came))
            return came


def _next_of(connected: socket.socket) -> bytes:
    came = connected.recv(READ_AT_ONCE)
    if not came:
        raise ConnectionResetError("the server closed the connection")
    return came


def _await(events: select.poll, bounds: Bounds) -> None:
    if not events.poll(bounds.left() * 1000):
        raise TimeoutError
