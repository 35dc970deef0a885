"""The keys of a measurement, and their clean-up, which removes only records of this run."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from lockstead.errors import StoreError
from lockstead.protocol.commands import Read, Remove, Snapshot
from lockstead.stores.port import Store
from lockstead.values import Name

PREFIX: Final = "lockstead-bench"


class Keys:
    """Fresh random keys, and the set of those whose lock may still be held. owner is the owner of all their records."""

    def __init__(self) -> None:
        self._nonce = os.urandom(8).hex()
        self._count = 0
        self._open: dict[str, None] = {}
        self.owner = f"{PREFIX}/{self._nonce}"

    def fresh(self) -> str:
        """Return a key that was never used before."""
        self._count += 1
        key = f"{PREFIX}-{self._nonce}-{self._count}"
        self._open[key] = None
        return key

    def closed(self, key: str) -> None:
        """Record that the lock was released."""
        self._open.pop(key, None)

    def clean(self, store: Store, limit: float) -> None:
        """Remove our locks that are still held; limit is seconds per request. If that fails, the ttl ends them."""
        for key in list(self._open):
            with suppress(StoreError):
                seen = store.perform(Read(Name(key)), limit)
                if isinstance(seen, Snapshot) and self.owner in seen.fields.get("owner", ""):
                    store.perform(Remove(Name(key), seen.incarnation), limit)
                self.closed(key)
