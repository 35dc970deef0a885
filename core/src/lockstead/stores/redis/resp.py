"""How Redis commands are written as bytes, and replies are read from bytes as they arrive (RESP2).

redis-py's parsers are not used: they wait in the middle of a reply, and read as much as a server announces. Pure: uses
no socket. Must not know what is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Words: TypeAlias = "tuple[bytes, ...]"
"""One command of Redis."""

LINE_MAX: Final = 65_536
"""Bytes of a line at most: an error, a number, or the size of what follows."""

DEPTH_MAX: Final = 8
"""Arrays within arrays at most; of the replies to our requests none has more than three."""


def encoded(commands: Sequence[Words]) -> bytes:
    """Return commands as they go over the wire."""
    pieces: list[bytes] = []
    for words in commands:
        pieces.append(b"*%d\r\n" % len(words))
        pieces += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(pieces)


class ServerError(Exception):
    """An error reply. Its text begins with a code, as in "NOSCRIPT No matching script"."""


class Replies:
    """The replies of one connection, in whatever pieces they arrive."""

    __slots__ = ("_arrays", "_rest", "is_torn")

    def __init__(self) -> None:
        self.is_torn = False
        """Whether a reply has begun that is not complete."""
        self._rest = b""
        # the arrays that are not complete, outermost first: elements so far, and how many there will be
        self._arrays: list[tuple[list[Any], int]] = []

    def feed(self, piece: bytes) -> list[Any]:
        """Return the replies that this piece completes, each error as a ServerError.

        Raises ValueError for what no Redis sends.
        """
        rest, at = self._rest + piece, 0
        replies: list[Any] = []
        while (end := rest.find(b"\r\n", at)) >= 0:
            kind, text, after = rest[at : at + 1], rest[at + 1 : end], end + 2
            size = _size(text) if kind in (b"$", b"*") else -1
            if kind == b"$" and size >= 0:
                after += size + 2
                if len(rest) < after:
                    break
                text = rest[end + 2 : after - 2]
                replies += self._completed(text) if self._arrays else (text,)
            elif size > 0:
                if len(self._arrays) == DEPTH_MAX:
                    raise ValueError("not a reply of Redis: arrays within arrays")
                self._arrays.append(([], size))
            else:
                replies += self._completed(_value(kind, text))
            at = after
        else:
            if len(rest) - at > LINE_MAX:
                raise ValueError("a line without an end")
        self._rest = rest[at:]
        self.is_torn = bool(self._rest or self._arrays)
        return replies

    def _completed(self, element: Any) -> list[Any]:
        """Add an element to the array that it belongs to; return the reply that it completes, if any."""
        while self._arrays:
            elements, size = self._arrays[-1]
            elements.append(element)
            if len(elements) < size:
                return []
            element = elements
            self._arrays.pop()
        return [element]


def _size(text: bytes) -> int:
    """Return the size of a text or an array; -1 if there is none."""
    if text.isdigit() and len(text) <= 10:
        return int(text)
    if text == b"-1":
        return -1
    raise ValueError("not a size")


def _value(kind: bytes, text: bytes) -> Any:
    """Return the reply that is a line by itself. Raises ValueError for what no Redis sends."""
    match kind:
        case b"-":
            return ServerError(text.decode(errors="replace"))
        case b":":
            return int(text)
        case b"+":
            return text
        case b"$" | b"*":
            return [] if text == b"0" else None
        case _:
            raise ValueError("not a reply of Redis")
