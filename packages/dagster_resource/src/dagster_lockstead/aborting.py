"""How a body that has to end is told so: an interrupt of the main thread, where Dagster lets one through.

SIGUSR2 is sent until it is accepted; its handler raises only while Dagster itself would raise an interrupt, as it
does in the code of authors, and never amid a write of its own. What it raises is of the class that Dagster raises, for
that is what Pipes hands on to its processes, and no `except Exception` stops it. While the body waits between two of
its events the code that runs is an I/O manager's, whose frames are not the body's: there it raises a Failure, for of an
interrupt Dagster would make a cancelled run, or a retry.

Who was interrupted is let out: what lies around it, or in it, and has to end a moment later raises nothing amid its
clean-up, for the exception that is on its way ends them all.

The core's interrupt (`lease.guard()`) does not fit: it is raised for a lost lease only, not for a run that is over; its
class is the core's; it asks no orchestrator whether this is the moment; and each block around gets one of its own.

A body in another thread is not interrupted: it finds out at its next event, or at its end. Nobody's handler is left
behind, and nothing that was sent for a body is heard once that is over.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

import dagster

from dagster_lockstead import compat, frames
from dagster_lockstead.errors import LockFailure

SIGNAL: Final = signal.SIGUSR2

AGAIN: Final = 0.02
"""Seconds until a signal that was not accepted is sent again."""

DEAF: Final = 1.0
"""Seconds that an event loop has to hear that its task is cancelled."""

LEAVES: Final = 10.0
"""Seconds for which who was interrupted is taken to be on its way out, and is not interrupted for anything else."""


class LeaseLostInterrupt(dagster.DagsterExecutionInterruptedError):
    """What is raised in a body that has to end; it leaves the step as a Failure. No `except Exception` stops it."""

    def __str__(self) -> str:
        """Say what it means to who catches it and writes it down."""
        return "the lock's lease is lost, or the run is over: leave the body"


class Abort:
    """One body that may have to end: told once, from any thread; `with` arms it in the thread that runs the body.

    why is the first reason. failure gives what is raised outside of the body's own frames.
    """

    def __init__(self, failure: Callable[[], LockFailure] | None = None) -> None:
        self.why: str | None = None
        self._failure = failure
        self._way: Callable[[], object] | None = None
        self._is_accepted = False
        self._interrupted_at: float | None = None
        self._is_armed = False
        self._over = threading.Event()
        self._told = threading.Lock()
        self._listeners: list[Callable[[], object]] = []

    def now(self, why: str) -> None:
        """End the body, from any thread; what was said first counts. After the block it interrupts nothing."""
        with self._told:
            if self.why is not None:
                return
            self.why = why
            listeners, way = list(self._listeners), self._way
        if way is not None:
            way()
        for listener in listeners:
            listener()
        if self._is_armed:
            self._insist(DEAF if way is not None else 0.0)

    def listen(self, listener: Callable[[], object]) -> None:
        """Call this once the body has to end, from the thread that says so; at once if it was said."""
        with self._told:
            if self.why is None:
                self._listeners.append(listener)
                return
        listener()

    def through(self, way: Callable[[], object] | None) -> None:
        """Interrupt the body by calling this, from any thread, which says `accepted` once it is heard; None: by signal.

        The signal is sent too if nothing is heard within `DEAF` seconds.
        """
        with self._told:
            self._way = way
            is_late = self.why is not None
        if is_late and way is not None:
            way()

    def accepted(self) -> None:
        """Note that the body was interrupted."""
        self._is_accepted = True
        self._interrupted_at = time.monotonic()

    @property
    def is_leaving(self) -> bool:
        """Whether an interrupt is on its way out of the body, be it for this one or for one around it."""
        at = self._interrupted_at
        return at is not None and time.monotonic() < at + LEAVES

    def __enter__(self) -> Self:
        self._is_accepted = False
        self._interrupted_at = None
        self._over = threading.Event()
        if threading.current_thread() is threading.main_thread():
            _STACK.push(self)
            self._is_armed = True
            if self.why is not None:
                self._insist(0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_accepted = True
        self._over.set()
        if self._is_armed:
            self._is_armed = False
            _STACK.drop(self)

    def _insist(self, after: float) -> None:
        """Send the signal until it is accepted, from a thread of its own."""
        threading.Thread(target=self._send, args=(after, self._over), name="lockstead-abort", daemon=True).start()

    def _send(self, after: float, over: threading.Event) -> None:
        main = threading.main_thread().ident or 0
        over.wait(after)
        while not self._is_accepted and not over.is_set():
            # never without our handler: SIGUSR2 ends a process that has none
            if not _STACK.send(main):
                return
            over.wait(AGAIN)


class _Stack:
    """The bodies that run in the main thread, the innermost last, and the handler that was there before."""

    def __init__(self) -> None:
        self._armed: list[Abort] = []
        self._previous: Any = None
        self._lock = threading.RLock()

    def push(self, one: Abort) -> None:
        """Arm a body; the first installs the handler."""
        with self._lock:
            # ours may be there still, if the last body was closed by another thread: it is nobody's handler before
            if not self._armed and signal.getsignal(SIGNAL) != self._on_signal:
                self._previous = signal.signal(SIGNAL, self._on_signal)
            self._armed.append(one)

    def drop(self, one: Abort) -> None:
        """Disarm a body; the last puts back what was there. What is on its way to it is never heard."""
        with self._lock:
            is_ours = signal.getsignal(SIGNAL) == self._on_signal
            if is_ours and threading.current_thread() is threading.main_thread():
                is_last = self._armed == [one]
                if is_last or one.why is not None:
                    # what has come in is heard by the handler that knows it, and what has not come in is forgotten
                    signal.signal(SIGNAL, signal.SIG_IGN)
                    before = signal.SIG_DFL if self._previous is None else self._previous
                    signal.signal(SIGNAL, before if is_last else self._on_signal)
            if one in self._armed:
                self._armed.remove(one)

    def has_to_end(self) -> bool:
        """Return whether a step's body that runs here has to end, and what is raised must come to it."""
        return any(one.why is not None and one._failure is not None for one in self._armed)

    def passes(self) -> None:
        """Note that an interrupt is on its way out of those that have to end."""
        for one in self._armed:
            if one.why is not None:
                one.accepted()

    def send(self, thread: int) -> bool:
        """Send the signal; False if nobody would hear it."""
        with self._lock:
            if not self._armed or signal.getsignal(SIGNAL) != self._on_signal:
                return False
            signal.pthread_kill(thread, SIGNAL)
            return True

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        armed = list(self._armed)
        pending = [one for one in armed if one.why is not None and not one._is_accepted]
        if not pending:
            if callable(self._previous) and not any(one.why is not None for one in armed):
                self._previous(signum, frame)
            return
        outermost = pending[0]
        within = armed[armed.index(outermost) :]
        # elsewhere an exception would leave something half done; it is sent again
        if any(one.is_leaving for one in within) or not compat.accepts_interrupts() or not frames.may_raise_in(frame):
            return
        now = time.monotonic()
        for one in within:
            one._interrupted_at = now
        for one in pending:
            one._is_accepted = True
        if outermost._failure is not None and not compat.is_of_body(frame):
            raise outermost._failure()
        raise LeaseLostInterrupt


_STACK: Final = _Stack()


def goes_on_outwards() -> bool:
    """Return whether an interrupt is to be raised to the body around, in the main thread, which has to end as well.

    If so that body is not interrupted by itself.
    """
    if threading.current_thread() is not threading.main_thread() or not _STACK.has_to_end():
        return False
    _STACK.passes()
    return True
