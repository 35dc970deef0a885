"""Interruption of a body that has to end: an exception in the main thread, where Dagster allows an interrupt.

SIGUSR2 is sent until it is accepted. Its handler raises only while Dagster itself would raise an interrupt, as in user
code, and never during a write of Dagster. The exception is a subclass of Dagster's interrupt, since Pipes passes that
on to its processes and no `except Exception` catches it. While the body is suspended between two of its events, an I/O
manager runs, whose frames are not the body's: there a Failure is raised, because Dagster would turn an interrupt into a
cancelled run or a retry.

While an interrupt unwinds a body, the bodies around it and inside it that have to end a moment later are not
interrupted in their clean-up: the exception in flight ends them all.

The core's interrupt (`lease.guard()`) is not suitable: it is raised only for a lost lease, not for a run that has
ended; it has the core's class; it cannot ask the orchestrator whether an interrupt is allowed now; and each outer block
gets an interrupt of its own.

A body in another thread is not interrupted: it finds out at its next event, or at its end. The previous signal handler
is restored, and a signal for a body has no effect after the body has ended.
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
"""Seconds until a signal that was not accepted is repeated."""

DEAF: Final = 1.0
"""Seconds that an event loop has to deliver a task's cancellation before the signal is sent as well."""

LEAVES: Final = 10.0
"""Seconds after an interrupt for which a body is considered to be unwinding, and is not interrupted again."""


class LeaseLostInterrupt(dagster.DagsterExecutionInterruptedError):
    """The exception raised in a body that has to end; the step makes it a Failure. No `except Exception` catches it."""

    def __str__(self) -> str:
        """Return the meaning, for code that catches and logs it."""
        return "the lease of the lock is lost, or the run has ended: the body must end"


class Abort:
    """One body that may have to end: notified once, from any thread; `with` arms it in the thread that runs the body.

    why is the first reason. failure returns the exception that is raised outside of the body's own frames.
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
        """End the body, from any thread; only the first reason counts. After the block it interrupts nothing."""
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
        """Call `listener` when the body has to end, in the thread that calls `now`; at once if it was called before."""
        with self._told:
            if self.why is None:
                self._listeners.append(listener)
                return
        listener()

    def through(self, way: Callable[[], object] | None) -> None:
        """Set how to interrupt the body: `way` is called in any thread, and must cause a call of `accepted`.

        None: by signal. The signal is sent too if `accepted` is not called within `DEAF` seconds.
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
        """Return whether an interrupt, for this body or one around it, is unwinding the body."""
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
        """Send the signal until it is accepted, from a separate thread."""
        threading.Thread(target=self._send, args=(after, self._over), name="lockstead-abort", daemon=True).start()

    def _send(self, after: float, over: threading.Event) -> None:
        main = threading.main_thread().ident or 0
        over.wait(after)
        while not self._is_accepted and not over.is_set():
            # never without our handler: the default action of SIGUSR2 ends the process
            if not _STACK.send(main):
                return
            over.wait(AGAIN)


class _Stack:
    """The bodies that run in the main thread, the innermost last, and the previous signal handler."""

    def __init__(self) -> None:
        self._armed: list[Abort] = []
        self._previous: Any = None
        self._lock = threading.RLock()

    def push(self, one: Abort) -> None:
        """Arm a body; the first installs the handler."""
        with self._lock:
            # our handler may still be installed, if another thread closed the last body: it is not a previous handler
            if not self._armed and signal.getsignal(SIGNAL) != self._on_signal:
                self._previous = signal.signal(SIGNAL, self._on_signal)
            self._armed.append(one)

    def drop(self, one: Abort) -> None:
        """Disarm a body; the last one restores the previous handler. A pending signal for the body has no effect."""
        with self._lock:
            is_ours = signal.getsignal(SIGNAL) == self._on_signal
            if is_ours and threading.current_thread() is threading.main_thread():
                is_last = self._armed == [one]
                if is_last or one.why is not None:
                    # a signal received already is handled by our handler; SIG_IGN discards one that is still pending
                    signal.signal(SIGNAL, signal.SIG_IGN)
                    before = signal.SIG_DFL if self._previous is None else self._previous
                    signal.signal(SIGNAL, before if is_last else self._on_signal)
            if one in self._armed:
                self._armed.remove(one)

    def has_to_end(self) -> bool:
        """Return whether a step's body that runs here has to end, so that an exception must propagate to it."""
        return any(one.why is not None and one._failure is not None for one in self._armed)

    def passes(self) -> None:
        """Note that an interrupt is unwinding the bodies that have to end."""
        for one in self._armed:
            if one.why is not None:
                one.accepted()

    def send(self, thread: int) -> bool:
        """Send the signal; return False if no body is armed or our handler is not installed."""
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
        # elsewhere an exception could leave something half done; the signal is sent again
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
    """Return whether an interrupt must propagate to an outer body in the main thread that has to end as well.

    If so, that body is not interrupted separately.
    """
    if threading.current_thread() is not threading.main_thread() or not _STACK.has_to_end():
        return False
    _STACK.passes()
    return True
