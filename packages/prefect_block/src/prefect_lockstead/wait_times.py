"""When a run that left its process is started again, and how much of its timeout is left.

It starts again when the holder expects to be done, or after UNKNOWN seconds; at least SOONEST and at most LATEST
seconds later, plus a random fifth.
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
"""Seconds until a run starts again: at least, at most, and if the holder's end is unknown."""

SPREAD: Final = 0.2
"""Random part of the delay, so that runs do not all start again at the same moment."""


def due(held: LockInfo | None, now: float, left: float | None = None) -> float:
    """Return the seconds until a run starts again.

    held: the holder, None if unknown; now: seconds since the epoch; left: seconds until the timeout, None for none.
    """
    after = UNKNOWN
    if held is not None and held.expected is not None and held.acquired_epoch is not None:
        until = held.acquired_epoch + held.expected - now
        # an overdue holder may be done at any moment, or never
        after = until if until > 0 else UNKNOWN
    after = min(max(after, SOONEST), LATEST)
    if left is not None:
        after = min(after, left)
    return after * (1 + random.uniform(0, SPREAD))


def left_of(limit: float | None, began_at: float) -> float | None:
    """Return the rest of the timeout. began_at: start of the wait, by time.monotonic()."""
    return None if limit is None else max(0.0, limit - (time.monotonic() - began_at))


def left_of_all(limit: float | None) -> float | None:
    """Return the rest of the timeout, less the time that earlier processes of this run waited."""
    since = None if limit is None else states.waiting_since()
    if limit is None or since is None:
        return limit
    return limit - (datetime.now(UTC) - since).total_seconds()
