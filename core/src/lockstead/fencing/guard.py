"""The resource's check of fencing tokens. Must not know any lock store."""

from __future__ import annotations

import threading
from typing import Protocol

from lockstead.errors import LeaseLost, LossReason
from lockstead.values import EXCLUSIVE, SHARED, Sequencer


class FenceStore(Protocol):
    """Stores the highest sequencer that a resource has admitted under each fence."""

    def advance(self, sequencer: Sequencer) -> Sequencer:
        """Keep the sequencer, unless one of its `fence` with a higher `rank` is kept; return what is kept. Atomic."""
        ...


class MemoryFenceStore:
    """The fence store of a resource inside this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, Sequencer] = {}

    def advance(self, sequencer: Sequencer) -> Sequencer:
        """Keep the sequencer, unless one of its fence with a higher rank is kept; return what is kept."""
        with self._lock:
            highest = max(self._highest.get(sequencer.fence, sequencer), sequencer, key=lambda one: one.rank)
            self._highest[sequencer.fence] = highest
            return highest


class FenceGuard:
    """Refuses tokens below the highest that the resource has seen; an equal token is admitted.

    Protects only access that is atomic with the preceding admission. Default store: `MemoryFenceStore`.
    """

    def __init__(self, store: FenceStore | None = None) -> None:
        self._store = store or MemoryFenceStore()

    def admit(self, sequencer: Sequencer | str) -> None:
        """Admit a writer: an exclusive lease or a permit. LeaseLost (TAKEN) if a later holder was admitted before.

        ValueError for a reader's sequencer and for text that is not a sequencer, TypeError for any other type.
        """
        said = _parsed(sequencer)
        if said.mode != EXCLUSIVE and not said.is_permit:
            raise ValueError(f"{str(said)!r} is a reader's, and a reader may not write: use admit_reader")
        highest = self._store.advance(said)
        if highest.rank > said.rank:
            raise superseded(said, highest)

    def admit_reader(self, sequencer: Sequencer | str) -> None:
        """Admit a reader: a shared or exclusive lease. LeaseLost (TAKEN) if a later holder was admitted before.

        Earlier writers are refused from now on. ValueError for a permit and for text that is not a sequencer, TypeError
        for any other type.
        """
        said = _parsed(sequencer)
        if said.mode not in (EXCLUSIVE, SHARED):
            raise ValueError(f"{str(said)!r} is a permit's, and a semaphore has no readers: use admit")
        highest = self._store.advance(said)
        if highest.token > said.token:
            raise superseded(said, highest)


def superseded(said: Sequencer, highest: Sequencer) -> LeaseLost:
    """Return the error for a sequencer that comes too late."""
    if highest.token > said.token:
        problem = f"is superseded: {highest.token} was admitted before"
    else:
        problem = "may not write any more: its lease was downgraded, and a reader was admitted"
    return LeaseLost(
        f"token {said.token} of {said.key!r} {problem}", reason=LossReason.TAKEN, key=said.key, token=said.token
    )


def _parsed(sequencer: Sequencer | str) -> Sequencer:
    return sequencer if isinstance(sequencer, Sequencer) else Sequencer.parse(sequencer)
