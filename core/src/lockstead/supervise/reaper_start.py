"""Whether this worker has a process beside it, and tells it which bodies run.

One for each process, started with the first body; it hears of bodies by a pipe. Where there is no /proc nothing is
started, since nothing would be found.
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
"""Seconds; for a machine that stands still, not for a slow one."""


class Beside:
    """The process beside this one. begin and end are told of each body, in pairs; they do not raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel = -1
        self._file = (0, 0)
        self._running: set[str] = set()
        self._has_started = False
        # what is forked must not keep the pipe open
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self, body: str) -> None:
        """Say that a body runs; from now on what it starts ends with this process, if this is killed."""
        with self._lock:
            self._running.add(body)
            if HAS_PROC and (self._channel < 0 or not self._say(f"+{body}\n")):
                self._start()

    def end(self, body: str) -> None:
        """Say that a body has ended, and that what it left behind may stay."""
        with self._lock:
            self._running.discard(body)
            if self._channel >= 0:
                self._say(f"-{body}\n")

    def _say(self, line: str) -> bool:
        try:
            # a body that closes all it finds may have closed ours, and the number be another file's by now
            if _names(self._channel) != self._file:
                self._channel = -1
                return False
            os.write(self._channel, line.encode())
        except OSError:  # it was killed, or stands still
            self._drop()
            return False
        return True

    def _start(self) -> None:
        own = os.getpid()
        words = [sys.executable, "-s", "-E", "-S", str(Path(reaper.__file__)), str(own), os.fsdecode(stat_of(own)[19])]
        # one that stood still, or whose pipe was closed, hears no more that bodies end
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
            # it forks the one that stays, which is nobody's child: a body may wait for all children that it has
            with suppress(subprocess.TimeoutExpired):
                started.wait(START_WITHIN)
        except BaseException as error:
            os.close(ours)
            if isinstance(error, OSError):
                return
            raise
        finally:
            os.close(theirs)
        # one that stands still must not keep a body from its work
        os.set_blocking(ours, False)
        self._channel, self._file, self._has_started = ours, _names(ours), True
        self._say("".join(f"+{body}\n" for body in self._running))

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
    """Return what names an open file for good."""
    file = os.fstat(descriptor)
    return file.st_dev, file.st_ino


BESIDE: Final = Beside()
"""The one of this process; it starts nothing before the first body begins."""
