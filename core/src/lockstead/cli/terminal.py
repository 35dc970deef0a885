"""The terminal's foreground process group: the command while it runs, so that ^C reaches it directly.

Must not know locks. Does nothing if standard input is not a terminal.
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
        """The process group in the foreground; 0 without a controlling terminal."""
        try:
            return os.tcgetpgrp(0)
        except OSError:
            return 0

    @property
    def is_ours(self) -> bool:
        """Whether our own process group, the shell's job, is in the foreground."""
        return self.foreground == self._group

    @property
    def is_offered(self) -> bool:
        """Whether the command starts in the foreground: not if it writes into a pipe, whose reader may need it."""
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
        """Return to the foreground if the group is in it, and whether it was. restore: also restore the modes."""
        if group == 0 or self.foreground != group:
            return False
        self._put(self._group)
        if restore and self._modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        return True

    def _put(self, group: int) -> None:
        # a background process that changes the terminal is stopped unless it ignores this signal
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(OSError):
                os.tcsetpgrp(0, group)
        finally:
            signal.signal(signal.SIGTTOU, before)
