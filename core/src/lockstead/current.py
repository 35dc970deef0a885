"""What the current lease is called by users: the innermost one of this thread or task, blocking or awaiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from lockstead.runtime import context

if TYPE_CHECKING:
    from lockstead.aio_lease import AsyncLease
    from lockstead.lease import Lease


@overload
def current_lease(kind: type[Lease] | None = None) -> Lease: ...


@overload
def current_lease(kind: type[AsyncLease]) -> AsyncLease: ...


def current_lease(kind: type[Lease] | type[AsyncLease] | None = None) -> Lease | AsyncLease:
    """Return the innermost lease of this context; LookupError if there is none.

    kind: Lease or AsyncLease; TypeError if the lease is of the other kind. Without it any lease is given, and a type
    checker takes it for a Lease: in a coroutine write `current_lease(AsyncLease)`.
    """
    lease: Lease | AsyncLease | None = context.current()
    if lease is None:
        raise LookupError("no lease is held in this context; enter 'with lock.hold():' first")
    if kind is not None and not isinstance(lease, kind):
        raise TypeError(f"the current lease is of the type {type(lease).__name__}, not {kind.__name__}")
    return lease
