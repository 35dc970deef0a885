"""The server's time: where it comes from and how it is written on the wire.

A clock is any callable that gives seconds since the epoch; the server asks it for every
`updated`, `timeCreated`, generation and `Date`, so a test that brings its own clock needs no sleeping.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]

EPOCH_OF_MANUAL_CLOCKS = 1_700_000_000.0


class ManualClock:
    """A clock that stands still until it is told to move.

    Does not wake anybody: a fault that waits some seconds waits real ones.
    """

    def __init__(self, now: float = EPOCH_OF_MANUAL_CLOCKS) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the seconds since the epoch this clock stands at."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move by so many seconds; a negative number sets the clock back."""
        with self._lock:
            self._now += seconds


def rfc3339(instant: float) -> str:
    """Write an instant as the JSON API does: UTC with milliseconds.

    instant is seconds since the epoch.
    """
    whole, milliseconds = divmod(int(instant * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def http_date(instant: float) -> str:
    """Write an instant as HTTP does: UTC, whole seconds, rounded down."""
    return _http_date_of(int(instant // 1))


@lru_cache(maxsize=64)
def _http_date_of(second: int) -> str:
    return formatdate(second, usegmt=True)
