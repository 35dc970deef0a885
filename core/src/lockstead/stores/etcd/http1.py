"""HTTP/1.1 messages of etcd's JSON gateway: heads of requests, and where the body of the usual reply is.

h11 writes heads and reads replies; but the usual reply, a 200 with a Content-Length, is cut out of what was received,
because h11 takes as long for it as everything else here. Must not know connections.
"""

from __future__ import annotations

import re
from typing import Final

import h11

from lockstead.frozen import frozen

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,9})\r\n")
_UNUSUAL: Final = re.compile(rb"\r\n(?:transfer-encoding|connection|[ \t])|[^\r]\n|\r[^\n]")


@frozen
class Head:
    """The head of a request, as h11's event and as it is sent."""

    event: h11.Request
    written: bytes


def head_of(endpoint: str, path: str, token: str | None, length: int, *more: tuple[str, str]) -> Head:
    """Return the head of a request with a body of `length` bytes; a GET if there is none. more: additional headers."""
    headers = [("Host", endpoint), ("User-Agent", "lockstead"), ("Content-Type", "application/json"), *more]
    if token:
        headers.append(("Authorization", token))
    if length:
        headers.append(("Content-Length", str(length)))
    event = h11.Request(method="POST" if length else "GET", target=path, headers=headers)
    return Head(event, h11.Connection(h11.CLIENT).send(event))


def body_span(received: bytes) -> tuple[int, int] | None:
    """Return where the body of a usual reply begins and ends; None for any other, which h11 must read."""
    begins = received.find(b"\r\n\r\n") + 4
    if begins == 3 or not received.startswith(b"HTTP/1.1 200 "):
        return None
    head = received[: begins - 2].lower()
    length = _LENGTH.search(head)
    if length is None or head.count(b"\r\ncontent-length") != 1 or _UNUSUAL.search(head):
        return None
    return begins, begins + int(length[1])
