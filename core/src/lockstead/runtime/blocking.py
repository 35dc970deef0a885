"""What the blocking side does in its own way: requests and pauses on the caller's thread. Its twin is `awaiting`.

Both have the same names, for the modules that are generated for one side from the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstead.protocol.commands import Command, Pause, Paused
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.runtime.run import Limits, blocks, paused
from lockstead.runtime.watching import Watching
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
    "pause",
    "perform",
    "quiet_waker",
    "rest",
    "settle",
]

FIRST_LATE: Final = math.inf
"""A blocking caller sends its first request at once."""

REQUEST_LATE: Final = math.inf
"""A blocking request has its answer, however late: nothing needs to be asked again for that."""


Waker: TypeAlias = ThreadWaker


def new_waker(engine: Engine, came_late: Callable[[], None]) -> ThreadWaker:  # noqa: ARG001 - its twin needs them
    """Make the waker of a waiter."""
    return ThreadWaker()


def quiet_waker(engine: Engine) -> ThreadWaker:  # noqa: ARG001 - its twin needs it
    """Make the waker of a caller in no local queue."""
    return ThreadWaker()


def rest(waker: ThreadWaker, seconds: float) -> bool:
    """Sleep up to `seconds`; True as soon as it was rung."""
    return waker.wait(seconds)


def perform(command: Command[Any], store: Store, limit: float, waker: ThreadWaker) -> Any:  # noqa: ARG001 - its twin needs it
    """Send one command."""
    return store.perform(command, limit)


def pause(
    command: Pause, store: Store, limits: Limits, sent_at: float, waker: ThreadWaker, watching: Watching
) -> Paused:
    """Pause as a script wants, until the store notifies; where it blocks instead, in its queue."""
    seconds = limits.pause(command, sent_at)
    watch = blocks(command, store, seconds, waker)
    if watch is not None:
        try:
            changed = watch()
        except Exception:  # noqa: BLE001 - a store that cannot watch is polled, and says what is wrong when it is read
            waker.wait(seconds)
            changed = False
        return paused(command, store, seconds, changed, waker)
    if not watching.begin(command):
        waker.wait(seconds)
    return watching.end(command, seconds)


def settle(engine: Engine, kept: KeptLease) -> None:
    """Wait until no renewal of a lease is under way."""
    engine.keeper.settle(kept, 2 * kept.lease_state.settings.request_timeout)


def given_back(lease: HeldLease) -> None:
    """End a lease that was given back."""
    lease._end_release()
