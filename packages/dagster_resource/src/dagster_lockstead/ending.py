"""How a body that has to end is ended, if the interrupt alone does not do it: steps, their order, their limits.

The interrupt comes first, and a body that leaves ends what it had started by itself. Who is still at it after PATIENCE
seconds has its processes ended under it (a call that waits for one returns then). A lease that is lost frees its key by
itself soon: then all of this has to be done within a sixth of its ttl. Who is at it after GRACE seconds cannot be
interrupted: a process that exists for this one step is left then, any other never.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from dagster_lockstead.compat import is_step_process
from lockstead import LeaseLost, StoreError

if TYPE_CHECKING:
    from dagster_lockstead.aborting import Abort
    from lockstead import Lease
    from lockstead.supervise.child_processes import ChildProcesses

PATIENCE: Final = 2.0
"""Seconds until the processes of a body that was interrupted are ended under it."""

TERMS: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for the processes of a body."""

SHARE: Final = 1 / 12
"""Of a ttl: what the two of them take at most each, if the lease is lost. Together the margin that a loss leaves."""

LEAST: Final = 0.5
"""Seconds that each of them takes even then: a process needs a moment to end itself."""

GRACE: Final = 10.0
"""Seconds until a step process is left, if its body does not leave."""

TURN: Final = 0.1
TURN_MAX: Final = 1.0
"""Seconds between two looks, and what one turn counts at most: behind a C call it takes much longer."""

LAST_WORD: Final = 5.0
"""Seconds for which a process that is left may still tell its run worker why."""

EXIT_CODE: Final = 75
"""Of a process that is left because its body would not end: EX_TEMPFAIL."""


@contextmanager
def ended(
    child_processes: ChildProcesses,
    abort: Abort,
    lease: Lease,
    *,
    patience: float = PATIENCE,
    leaving: Callable[[], object] | None = None,
) -> Iterator[None]:
    """End what the block had started, if it raises, or returns though it had to end.

    patience: seconds from the interrupt until its processes are ended under a block that is still at it. leaving: what
    is called, for a moment at most, before a process is left.
    """
    ending = _Ending(child_processes, lease, patience, leaving)
    abort.listen(ending.begin)
    is_good = False
    try:
        yield
        is_good = abort.why is None and lease.is_held
    finally:
        if is_good:
            ending.cancel()
        else:
            ending.finish()


class _Ending:
    """The end of one body, which begins with the interrupt, and is finished by who ran the body."""

    def __init__(
        self, child_processes: ChildProcesses, lease: Lease, patience: float, leaving: Callable[[], object] | None
    ) -> None:
        self._leaving = leaving
        self._child_processes = child_processes
        self._patience = patience
        self._lease = lease
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._left: list[int] = []

    def begin(self) -> None:
        """The body was interrupted: see to it that it ends."""
        self._thread = threading.Thread(target=self._watch, name="lockstead-ending", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """The body came to a good end: its processes are left alone."""
        self._over.set()

    def finish(self) -> None:
        """End what the body left; it takes its time, whoever interrupts."""
        self._over.set()
        undisturbed(self._end)
        if self._left and self._lease.is_held:
            # somebody works on, whom nobody could end: the ttl frees the lock, and whoever comes next is told
            with suppress(LeaseLost, StoreError):
                self._lease.detach()

    def _watch(self) -> None:
        spent, patience = 0.0, self._at_most(self._patience)
        terms: threading.Thread | None = None
        while spent < GRACE and not self._over.is_set():
            if spent >= patience and terms is None:
                terms = threading.Thread(target=self._end, name="lockstead-terms", daemon=True)
                terms.start()
            began_at = time.monotonic()
            self._over.wait(min(TURN, patience))
            # while a C call holds the interpreter nobody's time is running
            spent += min(time.monotonic() - began_at, TURN_MAX)
        if not self._over.is_set() and is_step_process():
            self._end()
            if not self._over.is_set():
                _leave(self._leaving)

    def _end(self) -> None:
        self._left = self._child_processes.end(grace=self._at_most(TERMS))
        if self._left:
            logging.getLogger("dagster_lockstead").error("still alive: %s", ", ".join(map(str, self._left)))

    def _at_most(self, seconds: float) -> float:
        return seconds if self._lease.is_held else min(seconds, max(LEAST, self._lease.ttl * SHARE))


def undisturbed(call: Callable[[], object]) -> None:
    """Run this to its end, in a thread; an interrupt of this one is raised afterwards."""
    begun, done = threading.Lock(), threading.Event()

    def once() -> None:
        if begun.acquire(blocking=False):
            try:
                call()
            finally:
                done.set()

    late: BaseException | None = None
    while not done.is_set():
        try:
            # again after an interrupt: nobody can tell whether a thread that was amid its start has started
            threading.Thread(target=once, name="lockstead-undisturbed", daemon=True).start()
            done.wait()
        except RuntimeError:  # no more threads can be had
            once()
        except BaseException as error:  # noqa: BLE001 - raised below
            late = late or error
    if late is not None:
        raise late


def _leave(leaving: Callable[[], object] | None) -> None:
    # what was said must be read, but a flush may block on what the body holds, and so may a database
    for call, seconds in ((leaving, LAST_WORD), (_flush, 1.0)):
        if call is not None:
            saying = threading.Thread(target=call, daemon=True)
            saying.start()
            saying.join(seconds)
    os._exit(EXIT_CODE)


def _flush() -> None:
    with suppress(Exception):
        print("lockstead: leaving the process, for its body does not stop", file=sys.stderr, flush=True)  # noqa: T201
    with suppress(Exception):
        sys.stdout.flush()
