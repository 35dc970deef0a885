"""Decides where blocking calls run that nobody may wait for: a few daemon threads, started as they are needed.

Not `concurrent.futures`: its threads are joined at exit, so a store that hangs would hang the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Workers:
    """Up to `most` daemon threads; a thread that has had nothing to do for `idle` seconds ends."""

    def __init__(self, name: str, most: int, idle: float = 10.0) -> None:
        self._name = name
        self._most = most
        self._idle = idle
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._free = 0
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job as soon as a thread is free. The job must not raise."""
        with self._changed:
            if self._closed:
                return
            self._jobs.append(job)
            if self._free >= len(self._jobs):
                self._changed.notify()
                return
            if self._threads >= self._most:
                return
            self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Let the threads end when they have nothing left to do; jobs not yet begun are still done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._free += 1
                while not self._jobs:
                    if self._closed or not self._changed.wait(self._idle):
                        if self._jobs:
                            break
                        self._free -= 1
                        self._threads -= 1
                        return
                self._free -= 1
                job = self._jobs.popleft()
            job()
            del job
