"""A pool of daemon threads for blocking calls, started as needed.

Not `concurrent.futures`: the interpreter joins its threads at exit, so a hanging store would block the exit.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

from lockstead.runtime.inside import holds_no_lock


class Workers:
    """Up to `most` daemon threads; a thread ends after `idle` seconds without a job."""

    def __init__(self, name: str, most: int, idle: float = 10.0) -> None:
        self._name = name
        self._most = most
        self._idle = idle
        self._jobs: deque[Callable[[], None]] = deque()
        # callers may be interrupted at any line of Python, so the lock is taken and released in C: a condition does
        # both in Python, and an exception there would leave its lock held forever
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads: set[threading.Thread] = set()
        self._free = 0
        self._closed = False

    def submit(self, job: Callable[[], None], *, queue: bool = True) -> bool:
        """Run a job as soon as a thread is free; its exceptions go to `threading.excepthook`. False without a thread.

        queue: whether the job may wait for a busy thread.
        """
        thread: threading.Thread | None = None
        try:
            with self._lock:
                is_free = self._free > len(self._jobs)
                is_full = len(self._threads) >= self._most
                if self._closed or (is_full and not is_free and not queue):
                    return False
                self._jobs.append(job)
                if is_free:
                    self._changed.notify()
                if is_free or is_full:
                    return True
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.add(thread)
            thread.start()
        except RuntimeError:
            return self._without_new_thread(job, thread)
        except BaseException:
            # the caller was interrupted: a thread that was not started must not be counted
            if thread is not None and thread.ident is None:
                self._threads.discard(thread)
            raise
        return True

    def _without_new_thread(self, job: Callable[[], None], thread: threading.Thread | None) -> bool:
        """Leave the job to the running threads because no new one can be started; False if there are none."""
        with self._lock:
            if thread is not None:
                self._threads.discard(thread)
            if not self._threads and job in self._jobs:
                self._jobs.remove(job)
                return False
            return True

    def close(self) -> None:
        """Let the threads end after the queued jobs."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    @holds_no_lock
    def _work(self) -> None:
        # an interrupted `submit` may have discarded this thread
        self._threads.add(threading.current_thread())
        while (job := self._next()) is not None:
            try:
                job()
            except BaseException:  # noqa: BLE001 - the thread continues with other jobs
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            # a finished job must not keep a lease alive while the thread is idle
            del job

    def _next(self) -> Callable[[], None] | None:
        """Wait for a job; None once this thread may end."""
        with self._lock:
            self._free += 1
            try:
                while not self._jobs:
                    if self._closed or not self._changed.wait(self._idle):
                        if self._jobs:
                            break
                        self._threads.discard(threading.current_thread())
                        return None
                return self._jobs.popleft()
            finally:
                self._free -= 1
