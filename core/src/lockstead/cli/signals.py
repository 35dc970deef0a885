"""Signal handling: during the wait a signal ends the wait; after the grant it is passed on to the command.

If a library swallows the exception of the first signal, a later one ends the wait. A signal that was ignored at the
start stays ignored, also for the command (nohup).
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from lockstead.cli.exits import Exit, Failed

ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PASSED_ON: Final = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


RAISES_AGAIN: Final = 2.0
"""Seconds before a later signal interrupts the wait again: a library may have swallowed the first exception."""


class Interrupted(BaseException):
    """A signal ended the wait for the lock. Not an Exception: the engine must not take it for a store's failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """The received signals. `awake` is a descriptor that becomes readable when one arrives."""

    def __init__(self) -> None:
        self._pending: deque[int] = deque()
        self.is_ending = False
        """Whether a signal came that would end the process."""
        self._waiting = True
        self._raised_at = -RAISES_AGAIN
        self.awake, self._wakes = os.pipe()
        os.set_blocking(self.awake, False)
        os.set_blocking(self._wakes, False)

    def install(self) -> None:
        """Catch the signals that would end the process; called in the main thread."""
        self._catch(ENDING)

    def granted(self) -> None:
        """Stop raising: the lock is held. Called in the main thread at once."""
        self._waiting = False
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        self._catch(PASSED_ON)

    def wait_again(self) -> None:
        """Raise again, since the lock is awaited again; raise now for a signal that came since the last grant."""
        for number in self.taken():
            if number in ENDING:
                raise Interrupted(number)
        self._waiting = True
        for number in set(PASSED_ON) - set(ENDING):
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_DFL)

    def ended(self) -> None:
        """Stop raising: the wait has ended without a grant."""
        self._waiting = False

    def taken(self) -> Iterator[int]:
        """Yield the signals received since the last call, in order."""
        try:
            while os.read(self.awake, 4096):
                pass
        except BlockingIOError:
            pass
        while self._pending:
            yield self._pending.popleft()

    def ignore(self) -> None:
        """Ignore all further signals: the command has ended, and what is left takes a moment."""
        for number in PASSED_ON:
            if signal.getsignal(number) == self._note:
                # Python restores its handlers at exit: a signal then would change the exit code
                signal.signal(number, signal.SIG_IGN)

    def _catch(self, numbers: tuple[signal.Signals, ...]) -> None:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        self.is_ending = self.is_ending or number in ENDING
        if self._waiting and now - self._raised_at >= RAISES_AGAIN:
            self._raised_at = now
            raise Interrupted(number)
        self._pending.append(number)


@contextmanager
def interruptible(what: str) -> Iterator[Signals]:
    """Raise Failed for a signal that would end the process. what: the noun for the message, such as "the wait"."""
    signals = Signals()
    signals.install()
    try:
        yield signals
    except Interrupted as interrupted:
        signals.ended()
        line = f"{signal.Signals(interrupted.number).name} ended {what}"
        raise Failed(Exit.SIGNALLED + interrupted.number, line) from None
