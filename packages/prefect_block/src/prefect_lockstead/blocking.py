"""The blocking counterpart of `awaiting`: cancelling a wait from another thread, and reading a block.

The core cannot cancel a blocking wait from another thread. The main thread, in which a deployed flow runs, is
interrupted by SIGINT; any other thread checks after the grant. No signal handler is replaced: SIGINT is sent only where
it raises KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from lockstead import LeaseLostInterrupt

if TYPE_CHECKING:
    from prefect_lockstead.places import Place

LOSS_SIGNS: Final = (TimeoutError, LeaseLostInterrupt, asyncio.CancelledError)
"""What a body may raise for a lost lease besides LeaseLost. Prefect's timeout of a thread is a cancellation."""

ARRIVES: Final = 1.0
"""Maximum seconds until a sent interrupt arrives; it takes microseconds."""


def find_lock(block: str) -> Place:
    """Return the lock of a saved block, read from Prefect's API. ValueError, with one line, if it cannot be used."""
    from prefect.utilities.asyncutils import run_coro_as_sync

    from prefect_lockstead import blocks

    found: Place = run_coro_as_sync(blocks.find_lock(block))
    return found


def find_store(block: str) -> Place:
    """Return the store of a saved block; as `find_lock`."""
    from prefect.utilities.asyncutils import run_coro_as_sync

    from prefect_lockstead import blocks

    found: Place = run_coro_as_sync(blocks.find_store(block))
    return found


class Wait:
    """A `with` block in which this thread waits, until `cancel`."""

    INTERRUPT: Final = KeyboardInterrupt

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._is_armed = False
        self.is_cancelled = False

    def __enter__(self) -> Self:
        self._is_armed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_armed = False
        if self.is_cancelled and not isinstance(error, KeyboardInterrupt):
            # sent as the wait ended: it must arrive here, and not in later code
            try:
                time.sleep(ARRIVES)
            except KeyboardInterrupt:
                return

    def cancel(self) -> None:
        """Interrupt the wait by KeyboardInterrupt, if that is possible. From any thread; once."""
        with self._lock:
            is_main = self._thread is threading.main_thread()
            if self._is_armed and is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._is_armed = False
                self.is_cancelled = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
