"""Decides which lease is the current one: the innermost of this context (thread or task)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Entered:
    lease: Any
    outer: _Entered | None


_CURRENT: ContextVar[_Entered | None] = ContextVar("lockstead_current_lease", default=None)


def enter(lease: Any) -> None:
    """Make this lease the current one."""
    _CURRENT.set(_Entered(lease, _CURRENT.get()))


def leave(lease: Any) -> None:
    """End what `enter` began. A generator may leave in another context than it entered: then nothing is left."""
    entered = _CURRENT.get()
    if entered is not None and entered.lease is lease:
        _CURRENT.set(entered.outer)


def current() -> Any | None:
    """Give the innermost lease of this context, or None."""
    entered = _CURRENT.get()
    return None if entered is None else entered.lease
