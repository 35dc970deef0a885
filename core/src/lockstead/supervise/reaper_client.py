"""Starting this process's reaper, and reporting to it which tasks run.

One reaper for each process, started with the first task; a pipe carries the reports. Without /proc none is started,
since it would find nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from lockstead.supervise import reaper
from lockstead.supervise.processes import HAS_PROC, stat_of

START_WITHIN: Final = 10.0
"""Seconds that starting the reaper may take; generous for a slow machine."""


class Reaper:
    """This process's reaper. begin and end are called for each task, in pairs; they do not raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel = -1
        self._file = (0, 0)
        self._running: set[str] = set()
        self._has_started = False
        # a forked child must not keep the pipe open
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self, tag: str) -> None:
        """Report that a task runs: if this process is killed from now on, the reaper ends the task's processes."""
        with self._lock:
            self._running.add(tag)
            if HAS_PROC and (self._channel < 0 or not self._say(f"+{tag}\n")):
                self._start()

    def end(self, tag: str) -> None:
        """Report that a task has ended; its remaining processes are left running."""
        with self._lock:
            self._running.discard(tag)
            if self._channel >= 0:
                self._say(f"-{tag}\n")

    def _say(self, line: str) -> bool:
        try:
            # a task that closes all open files may have closed the pipe, and its descriptor may have been reused
            if _names(self._channel) != self._file:
                self._channel = -1
                return False
            os.write(self._channel, line.encode())
        except OSError:  # the reaper was killed, or hangs and the pipe is full
            self._drop()
            return False
        return True

    def _start(self) -> None:
        own = os.getpid()
        words = [sys.executable, "-s", "-E", "-S", str(Path(reaper.__file__)), str(own), os.fsdecode(stat_of(own)[19])]
        # an earlier reaper that hung, or whose pipe was closed, no longer learns that tasks end
        words += [reaper.REPLACES] if self._has_started else []
        theirs, ours = os.pipe()
        try:
            started = subprocess.Popen(
                words,
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                close_fds=True,
                start_new_session=True,
            )
            # it forks the reaper itself, which is not a child of this process: a task may wait for all its children
            with suppress(subprocess.TimeoutExpired):
                started.wait(START_WITHIN)
        except BaseException as error:
            os.close(ours)
            if isinstance(error, OSError):
                return
            raise
        finally:
            os.close(theirs)
        # a reaper that hangs must not block a task
        os.set_blocking(ours, False)
        self._channel, self._file, self._has_started = ours, _names(ours), True
        self._say("".join(f"+{tag}\n" for tag in self._running))

    def _drop(self) -> None:
        channel, self._channel = self._channel, -1
        with suppress(OSError):
            os.close(channel)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._running = set()
        self._has_started = False
        if self._channel >= 0:
            self._drop()


def _names(descriptor: int) -> tuple[int, int]:
    """Return device and inode, which identify an open file."""
    file = os.fstat(descriptor)
    return file.st_dev, file.st_ino


REAPER: Final = Reaper()
"""The reaper of this process; not started before the first task begins."""
