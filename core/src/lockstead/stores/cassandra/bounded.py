"""Decides how the driver's connections are kept within bounds, and whose certificate each of them takes.

The driver reads as much as a node announces, and knows one host name for all nodes. Must not know statements.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cassandra import cluster
from cassandra.connection import ConnectionException

from lockstead.stores.bounds import LISTING_MAX, BoundedSocket, Bounds
from lockstead.stores.transport import is_local


def bounded(names: Mapping[str, str], *, refuses_clear: bool = False) -> type[Any]:
    """Give a class of connections for `Cluster`. names: what a node's certificate is to name, by its address.

    refuses_clear: no other machine is connected to, for a password would go to it in clear.
    """
    kind: Any = cluster.Cluster.connection_class

    class Bounded(kind):  # type: ignore[misc]  # the driver chooses it when it is imported
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


def _one_frame() -> Bounds:
    return Bounds(math.inf, LISTING_MAX)


def names_of(hosts: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Give the host of the URL for each address that it has: nodes tell of one another by their addresses."""
    names: dict[str, str] = {}
    for host, port in hosts:
        with suppress(OSError):  # whoever connects to it will hear of it
            for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                names.setdefault(str(address[0]), host)
    return names
