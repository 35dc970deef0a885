"""Ways for a process to die, or to meet a failing disk, at the n-th step of its work with SQLite.

Each is called once in the process that will die.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any, Final

FOR_EVER: Final = 1_000_000


class Countdown:
    """Counts steps, and dies at the n-th."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, *_told: object) -> int:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0


def at_statement(count: int) -> None:
    """Die when the n-th SQL statement begins."""
    countdown = Countdown(count)  # one for all connections of the process
    _connect_with(lambda made: made.set_trace_callback(countdown.step))


def at_tick(count: int) -> None:
    """Die at the n-th callback of SQLite's virtual machine, with the finest steps."""
    countdown = Countdown(count)
    _connect_with(lambda made: made.set_progress_handler(countdown.step, 1))


def _connect_with(prepare: Callable[[sqlite3.Connection], None]) -> None:
    connect = sqlite3.connect

    def connecting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        made = connect(*args, **kwargs)
        prepare(made)
        return made

    sqlite3.connect = connecting


def at_call(count: int) -> None:
    """Die before the n-th system call that changes a file."""
    ctypes.CDLL(None).die_at_call(ctypes.c_long(count), ctypes.c_int(0))


def in_call(count: int) -> None:
    """Die in the middle of the n-th system call that changes a file: half of what was to be written is."""
    ctypes.CDLL(None).die_at_call(ctypes.c_long(count), ctypes.c_int(1))


def fails_at_call(with_errno: int, calls: int) -> Callable[[int], None]:
    """Let the n-th system call that changes a file, and so many from there on, fail with an errno."""

    def fail(count: int) -> None:
        ctypes.CDLL(None).fail_at_call(ctypes.c_long(count), ctypes.c_long(calls), ctypes.c_int(with_errno))

    return fail


def failures_met() -> int:
    """Tell how many system calls have failed so far."""
    return int(ctypes.CDLL(None).failures_met())


DYING: Final[dict[str, Callable[[int], None]]] = {
    "statement": at_statement,
    "tick": at_tick,
    "before call": at_call,
    "in call": in_call,
}
FAILING: Final[dict[str, Callable[[int], None]]] = {
    "full": fails_at_call(errno.ENOSPC, FOR_EVER),
    "over quota": fails_at_call(errno.EDQUOT, FOR_EVER),
    "broken once": fails_at_call(errno.EIO, 1),
}
WAYS: Final = {**DYING, **FAILING}


def without_transactions() -> None:
    """Break the store: each statement is its own transaction."""
    real = sqlite3.connect

    class Careless(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            return super().execute("SELECT 1" if sql in ("BEGIN IMMEDIATE", "COMMIT") else sql, *rest)

    sqlite3.connect = functools.partial(real, factory=Careless)
