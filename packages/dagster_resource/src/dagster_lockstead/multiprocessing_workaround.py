"""Frees a run worker that waits for what a step process can do no more, for it has ended.

A step process is told to end by a `multiprocessing.Event`. One that ends by itself in that very moment may die while
its thread that waits for the event has the event's inner lock, or before that thread has woken. Whoever sets the event
then waits forever for the lock, or for the thread: the executor, in a run whose lease would be renewed all that time.
Must not know what a lease is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from multiprocessing import connection
from types import TracebackType
from typing import Any, Final, Self

LOOK_EVERY: Final = 1.0
"""Seconds between two looks."""


class SemaphoreRepair:
    """Repairs the events of step processes that have ended, in a thread of its own, while the block runs.

    stop_events returns each event with its process, which may have ended.
    """

    def __init__(self, stop_events: Callable[[], Iterable[tuple[Any, Any]]]) -> None:
        self._stop_events = stop_events
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="lockstead-semaphores", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            for event, process in self._stop_events():
                if connection.wait([process.sentinel], 0):
                    free(event)


def free(event: Any) -> bool:
    """Do for an event what its process, which is over, owes to who sets it; tell whether it owed anything."""
    lock = event._cond._lock._semlock
    if lock.acquire(False):
        lock.release()
        return False
    try:
        if lock._count() > 0:
            # a thread of this process has it, and may wait for one of the other's to wake
            return _woken(event._cond)
        # by another handle: this one counts its own locks, and who waits for it must find that right
        type(lock)._rebuild(lock.handle, lock.kind, lock.maxvalue, lock.name).release()
    except (OSError, ValueError, NotImplementedError):
        # its name is gone, it was given back meanwhile, or this system tells no semaphore's value
        return False
    return True


def _woken(condition: Any) -> bool:
    """Say that the thread that was told to wake has woken, if it was told and has not."""
    told, woken = condition._wait_semaphore._semlock, condition._woken_count._semlock
    if told._get_value() == 0 or woken._get_value() > 0:
        return False
    woken.release()
    return True
