"""Locks in the memory of one process: `MemoryStore`, which is also useful in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstead.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]


def __getattr__(name: str) -> object:
    """Import the store on first access: defining a lock does not need it."""
    if name != "MemoryStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lockstead.stores.memory import store

    return store.MemoryStore
