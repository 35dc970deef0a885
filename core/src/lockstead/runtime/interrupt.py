"""How a block that cannot call `check()` is interrupted when its lease is lost.

Main thread: a signal of our own (SIGURG, which harms nobody when it comes late), or an asynchronous exception where
somebody else has that signal. Other threads: an asynchronous exception. What can be interrupted is Python code and, by
the signal, system calls such as `sleep` and `read`; a C call that never comes back to the interpreter cannot be, in any
thread: there only the fencing token protects.
Outside the main thread an exception that falls between the very end of the block and its exit leaves as
`LeaseLostInterrupt`: up to Python 3.12 after C code that the block does not call itself (a loop over a file that
ends), from 3.13 on after any line, and at the end of each round of a `while`. Tasks: see `runtime.cancel`.

Which block is interrupted, and when, is decided by `runtime.nest`. Besides, whatever is not the moment is put off:
while an exit of ours runs, or another task than the block's. An interrupt that was raised in a finalizer or in a
callback of a weak reference reaches nobody, so it is raised again. Somebody insists, every hundredth of a second, until
the block is left; and an exit of ours raises at its end what is due to a block around it.
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
from lockstead.runtime.frames import throws, would_skip_exit
from lockstead.runtime.nest import Block, Nest

SIGNAL: Final = signal.SIGURG

RETRY_EVERY: Final = 0.01
"""Seconds until a block is interrupted again that was not: a signal that comes just before a system call that waits
does not end that call. Also what a block that found its loss by itself is given to leave by itself."""

DEFERRALS_MAX: Final = 100
"""Times that an interrupt is put off because a `with` statement would not see it. A loop without any call has no other
moment: then the block is left by `LeaseLostInterrupt`, and its lease is dropped."""

SIGNALS_MAX: Final = 100
"""Signals that are sent while a mutex is held until it is let go unheard: somebody blocked the signal."""

F = TypeVar("F", bound=Callable[..., Any])
_UNINTERRUPTED: Final[set[CodeType]] = set()


def uninterrupted(function: F) -> F:
    """Mark a function that no interrupt of ours is raised in, nor in what it calls: it is raised later."""
    _UNINTERRUPTED.add(function.__code__)
    return function


# up to Python 3.11 a thread that is being started bears its starter's number and would be hit instead; the starter
# would then wait for it forever
_STARTING: Final = {threading.Thread.start.__code__} if sys.version_info < (3, 12) else set[CodeType]()


class LeaseLostInterrupt(BaseException):
    """What is thrown into an interrupted block; it leaves the block as `LeaseLost`. No `except Exception` stops it."""

    @staticmethod
    def was_swallowed() -> None:
        """Note that it was raised where nobody hears of it."""

    def __reduce__(self) -> tuple[type[LeaseLostInterrupt], tuple[()]]:
        """Travel to another process without what only this one has."""
        return LeaseLostInterrupt, ()

    def __str__(self) -> str:
        """Say what it means to who catches it and writes it down."""
        return "the lease is lost: leave its block"


class Interrupter(Block):
    """Interrupts one block of the thread that makes it. It knows nothing of the lease, so as to keep none alive.

    mutex: held from before the block is interrupted until that was heard.
    """

    def __init__(self, mutex: AbstractContextManager[object] | None = None) -> None:
        super().__init__()
        if mutex is not None and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "a guard with a mutex is for the main thread: in others an exception is raised at any later line"
            )
        self._mutex = mutex
        self._around = _thread_nest()
        self._task = _current_task()
        self._thrown: type[LeaseLostInterrupt] | None = None
        self._throws: Iterator[int] = repeat(0)
        self._was_thrown = False
        self._deferrals = 0

    def arm(self) -> None:
        """Let the block begin."""
        _UNRAISABLE.listen()
        self._around.begin(self)

    def fire(self, found_in: int | None = None) -> None:
        """Interrupt the block, from any thread; does not block. found_in: the thread that found the loss.

        If that is the thread of the block, it is about to raise LeaseLost, and given the time to leave by itself.
        """
        if self.is_lost:
            return
        around, number = self._around, self.number
        patience = RETRY_EVERY if found_in == around.ident else 0.0
        namespace = {
            "__module__": __name__,
            # no Python code, in which another interrupt could fall
            "__init__": staticmethod(partial(around.raised.append, number)),
            "was_swallowed": staticmethod(partial(around.was_swallowed, number)),
        }
        # a class of its own: CPython throws classes only, and the exit must know its own
        self._thrown = type("LeaseLostInterrupt", (LeaseLostInterrupt,), namespace)
        self._throws = throws(around.ident, self._thrown, _UNINTERRUPTED | _STARTING, *self._only_in_its_task())
        self.is_lost = True
        insists = partial(_interrupt_until_left, weakref.ref(self), self._mutex, patience)
        try:
            threading.Thread(target=insists, name="lockstead-interrupt", daemon=True).start()
        except RuntimeError:
            # the interpreter is about to end, or has no thread to give; with a mutex nothing is sent then, for an
            # exchange that is torn harms more than a block that learns of its loss at its exit
            if self._mutex is None and not patience:
                self.send()

    def send(self) -> None:
        """Interrupt the block if it is its turn; whoever runs it may put that off."""
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
        """Return whether the main thread has heard the signal, whether it was the moment or not."""
        return self.is_over or self._around.has_received

    @uninterrupted
    def disarm(self) -> bool:
        """Let the block end: nothing is raised for it from here on. True if it was fired."""
        while True:
            try:
                self._around.end(self)
                if self._was_thrown:
                    self._catch()
            except LeaseLostInterrupt as late:
                if not self.has_thrown(late):
                    raise  # of a guard around this one
            else:
                return self.is_lost

    @uninterrupted
    def drop(self) -> bool:
        """Let the block end without a lock, where `disarm` must not wait. True if it was fired.

        The blocks of the thread forget it by themselves, and the handler is put back with the next one that ends.
        """
        self.is_over = True
        return self.is_lost

    def raise_pending(self) -> None:
        """Raise the interrupt that is due to a block around this one, once this block's exit is done.

        No interrupt is thrown into a thread while it runs `Guard.__enter__` or `__exit__`. A thread that does little
        else waits for the keeper's lock there, so the thread that sends the interrupt never finds it anywhere else.
        """
        with self._around.lock:
            block = self._around.due()
            # this thread may hold that mutex now; such a block is interrupted by a signal alone
            if not isinstance(block, Interrupter) or block._mutex is not None or not block.may_be_raised_in(None):
                return
            if block._was_thrown:
                block._catch()
            raise block.thrown()

    def has_thrown(self, error: BaseException | None) -> bool:
        """Return whether this is what it has_thrown into the block."""
        return self._thrown is not None and isinstance(error, self._thrown)

    def may_be_raised_in(self, frame: FrameType | None) -> bool:
        """Return whether this is the moment, in the main thread."""
        if self._task is not None and _current_task() is not self._task:
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
        """Return what is raised in the block."""
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
        """Take what was thrown and not raised yet. If it was for a block around, who insists on that throws again.

        It is raised and caught. If it were taken back, Python up to 3.12 would look for it at every call forever
        after, and a debugger, a profiler or coverage would stand still at the first call, on 3.11. A finalizer or a
        callback of the collector may swallow it, so it is raised until it is caught here.
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
    """The guarded blocks of one thread, and the handler of the signal that interrupts them."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        """Held while a block is interrupted, and while one is left: by C alone, so no exception leaves it locked."""
        self.ident = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._is_installed = False
        self._previous: Any = None
        self.has_received = True
        fork.watch(self)

    def after_fork(self) -> None:
        """Who held the lock may not exist here."""
        self.lock = threading.RLock()

    def begin(self, block: Interrupter) -> None:
        """A block begins: install the handler, if it is not there yet."""
        with self.lock:
            self.enter(block)
        if not self._is_main or self._is_installed:
            return
        previous = signal.getsignal(SIGNAL)
        # an event loop that somebody told of this signal hears it by itself, whatever the handler
        if _current_task() is None or not callable(previous):
            self._previous, self._is_installed = previous, True
            signal.signal(SIGNAL, self.on_signal)

    def end(self, block: Interrupter) -> None:
        """A block is left: with the last one the handler that was there before is put back."""
        with self.lock:
            is_last = self.leave(block)
        if not (self._is_installed and is_last):
            return
        # nobody sends any more; what was sent has come in when a system call returns, and is heard by our handler
        if SIGNAL in signal.sigpending():
            signal.signal(SIGNAL, signal.SIG_IGN)  # somebody blocked it, so it would come later: it is forgotten
        # a handler that was installed from C cannot be put back; ignoring is what SIGURG does by default
        signal.signal(SIGNAL, signal.SIG_DFL if self._previous is None else self._previous)
        self._is_installed = False

    def receives_signals(self) -> bool:
        """Return whether our handler is in place."""
        return self._is_installed and getattr(signal.getsignal(SIGNAL), "__self__", None) is self

    @uninterrupted
    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Raise what is due, or hand on what is not ours. A signal that comes while this runs interrupts nothing."""
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
    whom: weakref.ref[Interrupter], mutex: AbstractContextManager[object] | None, patience: float
) -> None:
    """Interrupt a block until it is left, or nobody refers to it any more."""
    time.sleep(patience)
    while True:
        block = whom()
        if block is None or block.is_over:
            return
        if block.is_due:
            with nullcontext() if mutex is None else mutex:
                block.send()
                # what was sent must not be heard after the mutex is let go
                for _turn in range(0 if mutex is None else SIGNALS_MAX):
                    time.sleep(RETRY_EVERY)
                    if block.was_received():
                        break
                    block.send()
        del block
        # without the mutex: who waits for it may be in an exit of ours, where nothing is raised
        time.sleep(RETRY_EVERY)


class _Unraisable:
    """Hears of every exception that reached nobody, and has ours raised again. All others are handed on."""

    def __init__(self) -> None:
        self._next: Callable[[Any], object] = sys.__unraisablehook__
        self._is_handing_on = False

    def listen(self) -> None:
        """Be asked first."""
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
        if self._is_handing_on:
            # a hook that was installed after this one hands on to this one in turn
            sys.__unraisablehook__(unraisable)
            return
        self._is_handing_on = True
        try:
            self._next(unraisable)
        finally:
            self._is_handing_on = False


_UNRAISABLE: Final = _Unraisable()


def _current_task() -> Any:
    """Return the task that runs in this thread now, if any."""
    asyncio = sys.modules.get("asyncio")
    # None outside of a loop, where current_task would raise
    loop = None if asyncio is None else asyncio._get_running_loop()
    return None if asyncio is None or loop is None else asyncio.current_task(loop)
