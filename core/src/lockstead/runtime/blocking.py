"""The parts of the runtime that differ on the blocking side: requests and pauses in the caller's thread.

Its counterpart is `awaiting`. Both define the same names, for the blocking modules generated from the async ones.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lockstead.protocol.commands import Command
from lockstead.runtime.inside import holds_no_lock
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.stores.port import Store

if TYPE_CHECKING:
    from lockstead.runtime.engine import Engine
    from lockstead.runtime.held import HeldLease
    from lockstead.runtime.keeper import KeptLease

__all__ = ["REQUEST_LATE", "Background", "ThreadWaker", "given_back", "perform", "settle"]

REQUEST_LATE: Final = math.inf
"""A blocking request is never late: it gets its reply however late that comes, so it is not repeated."""


class Background:
    """A function that runs beside the caller, in a thread."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=_run, args=(job,), name="lockstead-election", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def end(self) -> None:
        """Wait until it has ended; it has been told to."""
        self._thread.join()


@holds_no_lock
def _run(job: Callable[[], None]) -> None:
    job()


def perform(command: Command[Any], store: Store, limit: float, waker: ThreadWaker) -> Any:  # noqa: ARG001 - its async counterpart needs it
    """Send one command."""
    return store.perform(command, limit)


def settle(engine: Engine, kept: KeptLease) -> None:
    """Wait until no renewal of a lease is in flight."""
    engine.keeper.settle(kept, 2 * kept.lease_state.settings.request_timeout)


def given_back(lease: HeldLease) -> None:
    """End a lease that was released."""
    lease._end_release()
