"""Decides what the current lease is called by users: the innermost one of this thread or task, blocking or awaiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstead.runtime import context

if TYPE_CHECKING:
    from lockstead.aio_lease import AsyncLease
    from lockstead.lease import Lease


def current_lease() -> Lease | AsyncLease:
    """Give the innermost lease of this context; LookupError if there is none."""
    lease: Lease | AsyncLease | None = context.current()
    if lease is None:
        raise LookupError("no lease is held in this context; enter 'with lock.hold():' first")
    return lease
