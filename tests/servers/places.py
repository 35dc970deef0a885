"""The protocol `Place`: a store with its own server, for the tests that run on all stores.

The place of each store is in its own file in this package, and is listed in `tests.inventory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lockstead.stores.port import Store
from tests.inventory import SERVED


class Place(Protocol):
    """One running server, or several that make one store, and the stores on it.

    `space` is up to twelve lower-case letters and digits, a letter first: `url(space)` returns a store that shares
    nothing with that of another space, so that many tests can use one server. Other processes open it by that URL
    alone.
    """

    scheme: str
    is_fifo: bool
    """Whether waiters of different processes are granted the lock in the order of their requests."""
    wakes: bool
    """Whether a release wakes a waiter, so that the number of requests does not grow with the waiting time."""
    is_durable: bool
    """Whether written data still exists after `kill` and `start`."""
    cycles: int
    """Number of cycles of acquire and release in the leak test: 1,000, or less if each takes very long."""

    @property
    def ports(self) -> Sequence[int]:
        """Return the loopback ports for a proxy: one, or one of each server that a client connects to."""
        ...

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Return the URL of an empty store, without key; through other loopback ports (proxies') if given."""
        ...

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        """Open a store by its URL, as a user would."""
        ...

    def is_write(self, sent: bytes) -> bool:
        """Return whether these bytes from a client are a request to change a record, such as a renewal.

        They are the result of one `recv`: a whole request, or its beginning (the head of an HTTP request), or several.
        A request that only reads, or opens or keeps up a connection (hello, login, ping), is not a write. For the proxy
        of `tests.servers.proxy`, which drops, delays and cuts the requests that this recognises.
        """
        ...

    def left(self, space: str) -> list[str]:
        """Return the names of everything in this store now: records, queue places, sessions, leases; for leak tests.

        There is one entry for each waiter in the queue, so that a test can detect a new waiter. It is read from the
        server directly, not through a store.
        """
        ...

    def kill(self) -> None:
        """Kill the server (SIGKILL)."""
        ...

    def start(self) -> None:
        """Start it with the data it had, and wait until it serves requests."""
        ...

    def pause(self) -> None:
        """Stop it with SIGSTOP."""
        ...

    def resume(self) -> None:
        """Continue it."""
        ...

    def stop(self) -> None:
        """Stop it and remove its files."""
        ...


def place(scheme: str, directory: Path) -> Place:
    """Start the server of a store."""
    module, _, maker = SERVED[scheme].place.partition(":")
    return cast(Place, getattr(import_module(module), maker)(directory))
