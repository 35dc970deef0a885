"""Ending a body that has to end if the interrupt alone is not enough: steps, their order, their limits.

The interrupt comes first, and a body that stops then ends the processes it started itself. If it still runs after
PATIENCE seconds, its processes are ended (a call that waits for one then returns). The key of a lost lease becomes free
soon: then all of this must be done within a sixth of the ttl. A body that still runs after GRACE seconds cannot be
interrupted: a process that exists only for this step then exits, any other process never does.
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
from lockstead.wrapping.leaving import EXIT_CODE, FLUSH_WITHIN, call_within, flush_output

if TYPE_CHECKING:
    from dagster_lockstead.aborting import Abort
    from lockstead import Lease
    from lockstead.supervise.child_processes import ChildProcesses

PATIENCE: Final = 2.0
"""Seconds from the interrupt of a body until its processes are ended."""

TERMS: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for the processes of a body."""

SHARE: Final = 1 / 12
"""Fraction of the ttl that PATIENCE and TERMS take at most each if the lease is lost: together the time left then."""

LEAST: Final = 0.5
"""Minimum seconds of each of them even then: a process needs a moment to end itself."""

GRACE: Final = 10.0
"""Seconds until a step process exits if its body does not stop."""

TURN: Final = 0.1
TURN_MAX: Final = 1.0
"""Seconds between two checks, and the maximum that one turn counts: during a C call it takes much longer."""

LAST_WORD: Final = 5.0
"""Maximum seconds to report the reason to the run worker before the process exits."""


@contextmanager
def ended(
    child_processes: ChildProcesses,
    abort: Abort,
    lease: Lease,
    *,
    patience: float = PATIENCE,
    leaving: Callable[[], object] | None = None,
) -> Iterator[None]:
    """End the processes that the block started, if it raises, or returns although it had to end.

    patience: seconds from the interrupt until the processes of a block that still runs are ended. leaving: called, for
    at most `LAST_WORD` seconds, before the process exits.
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
    """The end of one body: begins with the interrupt, and is finished by the caller that ran the body."""

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
        """Start the steps: the body was interrupted."""
        self._thread = threading.Thread(target=self._watch, name="lockstead-ending", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop: the body ended normally, so its processes are not ended."""
        self._over.set()

    def finish(self) -> None:
        """End the processes that the body left; interrupts are delayed until that is done."""
        self._over.set()
        undisturbed(self._end)
        if self._left and self._lease.is_held:
            # some process could not be ended: the ttl frees the lock, and the next holder sees an unclean end
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
            # while a C call holds the interpreter lock no time counts
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
    """Run `call` to its end in another thread; an interrupt of this thread is raised afterwards."""
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
            # repeated after an interrupt: it is unknown whether the thread that was being started has started
            threading.Thread(target=once, name="lockstead-undisturbed", daemon=True).start()
            done.wait()
        except RuntimeError:  # no thread can be started
            once()
        except BaseException as error:  # noqa: BLE001 - raised below
            late = late or error
    if late is not None:
        raise late


def _leave(leaving: Callable[[], object] | None) -> None:
    # a database request may block on a lock that the body holds
    if leaving is not None:
        call_within(LAST_WORD, leaving, "lockstead-leaving")
    call_within(FLUSH_WITHIN, _say, "lockstead-leaving")
    flush_output()
    os._exit(EXIT_CODE)


def _say() -> None:
    with suppress(Exception):
        sys.stderr.write("lockstead: exiting the process, because its body does not stop\n")
