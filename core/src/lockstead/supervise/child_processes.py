"""A `with` block that tracks the processes started by its code, and can end them: SIGTERM, then SIGKILL until none is
left.

The processes are found by their parents (this process adopts orphans) and by their tag. Processes that were started
before the block are left alone. If this process is killed, the reaper ends them by the tag. Not suitable for a server
that continuously starts processes for others.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from lockstead.supervise.processes import (
    Process,
    adopt_orphans,
    adopts_orphans,
    all_processes,
    below,
    born_below,
    ticks,
)
from lockstead.supervise.reaper_client import REAPER
from lockstead.supervise.tags import TAG_VARIABLE, Found, end_all, file_of, is_exempt, new_tag, tagged

_ENVIRONMENT: Final = threading.Lock()


class _Subreaper:
    """The subreaper setting of this process: it adopts orphans while any task runs; restored afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks = 0
        self._did_before = False

    def begin(self) -> None:
        with self._lock:
            if self._tasks == 0:
                self._did_before = adopts_orphans()
                adopt_orphans()
            self._tasks += 1

    def end(self) -> None:
        with self._lock:
            self._tasks -= 1
            if self._tasks == 0 and not self._did_before:
                adopt_orphans(adopts=False)


_SUBREAPER: Final = _Subreaper()


class ChildProcesses:
    """The processes that one task starts. The `with` block tags them and reports the task to the reaper.

    Entered once. When the block ends, its child processes are left running, unless `end` was called.
    """

    def __init__(self) -> None:
        self._tag = new_tag()
        self._file = -1
        self._before: set[tuple[int, int]] = set()
        self._began = 0
        self._children: set[tuple[int, int]] | None = None

    def __enter__(self) -> Self:
        # first: the reaper must not become a child of this process
        REAPER.begin(self._tag)
        _SUBREAPER.begin()
        self._file = file_of(self._tag)
        self._before, self._began = born_below(os.getpid()), ticks()
        with _ENVIRONMENT:
            around = os.environ.get(TAG_VARIABLE)
            os.environ[TAG_VARIABLE] = f"{around}:{self._tag}" if around else self._tag
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _ENVIRONMENT:
            # tasks in several threads need not end in the order in which they began
            left = [tag for tag in os.environ.get(TAG_VARIABLE, "").split(":") if tag not in ("", self._tag)]
            if left:
                os.environ[TAG_VARIABLE] = ":".join(left)
            else:
                os.environ.pop(TAG_VARIABLE, None)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        _SUBREAPER.end()
        REAPER.end(self._tag)

    def end(self, *, grace: float = 10.0) -> list[int]:
        """End the processes started within the block: SIGTERM, SIGKILL after `grace` seconds. Return surviving pids.

        Takes at most `grace` plus 10 s. Called within the block, in any thread.
        """
        left = end_all(self._found, grace)
        self._reap()
        return sorted(pid for pid, _start in left)

    def _found(self) -> tuple[Found, bool]:
        found, is_sure = tagged(frozenset((self._tag,)))
        for one in self._below():
            if one.is_alive and not is_exempt(one.pid):
                found[one.identity] = one
        return found, is_sure

    def _below(self) -> list[Process]:
        """Return the processes below this one that were started within the block, as of one scan."""
        own, seen = os.getpid(), all_processes()
        # most older processes have an earlier start time; `_before` has those of the same tick
        before = self._before | {one.identity for one in seen if one.start < self._began}
        found = below(own, seen, before)
        if self._children is None:
            self._children = {one.identity for one in found if one.parent == own}
        return found

    def _reap(self) -> None:
        """Reap adopted children, for which no other code waits.

        The direct children at the first scan are waited for by the code that started them.
        """
        for one in self._below():
            if one.parent == os.getpid() and not one.is_alive and one.identity not in (self._children or ()):
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)
