"""The leases that this process holds, by run, store and key.

The in-process form of `leased` records the run's lease, and each step the leases that it acquired, so that a request
for the same key works under the same lease. An entry is removed at the end of its block.
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
class RunKey:
    """The owner of a lease, a run or one attempt of one of its steps, with its store and key."""

    run_id: str
    attempt: str | None
    store: str
    key: str


@dataclass(slots=True)
class HeldLease:
    """A lease that is held for a run key, and the threads that joined its holder there."""

    lease: Lease
    users: list[threading.Thread] = field(default_factory=list)

    @property
    def has_others(self) -> bool:
        """Whether another thread works under the lease now."""
        own = threading.current_thread()
        return any(user is not own and user.is_alive() for user in list(self.users))


@dataclass(slots=True)
class _Table:
    entries: dict[RunKey, HeldLease] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Drop all entries."""
        self.entries, self.lock = {}, threading.Lock()


_TABLE: Final = _Table()

# the copied entries belong to the parent
os.register_at_fork(after_in_child=_TABLE.forget)


@contextmanager
def recorded(run_key: RunKey, lease: Lease) -> Iterator[HeldLease]:
    """Record that a lease is held for a run key, until the block ends."""
    held = HeldLease(lease)
    with _TABLE.lock:
        outer = _TABLE.entries.get(run_key)
        _TABLE.entries[run_key] = held
    try:
        yield held
    finally:
        with _TABLE.lock:
            if _TABLE.entries.get(run_key) is held:
                if outer is None:
                    del _TABLE.entries[run_key]
                else:
                    _TABLE.entries[run_key] = outer


@contextmanager
def joined(run_key: RunKey) -> Iterator[Lease | None]:
    """Use the lease that is held for this run key, if there is one, until the block ends.

    Yields a lost lease, too: its user must end and not acquire again.
    """
    user = threading.current_thread()
    with _TABLE.lock:
        held = _TABLE.entries.get(run_key)
        if held is not None:
            held.users.append(user)
    try:
        yield None if held is None else held.lease
    finally:
        if held is not None:
            with _TABLE.lock:
                held.users.remove(user)


def lease_of(run_key: RunKey) -> Lease | None:
    """Return the lease that is held for this run key; None if there is none."""
    with _TABLE.lock:
        held = _TABLE.entries.get(run_key)
        return None if held is None else held.lease


def other_held(run_key: RunKey) -> RunKey | None:
    """Return another run key of the same attempt or run whose lock is held; None if there is none."""
    with _TABLE.lock:
        for one in _TABLE.entries:
            is_ours = one.run_id == run_key.run_id and one.attempt in (None, run_key.attempt)
            if is_ours and (one.store, one.key) != (run_key.store, run_key.key):
                return one
    return None


def key_outside_runs(lock: Lock) -> RunKey:
    """Return the run key of a lock outside of runs, for this thread or task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return RunKey("", f"{threading.get_ident()}/{'' if task is None else id(task)}", store_of(lock), lock.key)


def count() -> int:
    """Return the number of entries."""
    with _TABLE.lock:
        return len(_TABLE.entries)
