"""Parsing of `memory:` URLs. The URL gives the name of a memory; only a fragment gives a key.

A DAG file defines many locks and opens none, so this module imports more only to open one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lockstead.stores.url import BuiltInOpener

if TYPE_CHECKING:
    from lockstead.stores.memory import MemoryStore

_NAME: Final = re.compile(r"memory:([A-Za-z0-9._-]*)")


class _Opener(BuiltInOpener):
    """The opener of `memory:` and `memory:name`."""

    spans_processes = False

    def printable(self, store_url: str) -> str:
        """Return the URL; it contains no credentials."""
        return store_url

    def open(self, store_url: str, client: object | None) -> MemoryStore:
        """Open the memory of this name. Raises ValueError for an invalid URL, TypeError if a client is passed."""
        from lockstead.stores.memory.store import named

        if client is not None:
            raise TypeError("a memory store accepts no client")
        found = _NAME.fullmatch(store_url)
        if found is None:
            raise ValueError(
                "not the URL of a memory store; write 'memory:', or 'memory:name' with letters, digits, '.', '_', '-'"
            )
        return named(found[1])


OPENER: Final = _Opener()
