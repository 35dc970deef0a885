"""The clocks of this process. No other module of the engine reads a clock."""

from __future__ import annotations

import time
from typing import Final, Protocol

from lockstead.stores.bootclock import boot_now


class Clock(Protocol):
    """Two clocks, in seconds: the boot clock, for decisions, and the wall clock, for timestamps that people read."""

    def now(self) -> float:
        """Return seconds on the boot clock. It also runs in suspend where the system supports that.

        Its values are comparable within one boot of the machine.
        """
        ...

    def wall(self) -> float:
        """Return seconds since the epoch. It may jump, so no decision depends on it."""
        ...


class SystemClock:
    """The clocks of this machine.

    A virtual machine that its hypervisor paused may not see the pause on them: then only fencing tokens protect.
    """

    __slots__ = ()

    now = staticmethod(boot_now)
    wall = staticmethod(time.time)


SYSTEM_CLOCK: Final = SystemClock()
