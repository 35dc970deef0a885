"""What a forked child inherits: nothing. Its copies of the parent's leases are lost, its connections dropped.

A fork waits for what a thread of ours is importing: in the child nobody would finish that module, and whoever needs it
there would wait forever. SQLite has a hook of its own, in `stores.sqlite.changes`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

LOADING_MAX: Final = 10.0
"""Seconds that a fork waits for a thread that is importing: a store that does not open must not hold it up forever."""


class ForkAware(Protocol):
    """What must be put right in a child."""

    def after_fork(self) -> None:
        """Called in the child, where no other thread exists, before any user code runs."""
        ...


_INHERITED: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_LOADING: Final[set[int]] = set()
_LOADED: Final = threading.Condition()


def watch(one: ForkAware) -> None:
    """Call `after_fork` in every child that is forked while this object lives."""
    _INHERITED.add(one)


def loading(job: Callable[[], T]) -> T:
    """Do what imports modules, in a thread of our own, and let forks wait until it is done."""
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
    _LOADED.acquire()  # until the fork is over, so that nobody begins meanwhile
    mine = {threading.get_ident()}
    _LOADED.wait_for(lambda: not _LOADING - mine, LOADING_MAX)


def _in_parent() -> None:
    _LOADED.release()


def _in_child() -> None:
    failure: Exception | None = None
    for one in list(_INHERITED):
        try:
            one.after_fork()
        except Exception as error:  # noqa: BLE001 - the others' leases must be marked as lost all the same
            failure = error
    _LOADING.clear()  # those threads do not exist here
    _LOADED.release()
    if failure is not None:
        raise failure  # the interpreter reports it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
