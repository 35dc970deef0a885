"""Limits on the driver's connections, and the host name that each node's certificate must have.

The driver itself reads as much as a node announces and uses one host name for all nodes. Must not know statements.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from cassandra import cluster
from cassandra.connection import ConnectionException
from cassandra.protocol import ResultMessage, _ProtocolHandler

from lockstead.reading import RECORD_BYTES_MAX, TOO_LARGE
from lockstead.stores.bounds import LISTING_MAX, BoundedSocket, Bounds
from lockstead.stores.kept import unreadable
from lockstead.stores.transport import is_local


def bounded(names: Mapping[str, str], *, refuses_clear: bool = False) -> type[Any]:
    """Return a connection class for `Cluster`. names: the host name that a node's certificate must have, by address.

    refuses_clear: connect only to this machine, because the password would be sent unencrypted.
    """
    kind: Any = cluster.Cluster.connection_class

    class Bounded(kind):  # type: ignore[misc]  # the driver chooses the class when it is imported
        """A connection to one node."""

        def _connect_socket(self) -> None:
            if refuses_clear and not is_local(self.endpoint.address):
                raise OSError(f"the password would go to {self.endpoint.address} in clear")
            super()._connect_socket()
            connected: Any = self._socket
            self._socket: Any = BoundedSocket(connected, _one_frame())

        def _wrap_socket_from_context(self) -> Any:
            address = self.endpoint.address
            return self.ssl_context.wrap_socket(self._socket, server_hostname=names.get(address, address))

        def process_io_buffer(self) -> None:
            super().process_io_buffer()
            frame = self._current_frame
            if frame is None:
                self._socket.bounds = _one_frame()
            elif frame.end_pos > LISTING_MAX:
                self.defunct(ConnectionException("a frame is announced that is longer than any answer", self.endpoint))

    return Bounded


class _Rows(ResultMessage):  # type: ignore[misc]  # compiled, untyped; without the "_" the driver would register it
    """Rows in which a value larger than a record is replaced instead of decoded."""

    @staticmethod
    def recv_row(f: Any, colcount: int) -> list[bytes | None]:
        row = ResultMessage.recv_row(f, colcount)
        return [_TOO_LARGE if value is not None and len(value) > RECORD_BYTES_MAX else value for value in row]


class BoundedRows(_ProtocolHandler):  # type: ignore[misc]  # compiled, without types
    """The protocol handler of a session, using `_Rows`. Only fields can be too large; other columns are short."""

    message_types_by_opcode: Any = {**_ProtocolHandler.message_types_by_opcode, ResultMessage.opcode: _Rows}  # noqa: RUF012


def _map_as_sent(fields: Mapping[str, str]) -> bytes:
    """Encode a `map<text, text>` as a server sends it."""
    texts = [text.encode() for pair in fields.items() for text in pair]
    return struct.pack("!i", len(fields)) + b"".join(struct.pack("!i", len(text)) + text for text in texts)


_TOO_LARGE: Final = _map_as_sent(unreadable(TOO_LARGE))


def _one_frame() -> Bounds:
    return Bounds(math.inf, LISTING_MAX)


def names_of(hosts: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Return the URL's host for each of its addresses, because nodes report each other by address."""
    names: dict[str, str] = {}
    for host, port in hosts:
        with suppress(OSError):  # connecting to it will report the error
            for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                names.setdefault(str(address[0]), host)
    return names
