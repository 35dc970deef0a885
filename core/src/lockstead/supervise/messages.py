"""How `lockstead run` and its watchdog talk, and the arithmetic of their stopping.

Lines of fields with NUL between them. To the watchdog: start, deadline, signal, stop. From it: ready, started, failed,
late, paused, resumed, ended, left, stopping, stuck, gone. Imports nothing of lockstead.
"""

from __future__ import annotations

import os
import time

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds on the boot clock."""
    return time.clock_gettime(CLOCK)


def latest_stop(deadline: float, grace: float, reserve: float) -> float:
    """Return the instant at which the stopping starts at the latest, so that grace and reserve end by the deadline."""
    return deadline - reserve - grace


def kill_time(stopping_at: float, deadline: float, grace: float, reserve: float) -> float:
    """Return the instant of SIGKILL: when the grace is over, and never later than the reserve before the deadline."""
    return min(stopping_at + grace, deadline - reserve)


def packed(*fields: object) -> bytes:
    """Put one message into bytes."""
    return b"\0".join(os.fsencode(str(field)) for field in fields) + b"\n"


def unpacked(line: bytes) -> list[str]:
    """Read what `packed` wrote, without its line end."""
    return [os.fsdecode(field) for field in line.split(b"\0")]
