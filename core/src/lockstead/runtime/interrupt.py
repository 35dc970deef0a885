"""Decides how a block that cannot call `check()` is interrupted when its lease is lost.

Main thread: a signal of our own (SIGURG, which harms nobody when it comes late). Other threads: an asynchronous
exception. Tasks: a cancellation. What can be interrupted is Python code and, in the main thread, system calls such as
`sleep` and `read`; a C call that never comes back to the interpreter cannot be, in any thread: there only the fencing
token protects. Outside the main thread an exception that falls between the last line of the block and its exit
leaves as `LeaseLostInterrupt`.

The race that matters is a loss at the very exit of the block: nothing may be raised after it. Both sides therefore
take one permit: who fires and who leaves cannot both have it, and no lock is held where an exception may fall.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, Protocol, TypeVar

SIGNAL: Final = signal.SIGURG

F = TypeVar("F", bound=Callable[..., Any])
_EXITS: Final[set[CodeType]] = set()


def leaves_quietly(function: F) -> F:
    """Mark a function on the way out of a guarded block: our signal raises nothing while it runs."""
    _EXITS.add(function.__code__)
    return function


class LeaseLostInterrupt(BaseException):
    """What is thrown into an interrupted block; it leaves the block as `LeaseLost`. No `except Exception` stops it."""


class Interrupter(Protocol):
    """Interrupts one block, once."""

    def arm(self) -> None:
        """Called at the entry of the block, by the thread that runs it."""
        ...

    def fire(self) -> None:
        """Called by the keeper, from another thread; does not block."""
        ...

    def disarm(self) -> bool:
        """Called at the exit of the block, by the thread that runs it; True if it was fired."""
        ...


class SignalInterrupter:
    """Interrupts the main thread by a signal; chains to the handler that was there."""

    def __init__(self) -> None:
        self._permit: deque[int] = deque([1])
        self._fired = False
        self._delivered = False
        self._main = threading.main_thread().ident or 0
        self._previous: Any = None

    def arm(self) -> None:
        """Install the handler."""
        self._previous = signal.signal(SIGNAL, self._on_signal)

    def fire(self) -> None:
        """Send the signal, unless the block is over."""
        if _taken(self._permit):
            self._fired = True
            signal.pthread_kill(self._main, SIGNAL)

    @leaves_quietly
    def disarm(self) -> bool:
        """Let nothing be raised any more, wait for a signal that is on its way, put the old handler back."""
        was_fired = not _taken(self._permit)
        while was_fired and not self._delivered:
            time.sleep(0.0005)
        signal.signal(SIGNAL, self._previous)
        return was_fired

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._fired and not self._delivered:
            self._delivered = True
            if not _is_leaving(frame):
                raise LeaseLostInterrupt
        elif callable(self._previous):
            self._previous(signum, frame)


def _is_leaving(frame: FrameType | None) -> bool:
    for _level in range(4):
        if frame is None:
            return False
        if frame.f_code in _EXITS:
            return True
        frame = frame.f_back
    return False


class ThreadInterrupter:
    """Interrupts another thread by an asynchronous exception, which is raised when it next runs Python code."""

    def __init__(self) -> None:
        self._permit: deque[int] = deque([1])
        self._is_set = False
        self._ident = threading.get_ident()

    def arm(self) -> None:
        """Note the thread."""
        self._ident = threading.get_ident()

    def fire(self) -> None:
        """Set the exception, unless the block is over."""
        if _taken(self._permit):
            _set_async(self._ident, LeaseLostInterrupt)
            self._is_set = True

    def disarm(self) -> bool:
        """Let nothing be raised any more, and take back what was not raised yet."""
        while True:
            try:
                if _taken(self._permit):
                    return False
                while not self._is_set:
                    time.sleep(0.0005)
                _set_async(self._ident, None)
            except LeaseLostInterrupt:
                continue  # it came just now; it comes once
            else:
                return True


def _taken(permit: deque[int]) -> bool:
    try:
        permit.pop()
    except IndexError:
        return False
    return True


def _set_async(ident: int, error: type[BaseException] | None) -> None:
    value = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), value)


def interrupter() -> Interrupter:
    """Give the interrupter that fits this thread."""
    if threading.current_thread() is threading.main_thread():
        return SignalInterrupter()
    return ThreadInterrupter()


class TaskInterrupter:
    """Interrupts an asyncio task by a cancellation that is told apart from everybody else's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can guard a block of a task only")
        self._task = task
        self._armed = True
        self._fired = False

    def fire(self) -> None:
        """Cancel the task, unless the block is over. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return  # the loop is closed, and the block with it

    def _cancel(self) -> None:
        if self._armed and not self._fired:
            self._fired = True
            self._task.cancel("lease lost")

    async def disarm(self, error: BaseException | None) -> tuple[bool, bool]:
        """End the block; give (it was fired, somebody else cancelled the task too)."""
        self._armed = False
        if not self._fired:
            return False, False
        cancelled_too = self._task.uncancel() > 0
        if not isinstance(error, asyncio.CancelledError):
            # the cancellation was asked for and not delivered yet: it must not fall on what follows the block
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                cancelled_too = self._task.cancelling() > 0
        return True, cancelled_too
