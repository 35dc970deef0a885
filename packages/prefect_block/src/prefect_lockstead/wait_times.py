"""How long a run waits for its lock, and when one that left its process comes back and asks again.

That is when the holder expects to be done, else after UNKNOWN seconds, each time at least SOONEST and at most LATEST
seconds later, plus up to a fifth at random.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from prefect_lockstead import states

if TYPE_CHECKING:
    from lockstead import LockInfo

SOONEST: Final = 5.0
LATEST: Final = 300.0
UNKNOWN: Final = 15.0
"""Seconds until a run comes back: at least, at most, and where nobody knows when the lock will be free."""

SPREAD: Final = 0.2
"""So much later, at random, does a run come back: those that left together do not ask together."""


def due(held: LockInfo | None, now: float, left: float | None = None) -> float:
    """Return the seconds until a run asks again.

    held: who holds the lock, None if nobody knows; now: seconds since the epoch; left: seconds until the run gives up,
    None for never.
    """
    after = UNKNOWN
    if held is not None and held.expected is not None and held.acquired_epoch is not None:
        until = held.acquired_epoch + held.expected - now
        # who is overdue may be done at any moment, or never
        after = until if until > 0 else UNKNOWN
    after = min(max(after, SOONEST), LATEST)
    if left is not None:
        after = min(after, left)
    return after * (1 + random.uniform(0, SPREAD))


def left_of(limit: float | None, began_at: float) -> float | None:
    """Return what is left of the time to wait, in a wait that began at that instant of the monotonic clock."""
    return None if limit is None else max(0.0, limit - (time.monotonic() - began_at))


def left_of_all(limit: float | None) -> float | None:
    """Return what is left of the time to wait, of which some may have gone by in earlier processes of this run."""
    since = None if limit is None else states.waiting_since()
    if limit is None or since is None:
        return limit
    return limit - (datetime.now(UTC) - since).total_seconds()
