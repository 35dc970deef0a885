"""Check, on the resource's side, that a sequencer may still touch it. Must not know any lock store."""

from __future__ import annotations

import threading
from typing import Protocol

from lockstead.errors import LeaseLost, LossReason
from lockstead.values import Sequencer


class FenceStore(Protocol):
    """Where a resource remembers the highest token that it has seen of a key."""

    def advance(self, key: str, token: int) -> int:
        """Set the floor of a key to `token` unless it is higher, in one step; give the floor that now stands."""
        ...


class MemoryFenceStore:
    """The floor of a resource that lives in this very process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, int] = {}

    def advance(self, key: str, token: int) -> int:
        """Set the floor of a key to `token` unless it is higher; give the floor that now stands."""
        with self._lock:
            highest = max(token, self._highest.get(key, token))
            self._highest[key] = highest
            return highest


class FenceGuard:
    """Stands before a resource: refuses a token below the highest it has seen; an equal one is admitted.

    Protects only what is done after `admit` in one step with it; remembers for as long as its floor does.
    """

    def __init__(self, floor: FenceStore | None = None) -> None:
        self._floor = floor or MemoryFenceStore()

    def admit(self, sequencer: Sequencer | str) -> None:
        """Let a sequencer pass, or raise LeaseLost (TAKEN): a later holder was here.

        ValueError for text that is not a sequencer, TypeError for any other type.
        """
        said = sequencer if isinstance(sequencer, Sequencer) else Sequencer.parse(sequencer)
        highest = self._floor.advance(said.key, said.token)
        if highest > said.token:
            raise LeaseLost(
                f"token {said.token} of {said.key!r} is superseded: {highest} was here already",
                reason=LossReason.TAKEN,
                key=said.key,
                token=said.token,
            )
