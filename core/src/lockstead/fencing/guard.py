"""The resource's check of fencing tokens. Must not know any lock store."""

from __future__ import annotations

import threading
from typing import Protocol

from lockstead.errors import LeaseLost, LossReason
from lockstead.values import Sequencer


class FenceStore(Protocol):
    """Stores the highest token that a resource has seen of a key."""

    def advance(self, key: str, token: int) -> int:
        """Raise a key's highest token to `token` if it is lower, atomically, and return the highest token."""
        ...


class MemoryFenceStore:
    """The fence store of a resource inside this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, int] = {}

    def advance(self, key: str, token: int) -> int:
        """Raise a key's highest token to `token` if it is lower, and return the highest token."""
        with self._lock:
            highest = max(token, self._highest.get(key, token))
            self._highest[key] = highest
            return highest


class FenceGuard:
    """Refuses tokens below the highest that the resource has seen; an equal token is admitted.

    Protects only writes that are atomic with the preceding `admit`. Default store: `MemoryFenceStore`.
    """

    def __init__(self, store: FenceStore | None = None) -> None:
        self._store = store or MemoryFenceStore()

    def admit(self, sequencer: Sequencer | str) -> None:
        """Admit a sequencer, or raise LeaseLost (TAKEN) if a later holder was admitted before.

        ValueError for text that is not a sequencer, TypeError for any other type.
        """
        said = sequencer if isinstance(sequencer, Sequencer) else Sequencer.parse(sequencer)
        highest = self._store.advance(said.key, said.token)
        if highest > said.token:
            raise LeaseLost(
                f"token {said.token} of {said.key!r} is superseded: {highest} was admitted before",
                reason=LossReason.TAKEN,
                key=said.key,
                token=said.token,
            )
