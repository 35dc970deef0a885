"""What becomes of a signal that reaches `lockstead`: an end of the wait, or a message to the command it runs.

While the lock is waited for, a signal that would end the process ends the wait, in good order; if the wait continues, a
later signal ends it. From the grant on no signal ends anything here: each is noted, and passed on when the command
runs. A signal that was ignored when we were started stays ignored, for the command too (nohup).
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
"""Seconds after which a wait that still goes on is interrupted again: a library may have swallowed the exception."""


class Interrupted(BaseException):
    """A signal ended the wait for the lock. Not an Exception: the engine must not take it for a store's failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """What came in. `awake` is a descriptor that becomes readable when something did."""

    def __init__(self) -> None:
        self._pending: deque[int] = deque()
        self._waiting = True
        self._raised_at = -RAISES_AGAIN
        self.awake, self._wakes = os.pipe()
        os.set_blocking(self.awake, False)
        os.set_blocking(self._wakes, False)

    def install(self) -> None:
        """Catch what would end the process; called in the main thread."""
        self._catch(ENDING)

    def granted(self) -> None:
        """The lock is held: from now on nothing is raised. Called in the main thread, as soon as it is known."""
        self._waiting = False
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        self._catch(PASSED_ON)

    def ended(self) -> None:
        """Raise nothing any more: the wait is over, and nothing was granted."""
        self._waiting = False

    def taken(self) -> Iterator[int]:
        """Return what came in since, in order."""
        try:
            while os.read(self.awake, 4096):
                pass
        except BlockingIOError:
            pass
        while self._pending:
            yield self._pending.popleft()

    def deaf(self) -> None:
        """Let no signal end the process any more, nor be passed on: what is left to do is short, and starts nobody."""
        for number in PASSED_ON:
            if signal.getsignal(number) == self._note:
                # a handler of Python's would be undone when the interpreter ends, and the exit code lost to the signal
                signal.signal(number, signal.SIG_IGN)

    def _catch(self, numbers: tuple[signal.Signals, ...]) -> None:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._waiting and now - self._raised_at >= RAISES_AGAIN:
            self._raised_at = now
            raise Interrupted(number)
        self._pending.append(number)


@contextmanager
def waiting_for(key: str) -> Iterator[Signals]:
    """Catch what would end the process while it waits for a lock: it ends as Failed, in one line."""
    signals = Signals()
    signals.install()
    try:
        yield signals
    except Interrupted as interrupted:
        signals.ended()
        line = f"{signal.Signals(interrupted.number).name} ended the wait for {key!r}"
        raise Failed(Exit.SIGNALLED + interrupted.number, line) from None
