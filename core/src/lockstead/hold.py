# Generated from aio_hold.py by `make blocking`: edit that file instead.
"""Hold: a `with` block, or a function, that holds a lock.

Has few imports: the engine is loaded when a hold is entered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lockstead.misuse import HoldMisuse, check_function
from lockstead.runtime.interrupt import uninterrupted

if TYPE_CHECKING:
    from lockstead.guard import Guard
    from lockstead.lease import Lease
    from lockstead.values import Duration

P = ParamSpec("P")
R = TypeVar("R")


class Hold(HoldMisuse):
    """The return value of `lock.hold()`: a context manager with a lease of its own, and a decorator."""

    def __init__(self, acquire: Callable[[], Lease], *, interrupt: bool, drain: Duration | None) -> None:
        self._acquire = acquire
        self._interrupt = interrupt
        self._drain = drain
        self._lease: Lease | None = None
        self._guard: Guard[Lease] | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise TypeError("this hold is entered already: call lock.hold() once for each block")
        self._lease = self._acquire()
        return self._begin(self._lease)

    @uninterrupted
    def _begin(self, lease: Lease) -> Lease:
        try:
            lease._enter_block()
            if self._interrupt:
                guard = self._guard = lease.guard()
                guard.__enter__()
        except BaseException as error:
            # the block never began
            lease._lease_state.unused = True
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return lease

    @uninterrupted
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, guard = self._lease, self._guard
        self._lease = self._guard = None
        if lease is None:
            return
        try:
            if guard is not None:
                guard.__exit__(kind, error, trace)
        except BaseException as raised:
            lease._leave(raised, self._drain)
            raise
        lease._leave(error, self._drain)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        check_function(function)

        @functools.wraps(function)
        def holding_it(*args: P.args, **kwargs: P.kwargs) -> R:
            with Hold(self._acquire, interrupt=self._interrupt, drain=self._drain):
                return function(*args, **kwargs)

        return holding_it
