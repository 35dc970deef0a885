"""Where blocking calls run that nobody may wait for: a few daemon threads, started as they are needed.

Not `concurrent.futures`: its threads are joined at exit, so a store that hangs would hang the interpreter.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

from lockstead.runtime.inside import holds_no_lock


class Workers:
    """Up to `most` daemon threads; a thread that has had nothing to do for `idle` seconds ends."""

    def __init__(self, name: str, most: int, idle: float = 10.0) -> None:
        self._name = name
        self._most = most
        self._idle = idle
        self._jobs: deque[Callable[[], None]] = deque()
        # callers may be interrupted at any line of Python, so the lock is entered and left by C alone: a condition does
        # both in Python, and an exception within them leaves its lock held forever
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads: set[threading.Thread] = set()
        self._free = 0
        self._closed = False

    def submit(self, job: Callable[[], None], *, queue: bool = True) -> bool:
        """Run a job as soon as a thread is free; what it raises is reported. False if there is no thread to do it.

        queue: whether it may wait for a thread that is busy.
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
            return self._goes_without(job, thread)
        except BaseException:
            # the caller was interrupted: a thread that does not exist must not take the place of one
            if thread is not None and thread.ident is None:
                self._threads.discard(thread)
            raise
        return True

    def _goes_without(self, job: Callable[[], None], thread: threading.Thread | None) -> bool:
        """The system gives no more threads, or the interpreter is ending: those that run must do, if there are any."""
        with self._lock:
            if thread is not None:
                self._threads.discard(thread)
            if not self._threads and job in self._jobs:
                self._jobs.remove(job)
                return False
            return True

    def close(self) -> None:
        """Let the threads end when they have nothing left to do; jobs not yet begun are still done."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    @holds_no_lock
    def _work(self) -> None:
        # who started it may have been interrupted and have taken it for one that does not exist
        self._threads.add(threading.current_thread())
        while (job := self._next()) is not None:
            try:
                job()
            except BaseException:  # noqa: BLE001 - the thread outlives its job, and reports it
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            # a job that is over must not keep a lease alive while the thread idles
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
