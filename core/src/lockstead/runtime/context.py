"""The current task, and the current lease: the innermost one of this context (thread or task)."""

from __future__ import annotations

import sys
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Entered:
    # weak: if an exception at the first line of `leave` skips the rest, the lease must not be kept alive
    lease: weakref.ref[Any]
    outer: _Entered | None


_CURRENT: ContextVar[_Entered | None] = ContextVar("lockstead_current_lease", default=None)


def current_task() -> Any | None:
    """Return the asyncio task that runs in this thread now, or None. Does not import asyncio."""
    asyncio = sys.modules.get("asyncio")
    # None outside of a loop, where current_task would raise
    loop = None if asyncio is None else asyncio._get_running_loop()
    return None if asyncio is None or loop is None else asyncio.current_task(loop)


def enter(lease: Any) -> None:
    """Make this lease the current one."""
    _CURRENT.set(_Entered(weakref.ref(lease), _living()))


def leave(lease: Any) -> bool:
    """Undo `enter` of this lease, and of leases entered since.

    Does nothing and returns False in another context, in which a generator may be closed.
    """
    entered = _CURRENT.get()
    while entered is not None and entered.lease() is not lease:
        entered = entered.outer
    if entered is not None:
        _CURRENT.set(entered.outer)
    return entered is not None


def current() -> Any | None:
    """Return the innermost lease of this context, or None."""
    entered = _living()
    return None if entered is None else entered.lease()


def _living() -> _Entered | None:
    entered = _CURRENT.get()
    while entered is not None and entered.lease() is None:
        entered = entered.outer
    return entered
