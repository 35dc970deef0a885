"""Decides what a forked child inherits: nothing. Its copies of the parent's leases are lost, its connections dropped.

The one place that hooks into `fork`.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forks(Protocol):
    """What must be put right in a child."""

    def after_fork(self) -> None:
        """Called in the child, where no other thread exists, before any user code runs."""
        ...


_INHERITED: weakref.WeakSet[Forks] = weakref.WeakSet()


def watch(one: Forks) -> None:
    """Call `after_fork` in every child that is forked while this object lives."""
    _INHERITED.add(one)


def _in_child() -> None:
    failure: Exception | None = None
    for one in list(_INHERITED):
        try:
            one.after_fork()
        except Exception as error:  # noqa: BLE001 - the others' leases must be marked as lost all the same
            failure = error
    if failure is not None:
        raise failure  # the interpreter reports it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
