"""Interrupting a block that does not call `check()` when its lease is lost.

Main thread: a signal (SIGURG, which is ignored by default), or an asynchronous exception if the program handles that
signal itself. Other threads: an asynchronous exception. It interrupts Python code and, by the signal, system calls such
as `sleep` and `read`. A C call that does not return to the interpreter cannot be interrupted in any thread: only the
fencing token protects there.
Outside the main thread an exception that arrives between the end of the block and its exit is raised as
`LeaseLostInterrupt`: up to Python 3.12 after C code that the block does not call itself (a loop over a file that
ends), from 3.13 on after any line, and at the end of each iteration of a `while`. Tasks: see `runtime.cancel`.

`runtime.nest` decides which block is interrupted, and when. An interrupt is deferred while an exit of ours or another
task than the block's runs. One that is raised in a finalizer or in a weak reference's callback is lost, so it is raised
again. A thread repeats the interrupt every hundredth of a second until the block is left; an exit of ours raises at its
end the interrupt that is due to an outer block.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from operator import is_
from types import CodeType, FrameType
from typing import Any, Final, TypeVar, cast

from lockstead.runtime import fork
from lockstead.runtime.context import current_task
from lockstead.runtime.frames import throws, would_skip_exit
from lockstead.runtime.nest import Block, Nest

SIGNAL: Final = signal.SIGURG

RETRY_EVERY: Final = 0.01
"""Seconds between two attempts: a signal just before a blocking system call does not end that call. Also the time that
a block gets to exit by itself if it found the loss."""

DEFERRALS_MAX: Final = 100
"""How often an interrupt is deferred because a `with` statement would miss it. A loop without calls has no better
moment: then `LeaseLostInterrupt` leaves the block, and its lease is dropped."""

SIGNALS_MAX: Final = 100
"""Signals that are sent while the mutex is held, before it is released without an answer: the signal may be blocked."""

F = TypeVar("F", bound=Callable[..., Any])
_UNINTERRUPTED: Final[set[CodeType]] = set()


def uninterrupted(function: F) -> F:
    """Mark a function that is not interrupted, nor the functions it calls: the interrupt is raised later."""
    _UNINTERRUPTED.add(function.__code__)
    return function


# up to Python 3.11 a starting thread has the ident of its starter and would get the exception instead; the starter
# would then wait for it forever
_STARTING: Final = {threading.Thread.start.__code__} if sys.version_info < (3, 12) else set[CodeType]()


class LeaseLostInterrupt(BaseException):
    """Raised in an interrupted block, which then raises `LeaseLost`. `except Exception` does not catch it."""

    @staticmethod
    def was_swallowed() -> None:
        """Record that the interpreter swallowed it."""

    def __reduce__(self) -> tuple[type[LeaseLostInterrupt], tuple[()]]:
        """Pickle it as the base class: its own class exists only in this process."""
        return LeaseLostInterrupt, ()

    def __str__(self) -> str:
        """Return a message for logs."""
        return "the lease is lost: leave its block"


class Interrupter(Block):
    """Interrupts one block of the thread that makes it. Has no reference to the lease, so that it keeps none alive.

    mutex: held from before a signal is sent until it was received.
    """

    def __init__(self, mutex: AbstractContextManager[object] | None = None) -> None:
        super().__init__()
        if mutex is not None and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "a guard with a mutex is for the main thread: in others an exception is raised at any later line"
            )
        self._mutex = mutex
        self._around = _thread_nest()
        self._task = current_task()
        self._thrown: type[LeaseLostInterrupt] | None = None
        self._throws: Iterator[int] = repeat(0)
        self._was_thrown = False
        self._deferrals = 0

    def arm(self) -> None:
        """Start the block."""
        _UNRAISABLE.listen()
        self._around.begin(self)

    def fire(self, found_in: int | None = None) -> None:
        """Interrupt the block, from any thread; does not block. found_in: the thread that found the loss.

        If that is the thread of the block, it is about to raise LeaseLost and gets time to exit by itself.
        """
        if self.is_lost:
            return
        around, number = self._around, self.number
        patience = RETRY_EVERY if found_in == around.ident else 0.0
        namespace = {
            "__module__": __name__,
            # C functions only: another interrupt could arrive in Python code
            "__init__": staticmethod(partial(around.raised.append, number)),
            "was_swallowed": staticmethod(partial(around.was_swallowed, number)),
        }
        # a class per block: CPython throws classes only, and the exit must recognize its own
        self._thrown = type("LeaseLostInterrupt", (LeaseLostInterrupt,), namespace)
        self._throws = throws(around.ident, self._thrown, _UNINTERRUPTED | _STARTING, *self._only_in_its_task())
        self.is_lost = True
        repeat_until_left = partial(_interrupt_until_left, weakref.ref(self), self._mutex, patience)
        try:
            threading.Thread(target=repeat_until_left, name="lockstead-interrupt", daemon=True).start()
        except RuntimeError:
            # the interpreter is ending, or no thread can be started; with a mutex nothing is sent then: a torn
            # exchange harms more than a block that learns of its loss at its exit
            if self._mutex is None and not patience:
                self.send()

    def send(self) -> None:
        """Interrupt the block if it is due; the signal handler may defer it."""
        around = self._around
        with around.lock:
            if not self.is_due:
                return
            if around.receives_signals():
                around.has_received = False
                signal.pthread_kill(around.ident, SIGNAL)
            else:
                self._was_thrown = bool(next(self._throws)) or self._was_thrown

    def was_received(self) -> bool:
        """Return whether the main thread has handled the signal, deferred or not."""
        return self.is_over or self._around.has_received

    @uninterrupted
    def disarm(self) -> bool:
        """End the block: it is not interrupted after this. True if it was fired."""
        while True:
            try:
                self._around.end(self)
                if self._was_thrown:
                    self._catch()
            except LeaseLostInterrupt as late:
                if not self.has_thrown(late):
                    raise  # it belongs to an outer guard
            else:
                return self.is_lost

    @uninterrupted
    def drop(self) -> bool:
        """End the block without taking a lock, where `disarm` must not wait. True if it was fired.

        The thread's nest drops it by itself, and the handler is restored when the next block ends.
        """
        self.is_over = True
        return self.is_lost

    def raise_pending(self) -> None:
        """Raise the interrupt that is due to an outer block, at the end of this block's exit.

        No interrupt is thrown into a thread in `Guard.__enter__` or `__exit__`. A thread that spends nearly all its
        time there, waiting for the keeper's lock, could otherwise not be interrupted.
        """
        with self._around.lock:
            block = self._around.due()
            # this thread may hold that mutex now; such a block is interrupted by signals only
            if not isinstance(block, Interrupter) or block._mutex is not None or not block.may_be_raised_in(None):
                return
            if block._was_thrown:
                block._catch()
            raise block.thrown()

    def has_thrown(self, error: BaseException | None) -> bool:
        """Return whether this is the interrupt that was thrown into the block."""
        return self._thrown is not None and isinstance(error, self._thrown)

    def may_be_raised_in(self, frame: FrameType | None) -> bool:
        """Return whether the interrupt may be raised in this frame, in the main thread."""
        if self._task is not None and current_task() is not self._task:
            return False
        if frame is not None and self._deferrals < DEFERRALS_MAX and would_skip_exit(frame):
            self._deferrals += 1
            return False
        while frame is not None:
            if frame.f_code in _UNINTERRUPTED:
                return False
            frame = frame.f_back
        return True

    def thrown(self) -> LeaseLostInterrupt:
        """Return the interrupt to raise in the block."""
        return LeaseLostInterrupt() if self._thrown is None else self._thrown()

    def _only_in_its_task(self) -> tuple[Iterator[bool], ...]:
        if self._task is None:
            return ()
        from asyncio import tasks

        # up to Python 3.11 `current_task` is Python code
        current: Callable[[Any], Any] = (
            tasks.current_task if sys.version_info >= (3, 12) else cast(Any, tasks)._current_tasks.get
        )
        return (map(is_, repeat(self._task), map(current, repeat(self._task.get_loop()))),)

    def _catch(self) -> None:
        """Consume an interrupt that was thrown and not yet raised. One for an outer block is thrown again later.

        It is replaced by an exception that is raised and caught here. Clearing it would make Python up to 3.12 check
        for it at every later call, and hang a debugger, a profiler or coverage on 3.11. A finalizer or a callback of
        the collector may swallow the exception, so it is repeated until it is caught.
        """
        import ctypes

        class Caught(LeaseLostInterrupt):
            pass

        ident, caught = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Caught)
        try:
            while True:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, caught)
                for _turn in range(100):
                    pass
        except Caught:
            pass


class _ThreadNest(Nest):
    """The guarded blocks of one thread, and the handler of their signal."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        """Held while a block is interrupted or left. Taken and released in C, so no exception leaves it locked."""
        self.ident = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._is_installed = False
        self._previous: Any = None
        self.has_received = True
        fork.watch(self)

    def after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may hold it."""
        self.lock = threading.RLock()

    def begin(self, block: Interrupter) -> None:
        """Add a block; install the handler for the first one."""
        with self.lock:
            self.enter(block)
        if not self._is_main or self._is_installed:
            return
        previous = signal.getsignal(SIGNAL)
        # an event loop with a handler for this signal receives it whatever handler is installed here
        if current_task() is None or not callable(previous):
            self._previous, self._is_installed = previous, True
            signal.signal(SIGNAL, self.on_signal)

    def end(self, block: Interrupter) -> None:
        """Remove a block; restore the previous handler after the last one."""
        with self.lock:
            is_last = self.leave(block)
        if not (self._is_installed and is_last):
            return
        # no signal is sent any more; one that was sent is delivered by the next system call, to our handler
        if SIGNAL in signal.sigpending():
            signal.signal(SIGNAL, signal.SIG_IGN)  # the signal is blocked: discard the pending one
        # a handler that was installed from C cannot be restored; SIGURG is ignored by default
        signal.signal(SIGNAL, signal.SIG_DFL if self._previous is None else self._previous)
        self._is_installed = False

    def receives_signals(self) -> bool:
        """Return whether our handler is in place."""
        return self._is_installed and getattr(signal.getsignal(SIGNAL), "__self__", None) is self

    @uninterrupted
    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Raise the interrupt that is due, or call the previous handler. Not interrupted by another signal."""
        self.has_received = True
        block = self.due()
        if isinstance(block, Interrupter):
            if block.may_be_raised_in(frame):
                raise block.thrown()
        elif callable(self._previous) and not any(one.is_lost for one in self):
            self._previous(signum, frame)


_LOCAL: Final = threading.local()


def _thread_nest() -> _ThreadNest:
    nest: _ThreadNest | None = getattr(_LOCAL, "nest", None)
    if nest is None:
        nest = _LOCAL.nest = _ThreadNest()
    return nest


def _interrupt_until_left(
    interrupter: weakref.ref[Interrupter], mutex: AbstractContextManager[object] | None, patience: float
) -> None:
    """Interrupt a block until it is left, or no longer referenced."""
    time.sleep(patience)
    while True:
        block = interrupter()
        if block is None or block.is_over:
            return
        if block.is_due:
            with nullcontext() if mutex is None else mutex:
                block.send()
                # the signal must be handled before the mutex is released
                for _turn in range(0 if mutex is None else SIGNALS_MAX):
                    time.sleep(RETRY_EVERY)
                    if block.was_received():
                        break
                    block.send()
        del block
        # without the mutex: a thread that waits for it may be in an exit of ours, which is not interrupted
        time.sleep(RETRY_EVERY)


class _Unraisable:
    """The hook for unraisable exceptions: repeats our interrupts, and passes all others to the previous hook."""

    def __init__(self) -> None:
        self._next: Callable[[Any], object] = sys.__unraisablehook__
        self._is_passing_on = False

    def listen(self) -> None:
        """Install the hook, in front of the present one."""
        if sys.unraisablehook is not self:
            self._next = sys.unraisablehook
            sys.unraisablehook = self

    @uninterrupted
    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        while error is not None:
            if isinstance(error, LeaseLostInterrupt):
                error.was_swallowed()
                return
            error = error.__context__
        if self._is_passing_on:
            # a hook that was installed after this one calls this one in turn
            sys.__unraisablehook__(unraisable)
            return
        self._is_passing_on = True
        try:
            self._next(unraisable)
        finally:
            self._is_passing_on = False


_UNRAISABLE: Final = _Unraisable()
