"""The server's clock, and the formats of times in responses.

A clock is any callable that returns seconds since the epoch. The server uses it for every `updated`, `timeCreated`,
generation and `Date`, so a test with its own clock need not sleep.
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
    """A clock that changes only by `advance`.

    It does not affect waiting: a fault that waits some seconds waits real seconds.
    """

    def __init__(self, now: float = EPOCH_OF_MANUAL_CLOCKS) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the current time of this clock, in seconds since the epoch."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Advance the clock by seconds; a negative number sets it back."""
        with self._lock:
            self._now += seconds


def rfc3339(instant: float) -> str:
    """Format an instant like the JSON API: UTC with milliseconds.

    instant is seconds since the epoch.
    """
    whole, milliseconds = divmod(int(instant * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def http_date(instant: float) -> str:
    """Format an instant like HTTP: UTC, whole seconds, rounded down."""
    return _http_date_of(int(instant // 1))


@lru_cache(maxsize=64)
def _http_date_of(second: int) -> str:
    return formatdate(second, usegmt=True)
