"""How who waits for a lock is told to wait no longer, and how a grant that nobody wants any more is given back.

A thread that waits is in the core's hands, and the core knows no cancellation of a blocking wait from elsewhere. The
main thread, in which a deployed flow runs, is interrupted by SIGINT as by a terminal; any other finds out when it is
granted the lock. Nobody's handler is replaced: where SIGINT means anything but KeyboardInterrupt it is not sent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from lockstead.errors import StoreError
from lockstead.wrapping.locks import labelled, take_back
from prefect_lockstead.hosting import logger

if TYPE_CHECKING:
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo

L = TypeVar("L", "Lock", "AsyncLock")

WISH: Final = "prefect-wish"
"""The label of a lock that says which wish was granted."""

ARRIVES: Final = 1.0
"""Seconds for an interrupt that was sent to be heard; it takes microseconds."""


class ThreadWait:
    """A `with` block in which this thread waits, until `call_off`."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._is_armed = False
        self.is_called_off = False

    def __enter__(self) -> Self:
        self._is_armed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_armed = False
        if self.is_called_off and not isinstance(error, KeyboardInterrupt):
            # it was sent as the wait ended: it must be heard here, and not by what follows
            try:
                time.sleep(ARRIVES)
            except KeyboardInterrupt:
                return

    def call_off(self) -> None:
        """Interrupt the wait by KeyboardInterrupt, if that is possible. From any thread; once."""
        with self._lock:
            is_main = self._thread is threading.main_thread()
            if self._is_armed and is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._is_armed = False
                self.is_called_off = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class TaskWait:
    """An `async with` block in which this asyncio task waits, until `call_off`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._is_armed = False
        self.is_called_off = False

    async def __aenter__(self) -> Self:
        self._is_armed = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_armed = False
        if not self.is_called_off or self._task is None:
            return
        self._task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            # as above: heard here, unless it is somebody else's, too
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._task.cancelling():
                    raise

    def call_off(self) -> None:
        """Cancel the wait. From any thread; once."""
        with suppress(RuntimeError):  # of a loop that is closed, and the task with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._is_armed and self._task is not None and not self._task.cancelling():
            self._is_armed = False
            self.is_called_off = True
            self._task.cancel("the run was stopped")


# --- leaving nothing behind -------------------------------------------------------------------------------------------

# The core takes back, in the background, what an interrupted acquisition may have written. A process that was told to
# end may be gone before, and an interrupt may fall after the core gave the lease away and before anybody here had it.


def give_back(lease: Lease) -> None:
    """Release a lease that nobody has worked under: the next holder is told of the same predecessor."""
    try:
        lease.release(unused=True)
    except StoreError as error:
        _say_left(lease.key, error)


async def agive_back(lease: AsyncLease) -> None:
    """Release a lease that nobody has worked under, awaiting; as `give_back`."""
    try:
        await lease.release(unused=True)
    except StoreError as error:
        _say_left(lease.key, error)


def remove_member(lock: Lock) -> None:
    """Release what this very wish was granted as its caller was interrupted; as `give_back`."""
    try:
        _take_back(lock, lock.inspect())
    except StoreError as error:
        _say_left(lock.key, error)


async def awithdraw(lock: AsyncLock) -> None:
    """Release what this very wish was granted, awaiting; as `give_back`."""
    try:
        held = await lock.inspect()
        await asyncio.to_thread(_take_back, lock, held)
    except StoreError as error:
        _say_left(lock.key, error)


def _take_back(lock: Lock | AsyncLock, held: LockInfo | None) -> None:
    """Remove what this very wish was granted, if it was granted anything; blocks."""
    if held is not None and held.labels.get(WISH) == lock.settings.labels[WISH]:
        take_back(lock, held.holder)


def _say_left(key: str, error: StoreError) -> None:
    logger().warning("%r was not given back, its ttl will free it: %s", key, error)


def marked(lock: L) -> L:
    """Return the lock with a label by which this wish is known from all others, also of this process."""
    return labelled(lock, {WISH: os.urandom(8).hex()})
