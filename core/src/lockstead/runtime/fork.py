"""Fork handling: in a child the parent's leases are lost and its connections dropped.

A fork waits for imports in our threads: the child would have a half-imported module whose import lock is held forever.
SQLite has a hook of its own, in `stores.sqlite.pool`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

LOADING_MAX: Final = 10.0
"""Maximum seconds that a fork waits for an importing thread: a store that does not open must not block it forever."""


class ForkAware(Protocol):
    """An object with state to repair in a forked child."""

    def after_fork(self) -> None:
        """Repair the state. Called in the child, which has no other thread, before user code runs."""
        ...


_INHERITED: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_LOADING: Final[set[int]] = set()
_LOADED: Final = threading.Condition()


def watch(one: ForkAware) -> None:
    """Call `after_fork` in every forked child while this object exists."""
    _INHERITED.add(one)


def loading(job: Callable[[], T]) -> T:
    """Run a job that imports modules, in a thread of our own; forks wait until it ends."""
    me = threading.get_ident()
    with _LOADED:
        _LOADING.add(me)
    try:
        return job()
    finally:
        with _LOADED:
            _LOADING.discard(me)
            _LOADED.notify_all()


def _before() -> None:
    _LOADED.acquire()  # until the fork is over, so that no import begins meanwhile
    mine = {threading.get_ident()}
    _LOADED.wait_for(lambda: not _LOADING - mine, LOADING_MAX)


def _in_child() -> None:
    failure: Exception | None = None
    for one in list(_INHERITED):
        try:
            one.after_fork()
        except Exception as error:  # noqa: BLE001 - the other objects must be repaired, too
            failure = error
    _LOADING.clear()  # those threads do not exist here
    _LOADED.release()
    if failure is not None:
        raise failure  # the interpreter reports it


if hasattr(os, "register_at_fork"):
    # in C: a signal that came during the fork is handled at the first line of Python after it, and may raise there
    os.register_at_fork(before=_before, after_in_parent=_LOADED.release, after_in_child=_in_child)
