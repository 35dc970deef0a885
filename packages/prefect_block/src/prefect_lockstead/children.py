"""Child tasks and flows of a section, in this process: each runs as a member of the section.

A member is interrupted in its own thread or asyncio task when the lease is lost. It raises `LeaseLost` if the lease was
lost or the section had ended before its function began. The end of a section waits for the members that have begun. A
context variable carries the section: Prefect copies the context of the submitting code, except to process pools and
clusters, which need `attached`.

A child in the thread or asyncio task of the section itself is interrupted by the section's own guard: Prefect shows it
as Crashed, and the section raises `LeaseLost`. `engines` hooks the calls of Prefect.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import lockstead
from lockstead.aio_lease import AsyncLease
from lockstead.lease import Lease
from prefect_lockstead.members import AnyLease, Cancel, Place, awaiting, blocking

TURN: Final = 0.05
"""Seconds between two checks for working members when a section ends."""

CLEANUP: Final = 0.5
"""Seconds for which an async section that lost its lease waits for its children's cleanup; threads are waited for by
their pool."""


@dataclass(frozen=True, slots=True)
class _Cover:
    """A section that this context is in, and the place of its innermost guard."""

    section: inherited
    place: Place


_COVERS: ContextVar[tuple[_Cover, ...]] = ContextVar("lockstead_prefect_sections", default=())
"""The sections that this context is in, the outermost first."""


class inherited:  # noqa: N801 - used as `with inherited(lease):`
    """A `with` block, `async with` for an AsyncLease, whose child tasks and flows work under its lease.

    Enter it in the thread or task of the lease's guard. It does not reach another process, nor a function that Prefect
    does not call. The end of the block waits for the children that have begun, as long as the lease is held.
    """

    def __init__(self, lease: Lease | AsyncLease) -> None:
        self.lease = lease
        self._lock = threading.Lock()
        self._members = 0
        self._cancels: set[Cancel] = set()
        self._is_open = False

    def __enter__(self) -> Self:
        if isinstance(self.lease, AsyncLease):
            raise TypeError("an AsyncLease needs 'async with inherited(lease):'")
        self._enter(is_task=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._wait()
        self._unwrap(error)

    async def __aenter__(self) -> Self:
        self._enter(is_task=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        try:
            await self._await()
        finally:
            await self._await_cleanup()
        self._unwrap(error)

    def _enter(self, *, is_task: bool) -> None:
        from prefect_lockstead import engines

        engines.hook()
        engines.log_unreached_runner(self.lease)
        # the callback must not keep a dropped lease alive
        here = weakref.ref(self)
        self.lease.on_lost(lambda: _notify_loss(here()))
        self._is_open = True
        _COVERS.set((*_COVERS.get(), _Cover(self, Place.here(is_task=is_task))))

    def _leave(self) -> None:
        with self._lock:
            self._is_open = False
        # a generator may exit in another context than it was entered in
        _COVERS.set(tuple(one for one in _COVERS.get() if one.section is not self))

    def _wait(self) -> None:
        try:
            done = threading.Event()
            while self._is_awaited():
                done.wait(TURN)
        except BaseException:
            # a timeout or a signal: the lock must not be released while members work
            self._wait()
            raise

    async def _await(self) -> None:
        try:
            while self._is_awaited():  # noqa: ASYNC110 - members end in any thread, and so may the lease
                await asyncio.sleep(TURN)
        except BaseException:
            await self._await()
            raise

    async def _await_cleanup(self) -> None:
        ends_at = time.monotonic() + CLEANUP
        while self._members and time.monotonic() < ends_at:  # noqa: ASYNC110 - as above
            await asyncio.sleep(TURN)

    def _is_awaited(self) -> bool:
        """Return whether a member works under a held lease; after a loss its guard ends it."""
        with self._lock:
            return self._members > 0 and self.lease.is_held

    def _unwrap(self, error: BaseException | None) -> None:
        """Raise LeaseLost in place of a group of only LeaseLost, as a TaskGroup of children raises it."""
        if isinstance(error, BaseExceptionGroup) and self.lease.lost_reason is not None:
            _ours, others = error.split(lockstead.LeaseLost)
            if others is None:
                raise self.lease.lost_error() from error

    # --- members --------------------------------------------------------------------------------------------------

    def join(self, cancel: Cancel | None = None) -> None:
        """Add a member, cancelled on loss by `cancel`; LeaseLost if the lease was lost or the section has ended."""
        with self._lock:
            if self.lease.lost_reason is not None or (self._is_open and not self.lease.is_held):
                raise self.lease.lost_error()
            if not self._is_open:
                raise self._too_late()
            self._members += 1
            if cancel is not None:
                self._cancels.add(cancel)

    def part(self, cancel: Cancel | None = None) -> None:
        """Remove a member."""
        with self._lock:
            self._members -= 1
            if cancel is not None:
                self._cancels.discard(cancel)

    def _on_lost(self) -> None:
        with self._lock:
            cancels = list(self._cancels)
        for one in cancels:
            one.fire()

    def is_left(self) -> bool:
        """Return whether the section has ended and its lease was not lost."""
        return not self._is_open and self.lease.lost_reason is None

    def _too_late(self) -> lockstead.LeaseLost:
        lease = self.lease
        return lockstead.LeaseLost(
            f"the section of {lease.holder!r} on {lease.key!r} ended before this began: wait for submitted work "
            "before its end, or detach the lease and pass on the ticket",
            reason=lockstead.LossReason.GONE,
            key=lease.key,
            holder=lease.holder,
            token=lease.token,
        )


def _notify_loss(section: inherited | None) -> None:
    if section is not None:
        section._on_lost()


# --- called by engines ------------------------------------------------------------------------------------------------


def is_in_vain(error: Exception) -> bool:
    """Return whether a retry after this error would be refused, too."""
    leases = [one.section.lease for one in _COVERS.get()]
    return any(
        one.lost_reason is not None or (isinstance(error, lockstead.LeaseLost) and error.holder == one.holder)
        for one in leases
    )


def covered(function: Callable[..., Any], parameters: Mapping[str, Any], *, is_async: bool) -> Callable[..., Any]:
    """Return the function wrapped as a member of each section whose guard does not cover this thread or task.

    A call with a ticket as argument does not need a section that has ended.
    """
    sections = [one.section for one in _COVERS.get() if not one.place.covers(is_async=is_async)]
    if sections and _brings_ticket(parameters.values()):
        sections = [one for one in sections if not one.is_left()]
    if not sections:
        return function
    if is_async:

        @functools.wraps(function)
        async def as_member(*args: Any, **kwargs: Any) -> Any:
            cancel = Cancel()
            with _joined(sections, cancel) as leases:
                return await awaiting(cancel, leases, functools.partial(function, *args, **kwargs))

        return as_member

    @functools.wraps(function)
    def in_thread(*args: Any, **kwargs: Any) -> Any:
        with _joined(sections) as leases:
            return blocking(leases, functools.partial(function, *args, **kwargs))

    return in_thread


@contextmanager
def _joined(sections: list[inherited], cancel: Cancel | None = None) -> Iterator[list[AnyLease]]:
    """Be a member of sections for a block and yield their leases; a task has a `cancel`."""
    before, joined = _COVERS.get(), 0
    try:
        for section in sections:
            section.join(cancel)
            joined += 1
        _COVERS.set(_moved(before, sections, Place.here(is_task=cancel is not None)))
        yield [one.lease for one in sections]
    finally:
        _COVERS.set(before)
        for section in sections[:joined]:
            section.part(cancel)


def _moved(covers: tuple[_Cover, ...], sections: list[inherited], place: Place) -> tuple[_Cover, ...]:
    return tuple(_Cover(one.section, place) if one.section in sections else one for one in covers)


def _brings_ticket(values: Iterable[object]) -> bool:
    for value in values:
        if isinstance(value, lockstead.LeaseTicket):
            return True
        if isinstance(value, str):
            try:
                lockstead.LeaseTicket.parse(value)
            except ValueError:
                continue
            return True
    return False
