"""Arithmetic of expiry: until when a lease is valid for its holder, and when a contender may take over.

All margins between two clocks are in this file. Must not know commands, records or stores. Never compares the clocks of
two machines.
"""

from __future__ import annotations

from typing import Final

FOREIGN_ALLOWANCE: Final = 60.0
"""Seconds by which a foreign writer's wall clock may be behind the store's without its lock being taken over early."""

CLOCK_SLACK: Final = 0.01
"""Seconds by which the time between two readings of a store's clock may differ from ours without counting as a jump."""


def holder_deadline(sent_at: float, ttl: float, drift: float) -> float:
    """Return the instant from which the holder must treat the lease as lost.

    sent_at and the result are seconds on the holder's boot clock; sent_at is when the last request that renewed this
    record was sent. Source: Gray and Cheriton, SOSP 1989.
    """
    return sent_at + ttl * (1 - drift)


def record_lifetime(ttl: float, lock_delay: float, drift: float) -> float:
    """Return how long, by a contender's clock, no contender may take over a record after its last change (seconds)."""
    return ttl * (1 + drift) + lock_delay


def ttl_of_lifetime(lifetime: float, lock_delay: float, drift: float) -> float:
    """Return the ttl that fits into a record's lifetime on the server: the inverse of `record_lifetime`.

    The server's clock may run fast by `drift` and the holder's slow: each side has its own margin.
    """
    return (lifetime - lock_delay) / (1 + drift)


def expired_by_store_clock(
    store_now: float, updated_at: float, ttl: float, lock_delay: float, drift: float, clock_skew_max: float
) -> bool:
    """Return whether a record has expired, by readings of the store's clock(s) that err by at most `clock_skew_max`."""
    return store_now - updated_at > record_lifetime(ttl, lock_delay, drift) + clock_skew_max


def expired_by_observation(
    first_received_at: float, last_sent_at: float, ttl: float, lock_delay: float, drift: float
) -> bool:
    """Return whether a record has expired, because one client saw the same state for longer than its lifetime.

    Counted from the *receipt* of the first read to the *send* of the last: the time in which it was certainly
    unchanged. Both are instants of the observer's boot clock.
    """
    return last_sent_at - first_received_at > record_lifetime(ttl, lock_delay, drift)


def left_by_store_clock(
    store_now: float, updated_at: float, ttl: float, lock_delay: float, drift: float, clock_skew_max: float
) -> float:
    """Return the seconds until `expired_by_store_clock` is true, if no client writes to the record meanwhile."""
    return record_lifetime(ttl, lock_delay, drift) + clock_skew_max - (store_now - updated_at)


def left_by_observation(
    first_received_at: float, received_at: float, ttl: float, lock_delay: float, drift: float
) -> float:
    """Return how many seconds after received_at `expired_by_observation` will be true, if the record is unchanged."""
    return record_lifetime(ttl, lock_delay, drift) - (received_at - first_received_at)


def foreign_left(store_now: float, expires_at: float) -> float:
    """Return the seconds until `foreign_expired` is true."""
    return expires_at + FOREIGN_ALLOWANCE - store_now


def foreign_expired(store_now: float, expires_at: float) -> bool:
    """Return whether the lock of another implementation has expired: by its writer's clock, with an allowance."""
    return store_now > expires_at + FOREIGN_ALLOWANCE


def calibrated(
    updated_at: float, date: float, sent_at: float, received_at: float, clock_skew_max: float, clock_resolution: float
) -> bool:
    """Return whether a write of our own proves that the store's `Date` and its `updated` agree within `clock_skew_max`.

    The first relation bounds how far `Date` may be behind, the second how far ahead.
    """
    behind = updated_at - date + (received_at - sent_at)
    ahead = date + clock_resolution - updated_at
    return behind <= clock_skew_max and ahead <= clock_skew_max


def ran_steadily(store_elapsed: float, at_least: float, at_most: float, drift: float) -> bool:
    """Return whether a store's clock can have advanced by store_elapsed between two readings without a jump.

    at_least and at_most bound, on our boot clock, the time between the two: from the receipt of the first to the send
    of the second, and from the send of the first to the receipt of the second. at_least is negative if they overlap.
    """
    fast = (1 + drift) / (1 - drift)
    lowest, highest = min(at_least / fast, at_least * fast), max(at_most / fast, at_most * fast)
    return lowest - CLOCK_SLACK <= store_elapsed <= highest + CLOCK_SLACK


def deadline_by_read(
    read_sent_at: float,
    store_now: float,
    updated_at: float,
    ttl: float,
    drift: float,
    clock_skew_max: float,
    clock_resolution: float,
) -> float | None:
    """Return a member's deadline from a read that shows when the record was last renewed.

    The record's greatest possible age by the store's clock is subtracted from the send. None if even that is negative:
    the clock has jumped, or another clock stamped the record.
    """
    age = store_now + clock_resolution + clock_skew_max - updated_at
    return None if age < 0 else read_sent_at - age * (1 + drift) + ttl * (1 - drift)


def overlap_until(store_now: float, ttl: float, drift: float, clock_skew_max: float) -> float:
    """Return, on the store's clock, until when the holder of a just removed record may consider itself the holder."""
    return store_now + clock_skew_max + ttl * (1 + drift)
