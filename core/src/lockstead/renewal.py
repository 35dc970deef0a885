"""Renewal policy: when a lease is renewed and retried, and how much time must be left for that. Arithmetic alone.

Every figure of it is in this file: the settings take their defaults and their relations from here, the keeper its
schedule, acquiring and joining what they leave to the keeper, and etcd what keeps a shared lease alive. Durations are
seconds; instants are of one boot clock. The margins of expiry are in `protocol.expiry`; the
abort margin is a setting.

With the defaults, (1 + MAX_FAILURES) / RENEWALS_PER_TTL and the abort margin must fit into a ttl. tests/protocol/
test_settings.py and test_lifecycle.py and tests/runtime/test_keeper.py hold the policy.
"""

from __future__ import annotations

from typing import Final

RENEWALS_PER_TTL: Final = 8
"""Renewals in one ttl where `renew_every` is not set; rarer ones deserve a warning."""

MAX_FAILURES: Final = 3
"""Rounds of renewal without success until the loss is reported, where `max_failures` is not set."""

RETRIES_PER_TTL: Final = 24
"""Attempts in one ttl after a renewal that failed."""

JITTER: Final = 0.1
"""Renewals come up to this fraction of `renew_every` early, drawn once a lease, so that many do not beat in step."""

EARLY: Final = 0.5
"""A renewal may join a batch with one that is due when at most this fraction of `renew_every` is left, jitter aside."""

PATIENCE: Final = 1.25
"""A record that was not renewed for this many of its `renew_every` keeps no shared lease of a server alive."""

FRESH: Final = 1 / 16
"""The fraction of its ttl after which a shared lease is renewed before another record is attached to it."""


def default_renew_every(ttl: float) -> float:
    """Return the default time between two renewals, in seconds."""
    return ttl / RENEWALS_PER_TTL


def renews_late(renew_every: float, ttl: float) -> bool:
    """Whether renewals are rarer than by default; the default itself must not be by rounding."""
    return renew_every > default_renew_every(ttl) * (1 + 1e-9)


def time_for_failures(renew_every: float, max_failures: int) -> float:
    """Return how long a lease must live on for max_failures rounds of renewal to fail after the last success."""
    return (1 + max_failures) * renew_every


def renewal_due_at(sent_at: float, renewal_sent_at: float, renew_every: float, ttl: float, jitter: float) -> float:
    """Return when the next renewal is due. jitter is a fraction that the lease keeps.

    sent_at: the send that certainly renewed the lease. renewal_sent_at: the send of the last attempt, whose answer may
    say that the lease was renewed long before; asked again at once, the store would only say the same.
    """
    after = renew_every * (1 - JITTER * jitter)
    return max(sent_at + after, renewal_sent_at + min(after, retry_after(ttl)))


def retry_after(ttl: float) -> float:
    """Return the pause after a renewal that failed."""
    return ttl / RETRIES_PER_TTL


def may_renew_early(left: float, renew_every: float) -> bool:
    """Whether a renewal that is due in `left` seconds may go out now, in a batch with another one."""
    return left <= renew_every * EARLY


def is_unrenewed(silent: float, renew_every: float) -> bool:
    """Whether a record that was not renewed for `silent` seconds is probably no longer renewed."""
    return silent > PATIENCE * renew_every


def is_fresh(age: float, ttl: float) -> bool:
    """Whether a record may be attached to a shared lease that was renewed `age` seconds ago."""
    return age <= FRESH * ttl
