"""A workaround for a deadlock of `multiprocessing.Event`, which would block a run worker forever.

The executor tells a step process to end by such an event. A step process that ends by itself at that moment may die
while its thread that waits for the event has the event's inner lock, or before that thread has woken. `set` then waits
forever for the lock or the thread, and the run's lease would be renewed all that time. Must not know leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from multiprocessing import connection
from types import TracebackType
from typing import Any, Final, Self

LOOK_EVERY: Final = 1.0
"""Seconds between two checks."""


class SemaphoreRepair:
    """Repairs the events of step processes that have ended, in a separate thread, while the block runs.

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
    """Release the inner lock of an event, or wake its waiter, for its dead process; True if that was necessary."""
    lock = event._cond._lock._semlock
    if lock.acquire(False):
        lock.release()
        return False
    try:
        if lock._count() > 0:
            # a thread of this process has it, and may be waiting for the other's thread to wake
            return _woken(event._cond)
        # by another handle, since each handle counts only its own acquisitions
        type(lock)._rebuild(lock.handle, lock.kind, lock.maxvalue, lock.name).release()
    except (OSError, ValueError, NotImplementedError):
        # its name is gone, it was released meanwhile, or this system does not report a semaphore's value
        return False
    return True


def _woken(condition: Any) -> bool:
    """Confirm the wake-up of a waiting thread that was signalled and has not confirmed it; True if there was one."""
    told, woken = condition._wait_semaphore._semlock, condition._woken_count._semlock
    if told._get_value() == 0 or woken._get_value() > 0:
        return False
    woken.release()
    return True
