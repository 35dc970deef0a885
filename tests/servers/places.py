"""The stores that have a server of their own, as the tests that run on all of them need them: one `Place` a store.

A store's place is in its own file beside this one, and is named in `tests.inventory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lockstead.stores.port import Store
from tests.inventory import SERVED


class Place(Protocol):
    """One running server (or several that make one store) and how the store on it is opened.

    `space` is up to twelve lower-case letters and digits, a letter first: `url(space)` gives a store that shares
    nothing with that of another space, so that one server does for many tests. Other processes open it by that URL
    alone.
    """

    scheme: str
    is_fifo: bool
    """Whether waiting is granted in the order of asking, among processes."""
    wakes: bool
    """Whether a release wakes a waiter, so that the number of requests does not grow with the time of waiting."""
    is_durable: bool
    """Whether what was written is still there after `kill` and `start`."""
    cycles: int
    """How many cycles of taking and giving back the leak test makes: 1,000, or less where each takes very long."""

    @property
    def ports(self) -> Sequence[int]:
        """The loopback ports that a proxy has to stand before: one, or one of each server that a client speaks to."""
        ...

    def url(self, space: str, *, ports: Sequence[int] | None = None) -> str:
        """Return the URL of an empty store, without key; through other loopback ports (proxies') if given."""
        ...

    def open(self, space: str, *, ports: Sequence[int] | None = None) -> Store:
        """Open it, as a user's URL would."""
        ...

    def is_write(self, sent: bytes) -> bool:
        """Return whether these bytes, as a client sent them, ask the server to change a record (a renewal does).

        Bytes as one `recv` gives them: a whole request, or its beginning (the head of an HTTP request), or several.
        What only looks, and what opens or keeps up a connection (hello, login, ping), is not a write. For the proxy of
        `tests.servers.proxy`, which loses, delays and cuts what this recognises.
        """
        ...

    def left(self, space: str) -> list[str]:
        """Name everything that stands in this store now: records, queue places, sessions, leases; for leak tests.

        One entry for each who stands in the queue, so that a test can see that somebody has come to stand in it.
        Asked of the server directly, not through a store.
        """
        ...

    def kill(self) -> None:
        """End the server at once (SIGKILL)."""
        ...

    def start(self) -> None:
        """Start it, on the data it had, and wait until it serves."""
        ...

    def pause(self) -> None:
        """Let it stand still (SIGSTOP)."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...

    def stop(self) -> None:
        """Stop it for good and remove what it left."""
        ...


def place(scheme: str, directory: Path) -> Place:
    """Start the server of a store."""
    module, _, maker = SERVED[scheme].place.partition(":")
    return cast(Place, getattr(import_module(module), maker)(directory))
