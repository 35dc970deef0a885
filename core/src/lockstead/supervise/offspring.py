"""A block that knows which processes its code starts, and can end them: SIGTERM, then SIGKILL, until none is left.

They are found by parentage (orphans come back to this process) and by the mark that they carry. Processes that were
started before the block are left alone. If this process is killed, the reaper beside it ends them by the mark. Not for
a server that starts processes for others all the time.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from lockstead.supervise.marks import MARK, Found, end_all, file_of, is_spared, marked, named, new_mark
from lockstead.supervise.processes import Process, adopt_orphans, adopts_orphans, below, born_below, look, ticks
from lockstead.supervise.reaper_start import BESIDE

_ENVIRONMENT: Final = threading.Lock()


class _Adopting:
    """Makes orphans come back to this process while any body runs; what it was before is put back then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies = 0
        self._did_before = False

    def begin(self) -> None:
        with self._lock:
            if self._bodies == 0:
                self._did_before = adopts_orphans()
                adopt_orphans()
            self._bodies += 1

    def end(self) -> None:
        with self._lock:
            self._bodies -= 1
            if self._bodies == 0 and not self._did_before:
                adopt_orphans(adopts=False)


_ADOPTING: Final = _Adopting()


class Offspring:
    """What one body starts. `with` marks it, and tells the process beside this one that a body runs.

    Entered once. After a normal return of the body its children are left alone, unless `end` is called.
    """

    def __init__(self) -> None:
        self._body = new_mark()
        self._file = -1
        self._before: set[tuple[int, int]] = set()
        self._began = 0
        self._children: set[tuple[int, int]] | None = None

    def __enter__(self) -> Self:
        # first: the process beside is to be nobody's child
        BESIDE.begin(self._body)
        _ADOPTING.begin()
        self._file = file_of(self._body)
        self._before, self._began = born_below(os.getpid()), ticks()
        with _ENVIRONMENT:
            around = os.environ.get(MARK)
            os.environ[MARK] = f"{around}:{self._body}" if around else self._body
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _ENVIRONMENT:
            # bodies of several threads need not end in the order in which they began
            left = [body for body in os.environ.get(MARK, "").split(":") if body not in ("", self._body)]
            if left:
                os.environ[MARK] = ":".join(left)
            else:
                os.environ.pop(MARK, None)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        _ADOPTING.end()
        BESIDE.end(self._body)

    def end(self, *, grace: float = 10.0) -> list[int]:
        """End what was started within the block: SIGTERM, SIGKILL after `grace` seconds. Gives those who live on.

        Takes at most `grace` and 10 s more. Called within the block, in any thread.
        """
        left = end_all(self._found, grace)
        self._reap()
        return sorted(pid for pid, _start in left)

    def _found(self) -> tuple[Found, bool]:
        found, is_sure = marked(frozenset((self._body,)))
        for one in self._below():
            if one.is_alive and not is_spared(one.pid):
                found[named(one)] = one
        return found, is_sure

    def _below(self) -> list[Process]:
        """Return what was started below this process within the block, as of one look."""
        own, seen = os.getpid(), look()
        # who was born before is known by that; the list is for those of the same tick
        before = self._before | {named(one) for one in seen if one.start < self._began}
        found = below(own, seen, before)
        if self._children is None:
            self._children = {named(one) for one in found if one.parent == own}
        return found

    def _reap(self) -> None:
        """Take leave of those that came to be our children by their parents' end: nobody else waits for them.

        Those that were ours when the end began are waited for by who started them.
        """
        for one in self._below():
            if one.parent == os.getpid() and not one.is_alive and named(one) not in (self._children or ()):
                with suppress(ChildProcessError):
                    os.waitpid(one.pid, os.WNOHANG)
