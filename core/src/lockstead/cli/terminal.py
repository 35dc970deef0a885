"""Who has the terminal: the command, while it runs in the foreground; ^C then reaches it without us.

Must not know locks. Everything here does nothing where standard input is not a terminal.
"""

from __future__ import annotations

import os
import signal
import stat
import termios
from contextlib import suppress
from typing import Any


class Terminal:
    """The terminal on standard input, if there is one and we are in its foreground."""

    def __init__(self) -> None:
        self._group = os.getpgrp()
        self._modes: list[Any] | None = None
        if self.is_ours:
            with suppress(termios.error):
                self._modes = termios.tcgetattr(0)

    @property
    def foreground(self) -> int:
        """The process group in the foreground; 0 where there is no terminal of ours."""
        try:
            return os.tcgetpgrp(0)
        except OSError:
            return 0

    @property
    def is_ours(self) -> bool:
        """Whether our own process group, the job that the shell knows, is in the foreground."""
        return self.foreground == self._group

    @property
    def is_offered(self) -> bool:
        """Whether the command gets it from the start: not where it writes into a pipe, whose reader may want it."""
        if not self.is_ours:
            return False
        try:
            return not stat.S_ISFIFO(os.fstat(1).st_mode)
        except OSError:
            return True

    def give(self, group: int) -> None:
        """Put a process group into the foreground."""
        self._put(group)

    def take_back(self, group: int, *, restore: bool) -> bool:
        """Be in the foreground again if that group was; restore: with the modes of before. True if it was there."""
        if group == 0 or self.foreground != group:
            return False
        self._put(self._group)
        if restore and self._modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        return True

    def _put(self, group: int) -> None:
        # who is not in the foreground is stopped for touching the terminal, unless this signal is ignored
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(OSError):
                os.tcsetpgrp(0, group)
        finally:
            signal.signal(signal.SIGTTOU, before)
