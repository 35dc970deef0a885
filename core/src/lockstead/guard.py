"""Guard: interrupts a `with` block when its lease is lost. The blocking counterpart of `aio_guard`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

from lockstead.runtime.held import HeldLease
from lockstead.runtime.inside import is_inside
from lockstead.runtime.interrupt import Interrupter, uninterrupted

L = TypeVar("L", bound=HeldLease)


class GuardedLease(HeldLease):
    """A blocking lease that can interrupt a block."""

    def guard(self, *, mutex: AbstractContextManager[object] | None = None) -> Guard[Self]:
        """Return a guard, whose `with` block is interrupted when the lease is lost; for limits see `runtime.interrupt`.

        mutex: held from before the interrupt is sent until it is received, so that code under the same mutex, such as
        an exchange on a channel, is never interrupted. ValueError outside the main thread.
        """
        return Guard(self, mutex)


class Guard(Generic[L]):
    """A `with` block that is interrupted when its lease is lost, and then raises LeaseLost."""

    def __init__(self, lease: L, mutex: AbstractContextManager[object] | None = None) -> None:
        self._lease = lease
        self._mutex = mutex
        self._interrupter: Interrupter | None = None

    @uninterrupted
    def __enter__(self) -> L:
        if self._interrupter is not None:
            raise TypeError("this guard is entered already: call lease.guard() once for each block")
        lease = self._lease
        lease.check()
        self._interrupter = Interrupter(self._mutex)
        try:
            self._interrupter.arm()
            lease._engine.keeper.guard(lease._kept, self._interrupter)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return lease

    @uninterrupted
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupter, lease = self._interrupter, self._lease
        if interrupter is None:
            return
        inside = is_inside()
        was_fired = interrupter.drop() if inside else interrupter.disarm()
        self._interrupter = None
        if not inside:
            lease._engine.keeper.unguard(lease._kept, interrupter)
        is_lost = was_fired or lease.lost_reason is not None
        if is_lost and (error is None or interrupter.has_thrown(error)):
            lost = lease._found_lost()
            raise lost from lost.__cause__
        if error is None and not inside:
            interrupter.raise_pending()
