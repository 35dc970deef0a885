"""What time it is in this process. The only reader of clocks in the engine."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Two clocks: one that decides, one that people read. Both in seconds."""

    def now(self) -> float:
        """Return the boot clock: grows with real time, in suspend too where the system can; comparable in one boot."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch; may jump; decides nothing."""
        ...


# Linux's monotonic clock stops in suspend, while the lease runs out: only the boot clock sees that time go by.
_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of this machine. A guest paused by its hypervisor may not see the pause: then only tokens protect."""

    __slots__ = ()

    def now(self) -> float:
        """Return seconds on the boot clock."""
        return time.clock_gettime(_BOOT)

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()


SYSTEM_CLOCK: Final = SystemClock()
