"""Which lease this process holds already for a run, a store and a key: the one table of this kind.

The in-process form of `leased` notes the run's lease here, and each step the leases that it took, so that who asks for
the same key again works under the same lease. Entries go with the block that made them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstead.wrapping.locks import store_of

if TYPE_CHECKING:
    from lockstead import Lease, Lock


@dataclass(frozen=True, slots=True)
class Place:
    """Whose lease: of a run, or of one attempt of one of its steps; in which store, for which key."""

    run_id: str
    attempt: str | None
    store: str
    key: str


@dataclass(slots=True)
class Note:
    """A lease that is held for a place, and the threads that joined its holder there."""

    lease: Lease
    users: list[threading.Thread] = field(default_factory=list)

    @property
    def has_others(self) -> bool:
        """Whether another thread works under the lease now."""
        own = threading.current_thread()
        return any(user is not own and user.is_alive() for user in list(self.users))


@dataclass(slots=True)
class _Table:
    notes: dict[Place, Note] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Begin afresh."""
        self.notes, self.lock = {}, threading.Lock()


_TABLE: Final = _Table()

# a forked child holds nothing: what it copied is its parent's
os.register_at_fork(after_in_child=_TABLE.forget)


@contextmanager
def noted(place: Place, lease: Lease) -> Iterator[Note]:
    """Note that a lease is held for a place, until the block ends."""
    note = Note(lease)
    with _TABLE.lock:
        outer = _TABLE.notes.get(place)
        _TABLE.notes[place] = note
    try:
        yield note
    finally:
        with _TABLE.lock:
            if _TABLE.notes.get(place) is note:
                if outer is None:
                    del _TABLE.notes[place]
                else:
                    _TABLE.notes[place] = outer


@contextmanager
def joined(place: Place) -> Iterator[Lease | None]:
    """Work under the lease that is held for just this place, if there is one, until the block ends.

    One that was lost is given too: who works under it has to end, and not to ask anew.
    """
    user = threading.current_thread()
    with _TABLE.lock:
        note = _TABLE.notes.get(place)
        if note is not None:
            note.users.append(user)
    try:
        yield None if note is None else note.lease
    finally:
        if note is not None:
            with _TABLE.lock:
                note.users.remove(user)


def at(place: Place) -> Lease | None:
    """Return the lease that is held for just this place."""
    with _TABLE.lock:
        note = _TABLE.notes.get(place)
        return None if note is None else note.lease


def beside(place: Place) -> Place | None:
    """Return a place of the same attempt, or of its run, where another lock is held."""
    with _TABLE.lock:
        for one in _TABLE.notes:
            is_ours = one.run_id == place.run_id and one.attempt in (None, place.attempt)
            if is_ours and (one.store, one.key) != (place.store, place.key):
                return one
    return None


def here(lock: Lock) -> Place:
    """Name the place of a lock where no run is: this very thread, or task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return Place("", f"{threading.get_ident()}/{'' if task is None else id(task)}", store_of(lock), lock.key)


def count() -> int:
    """Tell how many entries there are."""
    with _TABLE.lock:
        return len(_TABLE.notes)
