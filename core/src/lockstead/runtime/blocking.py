"""What the blocking side does in its own way: requests and pauses on the caller's thread. Its twin is `awaiting`.

Both have the same names, for the modules that are generated for one side from the other.
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
"""A blocking caller sends its first request at once."""

REQUEST_LATE: Final = math.inf
"""A blocking request has its answer, however late: nothing needs to be asked again for that."""


Waker: TypeAlias = ThreadWaker


def new_waker(
    engine: Engine,  # noqa: ARG001 - its twin needs them
    came_late: Callable[[], None],  # noqa: ARG001
    abandoned: Callable[[ThreadWaker], None],  # noqa: ARG001
) -> ThreadWaker:
    """Make the waker of a waiter."""
    return ThreadWaker()


def quiet_waker(engine: Engine) -> ThreadWaker:  # noqa: ARG001 - its twin needs it
    """Make the waker of a caller in no local queue."""
    return ThreadWaker()


def perform(command: Command[Any], store: Store, limit: float, waker: ThreadWaker) -> Any:  # noqa: ARG001 - its twin needs it
    """Send one command."""
    return store.perform(command, limit)


def settle(engine: Engine, kept: KeptLease) -> None:
    """Wait until no renewal of a lease is under way."""
    engine.keeper.settle(kept, 2 * kept.lease_state.settings.request_timeout)


def given_back(lease: HeldLease) -> None:
    """End a lease that was given back."""
    lease._end_release()
