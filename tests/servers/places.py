"""The stores that have a server of their own, as the tests that run on all of them need them: one `Place` a store.

A store's place stands in its own file beside this one and is named in the table here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lockstead.stores.port import Store


class Place(Protocol):
    """One running server (or several that make one store) and how the store on it is opened.

    `root` numbers and names are the place's business: `url(space)` gives a store that shares nothing with that of
    another `space`, so that one server does for many tests.
    """

    scheme: str
    is_fifo: bool
    """Whether waiting is granted in the order of asking."""
    wakes: bool
    """Whether a release wakes a waiter."""

    def url(self, space: str, *, port: int | None = None) -> str:
        """Give the URL of an empty store, without key; through another loopback port (a proxy's) if given."""
        ...

    def open(self, space: str, *, port: int | None = None) -> Store:
        """Open it."""
        ...

    @property
    def port(self) -> int:
        """The loopback port that a proxy has to stand before."""
        ...

    def left(self, space: str) -> list[str]:
        """Name everything that stands in this store now: records, queue places, sessions, leases; for leak tests."""
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


@dataclass(frozen=True)
class Known:
    """Where the place of a store stands: `module.maker(directory) -> Place`, which starts the server."""

    module: str
    maker: str


PLACES: dict[str, Known] = {}
"""Scheme to place. A store with a server that is missing here fails `tests/stores/test_all_stores.py`."""


def place(scheme: str, directory: Path) -> Place:
    """Start the server of a store."""
    known = PLACES[scheme]
    return cast(Place, getattr(import_module(known.module), known.maker)(directory))
