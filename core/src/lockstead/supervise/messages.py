"""Messages between `lockstead run` and its watchdog, and the arithmetic of stopping the command.

A message is a line of fields separated by NUL. To the watchdog: start, deadline, signal, stop. From it: ready, started,
failed, late, paused, resumed, ended, left, stopping, stuck, gone. Imports nothing from lockstead.
"""

from __future__ import annotations

import os
import time

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds on the boot clock."""
    return time.clock_gettime(CLOCK)


def latest_stop(deadline: float, grace: float, reserve: float) -> float:
    """Return the latest instant at which stopping may start, so that grace and reserve end by the deadline."""
    return deadline - reserve - grace


def kill_time(stopping_at: float, deadline: float, grace: float, reserve: float) -> float:
    """Return the instant of SIGKILL: at the end of the grace, but at least the reserve before the deadline."""
    return min(stopping_at + grace, deadline - reserve)


def packed(*fields: object) -> bytes:
    """Encode one message."""
    return b"\0".join(os.fsencode(str(field)) for field in fields) + b"\n"


def unpacked(line: bytes) -> list[str]:
    """Decode a message of `packed`, without its line end."""
    return [os.fsdecode(field) for field in line.split(b"\0")]
