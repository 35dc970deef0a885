"""The parts of the runtime that differ on the blocking side: requests and pauses in the caller's thread.

Its counterpart is `awaiting`. Both define the same names, for the blocking modules generated from the async ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstead.protocol.commands import Command
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.stores.port import Store

if TYPE_CHECKING:
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.held import HeldLease
    from lockstead.runtime.keeper import KeptLease

__all__ = [
    "FIRST_LATE",
    "REQUEST_LATE",
    "ThreadWaker",
    "Waker",
    "given_back",
    "new_waker",
    "perform",
    "quiet_waker",
    "settle",
]

FIRST_LATE: Final = math.inf
"""The first request of a blocking caller is never late: it is sent at once."""

REQUEST_LATE: Final = math.inf
"""A blocking request is never late: it gets its reply however late that comes, so it is not repeated."""


Waker: TypeAlias = ThreadWaker


def new_waker(
    engine: Engine,  # noqa: ARG001 - its async counterpart needs them
    came_late: Callable[[], None],  # noqa: ARG001
    abandoned: Callable[[ThreadWaker], None],  # noqa: ARG001
) -> ThreadWaker:
    """Return the waker of a waiter in the local queue."""
    return ThreadWaker()


def quiet_waker(engine: Engine) -> ThreadWaker:  # noqa: ARG001 - its async counterpart needs it
    """Return the waker of a caller that is not in the local queue."""
    return ThreadWaker()


def perform(command: Command[Any], store: Store, limit: float, waker: ThreadWaker) -> Any:  # noqa: ARG001 - its async counterpart needs it
    """Send one command."""
    return store.perform(command, limit)


def settle(engine: Engine, kept: KeptLease) -> None:
    """Wait until no renewal of a lease is in flight."""
    engine.keeper.settle(kept, 2 * kept.lease_state.settings.request_timeout)


def given_back(lease: HeldLease) -> None:
    """End a lease that was released."""
    lease._end_release()
