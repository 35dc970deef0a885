"""Decides how a block that cannot call `check()` is interrupted when its lease is lost.

Main thread: a signal of our own (SIGURG, which harms nobody when it comes late). Other threads: an asynchronous
exception. What can be interrupted is Python code and, in the main thread, system calls such as `sleep` and `read`; a
C call that never comes back to the interpreter cannot be, in any thread: there only the fencing token protects.
Outside the main thread an exception that falls between the very end of the block and its exit leaves as
`LeaseLostInterrupt`: up to Python 3.12 after C code that the block does not call itself (a loop over a file that
ends), from 3.13 on after any line. Tasks: see `runtime.cancel`.

The race that matters is a loss at the very exit of the block: nothing may be raised after it. Both sides therefore
take one permit: who fires and who leaves cannot both have it, and no lock is held where an exception may fall.
Guards nest: the outermost lost one is raised, since it unwinds all the others. Nobody throws at itself: who finds the
loss of its own block is busy telling others of it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, Final, Protocol, TypeVar

from lockstead.runtime.frames import looks

SIGNAL: Final = signal.SIGURG

TURN: Final = 0.0005
"""Seconds between two looks for what is on its way."""

PATIENCE: Final = 200
"""Turns until a signal that was sent is given up: somebody took the handler away, or blocked the signal."""

AGAIN: Final = 0.01
"""Seconds until a signal that was not heard is sent again: one that comes just before a system call that waits does
not end that call."""

EXIT_DEPTH: Final = 4
"""Frames from the exit of a block down to where it is disarmed."""

F = TypeVar("F", bound=Callable[..., Any])
_EXITS: Final[set[CodeType]] = set()
_DEAF: Final[set[CodeType]] = set()

DEAF_DEPTH: Final = 12
"""Frames from what a finalizer calls down to the finalizer."""


def leaves_quietly(function: F) -> F:
    """Mark a method on the way out of a guarded block: that block's interrupt raises nothing while it runs."""
    _EXITS.add(function.__code__)
    return function


def hears_later(function: F) -> F:
    """Mark a finalizer: what is raised in it reaches nobody, so an interrupt is sent again once it is over."""
    _DEAF.add(function.__code__)
    return function


class LeaseLostInterrupt(BaseException):
    """What is thrown into an interrupted block; it leaves the block as `LeaseLost`. No `except Exception` stops it."""

    def __str__(self) -> str:
        """Say what it means to who catches it and writes it down."""
        return "the lease is lost: leave its block"


class Interrupter(Protocol):
    """Interrupts one block, once. exits holds the objects whose marked methods leave the block."""

    exits: list[object]

    def arm(self) -> None:
        """Called at the entry of the block, by the thread that runs it."""
        ...

    def fire(self) -> None:
        """Called by the keeper, from another thread; does not block."""
        ...

    def disarm(self, error: BaseException | None) -> bool:
        """Called at the exit of the block, by the thread that runs it; True if it was fired."""
        ...

    def threw(self, error: BaseException | None) -> bool:
        """Tell whether this is what it threw into the block."""
        ...


class SignalInterrupter:
    """Interrupts the main thread by a signal. The handlers are the stack of guards: each knows the one before it.

    mutex is held from before the signal is sent until it is heard.
    """

    def __init__(self, mutex: AbstractContextManager[object] | None = None) -> None:
        self.exits: list[object] = [self]
        self._mutex = mutex
        self._permit: deque[int] = deque([1])
        self._is_fired = False
        self._is_sent = False
        self._is_delivered = False
        self._is_insisting = False
        self._is_over = False
        self._main = threading.main_thread().ident or 0
        self._previous: Any = None
        self._is_armed = False

    def arm(self) -> None:
        """Install the handler."""
        self._previous = signal.getsignal(SIGNAL)
        self._is_armed = True
        signal.signal(SIGNAL, self._on_signal)

    def fire(self) -> None:
        """Send the signal, and again until it is heard, unless the block is over."""
        if not _taken(self._permit):
            return
        self._is_fired = True
        try:
            self._send()
        finally:
            # the signal of a guard around this one may be raised in the midst of it, if the main thread does it
            self._is_sent = True

    def _send(self) -> None:
        # sent by the main thread itself, as when its `check()` finds the loss, it would be raised right here, in the
        # middle of telling others; it is given the time to leave by itself
        is_found_here = threading.get_ident() == self._main
        if self._mutex is None and not is_found_here:
            signal.pthread_kill(self._main, SIGNAL)
        after = AGAIN if self._mutex is None or is_found_here else 0.0
        self._is_insisting = True
        try:
            threading.Thread(target=self._insist, args=(after,), name="lockstead-interrupt", daemon=True).start()
        except RuntimeError:
            # the interpreter is about to end, or has no thread to give; with a mutex nothing is sent then, for an
            # exchange that is torn harms more than a block that learns of its loss at its exit
            self._is_insisting = False

    def _insist(self, after: float) -> None:
        try:
            time.sleep(after)
            with nullcontext() if self._mutex is None else self._mutex:
                while not (self._is_delivered or self._is_over) and isinstance(_handler(), SignalInterrupter):
                    signal.pthread_kill(self._main, SIGNAL)
                    time.sleep(AGAIN)
        finally:
            self._is_insisting = False

    @leaves_quietly
    def disarm(self, error: BaseException | None) -> bool:  # noqa: ARG002 - the other interrupter needs it
        """Let nothing be raised any more, wait for a signal that is on its way, put the old handler back."""
        was_fired = not _taken(self._permit)
        for _turn in range(PATIENCE):
            if not was_fired or self._is_sent:
                break
            time.sleep(TURN)
        for _turn in range(PATIENCE):
            if not was_fired or self._is_delivered:
                break
            time.sleep(TURN)
        self._is_over = True
        # counted, for in a forked child there is nobody who insists
        for _turn in range(PATIENCE):
            if not self._is_insisting:
                break
            time.sleep(TURN)
        if self._is_armed:
            self._is_armed = False
            # a handler that was installed from C cannot be put back; ignoring is what SIGURG does by default
            signal.signal(SIGNAL, signal.SIG_DFL if self._previous is None else self._previous)
        return was_fired

    def threw(self, error: BaseException | None) -> bool:
        """Tell whether this is what it threw into the block."""
        return isinstance(error, LeaseLostInterrupt) and self in error.args

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        pending = [one for one in self._nest() if one._is_fired and not one._is_delivered]
        if pending and _is_deaf(frame):
            return
        # two signals of one number may arrive as one, so this one stands for all
        for one in pending:
            one._is_delivered = True
        if pending:
            if not _is_leaving(frame, pending[-1].exits):
                raise LeaseLostInterrupt(pending[-1])
            return
        if any(one._is_fired for one in self._nest()):
            return  # it was sent once more than it was needed
        previous = self._outermost()._previous
        if callable(previous):
            previous(signum, frame)

    def _nest(self) -> Iterator[SignalInterrupter]:
        """Give this guard and those around it, the outermost last."""
        one: object = self
        while isinstance(one, SignalInterrupter):
            yield one
            one = getattr(one._previous, "__self__", None)

    def _outermost(self) -> SignalInterrupter:
        *_, last = self._nest()
        return last


def _handler() -> object:
    return getattr(signal.getsignal(SIGNAL), "__self__", None)


_INNERMOST: ContextVar[ThreadInterrupter | None] = ContextVar("lockstead_thread_interrupter", default=None)


class ThreadInterrupter:
    """Interrupts another thread by an asynchronous exception, which is raised when it next runs Python code."""

    def __init__(self) -> None:
        self.exits: list[object] = [self]
        self._permit: deque[int] = deque([1])
        self._is_fired = False
        self._is_set = False
        self._is_over = False
        self._ident = threading.get_ident()
        self._outer: ThreadInterrupter | None = None
        # a class of its own: CPython sets classes only, and the exit must know its own
        self._thrown: type[LeaseLostInterrupt] = type(
            "LeaseLostInterrupt", (LeaseLostInterrupt,), {"__module__": __name__}
        )

    def arm(self) -> None:
        """Note the thread, and the guard around this one."""
        self._ident = threading.get_ident()
        around = _INNERMOST.get()
        # a context may be a copy, made in another thread or within a block that is left by now; and who was thrown at
        # before this block began owes it nothing, even if what was thrown left its block past the exit
        while around is not None and (around._is_over or around._is_set or around._ident != self._ident):
            around = around._outer
        self._outer = around
        _INNERMOST.set(self)

    def fire(self) -> None:
        """Throw the exception, unless the block is over, or is left at this instant."""
        if not _taken(self._permit):
            return
        self._is_fired = True
        # thrown by the thread itself, as when its `check()` finds the loss, it would be raised right here, in the
        # middle of telling others; it is given the time to leave by itself
        if threading.get_ident() != self._ident and self._threw_now():
            return
        try:
            threading.Thread(target=self._throw_soon, name="lockstead-interrupt", daemon=True).start()
        except RuntimeError:
            self._is_set = True  # no thread can be had: the block learns of its loss at its exit

    def _throw_soon(self) -> None:
        try:
            while True:
                time.sleep(AGAIN)
                if self._threw_now():
                    return
        finally:
            self._is_set = True

    def _threw_now(self) -> bool:
        """Throw, unless that is not needed; False if this is not the moment."""
        # a thread has room for one exception: that of a guard around this one must not be pushed out
        if self._lost_around() is None and not self._throw_unless_left():
            return False
        self._is_set = True
        return True

    def _throw_unless_left(self) -> bool:
        """Throw once, unless the block is left; False if this is not the moment."""
        import ctypes

        throw, ident, exits = ctypes.pythonapi.PyThreadState_SetAsyncExc, self._ident, self.exits
        thread, thrown = ctypes.c_ulong(ident), ctypes.py_object(self._thrown)
        starting = threading.Thread.start.__code__
        # The guarded thread must not move between the look at it and the throw. The interpreter lets others run only
        # at calls and at jumps back: so the loop itself takes the look, and the throw is the first call after it.
        for frames in looks():
            if ident not in frames or self._is_over:
                return True
            top = frames[ident]
            if top.f_code in _EXITS and top.f_locals["self"] in exits:
                return True
            second = top.f_back
            third = None if second is None else second.f_back
            fourth = None if third is None else third.f_back
            # up to Python 3.11 a thread that is being started bears its starter's number and would be hit instead;
            # the starter would then wait for it for ever
            if (
                top.f_code is starting
                or (second is not None and second.f_code is starting)
                or (third is not None and third.f_code is starting)
                or (fourth is not None and fourth.f_code is starting)
            ):
                return False
            throw(thread, thrown)
            return True
        return True

    @leaves_quietly
    def disarm(self, error: BaseException | None) -> bool:
        """Let nothing be thrown any more, and take back what was not raised yet."""
        while True:
            try:
                self._is_over = True
                _INNERMOST.set(self._outer)
                if _taken(self._permit):
                    return False
                # counted, for in a forked child there is nobody who throws; who comes later finds that it is over
                for _turn in range(PATIENCE):
                    if self._is_set:
                        break
                    time.sleep(TURN)
                self._take_back(error)
            except LeaseLostInterrupt as late:
                if not self.threw(late):
                    raise  # of a guard around this one
            else:
                return True

    def threw(self, error: BaseException | None) -> bool:
        """Tell whether this is what it threw into the block."""
        return isinstance(error, self._thrown)

    def _take_back(self, error: BaseException | None) -> None:
        # raised and caught here: if it were taken back instead, Python 3.11 and 3.12 would look for it at every
        # call for ever after, and a debugger, a profiler or coverage would stand still at the first call, on 3.11
        try:
            _set_async(self._ident, self._thrown)
            while True:
                pass
        except self._thrown:
            pass
        # what was thrown for a guard around this one may have been pushed out by ours, or be taken back with it
        around = self._lost_around()
        if around is not None and not around.threw(error):
            _set_async(self._ident, around._thrown)

    def _lost_around(self) -> ThreadInterrupter | None:
        found, one = None, self._outer
        while one is not None:
            found = one if one._is_fired else found
            one = one._outer
        return found


def interrupter(mutex: AbstractContextManager[object] | None = None) -> Interrupter:
    """Give the interrupter that fits this thread; mutex as of `SignalInterrupter`, ValueError in any other thread."""
    if threading.current_thread() is threading.main_thread():
        return SignalInterrupter(mutex)
    if mutex is not None:
        raise ValueError(
            "a guard with a mutex is for the main thread: in others an exception is raised at any later line"
        )
    return ThreadInterrupter()


def _is_leaving(frame: FrameType | None, exits: list[object]) -> bool:
    for _level in range(EXIT_DEPTH):
        if frame is None:
            return False
        if frame.f_code in _EXITS and any(frame.f_locals.get("self") is one for one in exits):
            return True
        frame = frame.f_back
    return False


def _is_deaf(frame: FrameType | None) -> bool:
    for _level in range(DEAF_DEPTH):
        if frame is None:
            return False
        if frame.f_code in _DEAF:
            return True
        frame = frame.f_back
    return False


def _taken(permit: deque[int]) -> bool:
    try:
        permit.pop()
    except IndexError:
        return False
    return True


def _set_async(ident: int, error: type[BaseException] | None) -> None:
    import ctypes

    value = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), value)
