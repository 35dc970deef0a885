"""Decides how a script call, and the news of a subscription, go over a socket that nobody encrypts: in few steps.

The way of nearly every request, and of every wake-up. A socket with a time-out is asked by Python whether it is ready
before every step, and the library reads in pieces: together that costs more than the server takes. Must not know what
is asked.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final

READ_AT_ONCE: Final = 16_384
"""Bytes that are read in one step: more than any record takes."""


class PlainSocket:
    """A connected socket, which must not wait by itself (`settimeout(0)`) while this is used."""

    __slots__ = ("_arrivals", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._arrivals = select.poll()
        self._arrivals.register(connected, select.POLLIN)

    def has_more(self) -> bool:
        """Tell whether there is something to read, or the end."""
        return bool(self._arrivals.poll(0))

    def exchange(self, request: bytes, limit: float) -> bytes | str:
        """Send a request and give its reply within `limit` seconds: a text, or the line of an error.

        Raises OSError for everything else; what is left on the connection is of no use then.
        """
        ends_at = time.monotonic() + limit
        self._send(request, ends_at)
        said = self._received(limit)
        while b"\r\n" not in said:
            said += self._received(ends_at - time.monotonic())
        line, _, text = said.partition(b"\r\n")
        if line[:1] == b"-" and not text:
            return line[1:].decode(errors="replace")
        if line[:1] != b"$" or not line[1:].isdigit():
            raise ConnectionError("a reply that no script gives")
        whole = int(line[1:]) + 2
        while len(text) < whole:
            text += self._received(ends_at - time.monotonic())
        if len(text) > whole:
            raise ConnectionError("more than one reply")
        return text[:-2]

    def _send(self, request: bytes, ends_at: float) -> None:
        sent = self._sent(request)
        while sent < len(request):
            room = select.poll()
            room.register(self._socket, select.POLLOUT)
            _await(room, ends_at - time.monotonic())
            sent += self._sent(request[sent:])

    def _sent(self, request: bytes) -> int:
        try:
            return self._socket.send(request)
        except BlockingIOError:
            return 0

    def _received(self, seconds: float) -> bytes:
        """Give what comes next; TimeoutError if nothing does."""
        while True:
            _await(self._arrivals, seconds)
            try:
                return _next_of(self._socket)
            except BlockingIOError:
                pass  # the system was mistaken: nothing is there


class Messages:
    """What is published to one channel, on a connected socket that waits by itself (`settimeout(None)`)."""

    __slots__ = ("_came", "_opening", "_socket")

    def __init__(self, connected: socket.socket, channel: bytes) -> None:
        self._socket = connected
        self._opening = b"*3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$" % (len(channel), channel)
        self._came = b""

    def next(self) -> bytes:
        """Block until a message comes, and give it. OSError when the connection ends, or speaks of anything else."""
        while True:
            opening, came = self._opening, self._came
            if not came.startswith(opening[: len(came)]):
                raise ConnectionError("what came is no message to this channel")
            size, _, text = came[len(opening) :].partition(b"\r\n")
            if text and len(text) >= int(size) + 2:
                self._came = text[int(size) + 2 :]
                return text[: int(size)]
            self._came = came + _next_of(self._socket)


def _next_of(connected: socket.socket) -> bytes:
    came = connected.recv(READ_AT_ONCE)
    if not came:
        raise ConnectionResetError("the server closed the connection")
    return came


def _await(events: select.poll, seconds: float) -> None:
    if seconds <= 0 or not events.poll(seconds * 1000):
        raise TimeoutError
