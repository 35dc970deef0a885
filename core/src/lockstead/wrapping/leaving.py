"""Exiting a process whose task code does not stop: reports and output first, none of which may block the exit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

EXIT_CODE: Final = 75
"""Exit code of a process whose task code did not end: EX_TEMPFAIL."""

FLUSH_WITHIN: Final = 1.0
"""Maximum seconds to flush the output."""


def call_within(seconds: float, call: Callable[[], object], name: str) -> None:
    """Call a function in a daemon thread of that name, and wait for it for at most these seconds: it may block."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    thread.join(seconds)


def flush_output() -> None:
    """Flush standard output and error. Gives up after `FLUSH_WITHIN`: task code may hold a lock of the streams."""
    call_within(FLUSH_WITHIN, _flush, "lockstead-flush")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
