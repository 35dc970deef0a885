"""The renewal policy: when a lease is renewed and retried, and how much time must be left for that. Arithmetic only.

All its numbers are here. They determine the defaults and relations of the settings, the keeper's schedule, how much
time a grant or a membership must leave for renewals, and how etcd's shared leases are renewed. Durations are seconds;
instants are of one boot clock. The margins of expiry are in `protocol.expiry`, the default abort margin in `settings`.

To change a number: the defaults must keep (1 + MAX_FAILURES) / RENEWALS_PER_TTL + 1 / settings.MARGINS_PER_TTL below
1 - drift, with a drift of 0.01, and of 0.1 in the simulator (the margins in tests/simulation/plan.py). The numbers are
also in docs/api.md (Settings), in docs/protocol.md (Renew) and, as 37.5 or 12.5 of a ttl of 300 s, in tests:
tests/protocol/test_settings.py, test_lifecycle.py and test_schedule.py, tests/runtime/test_keeper.py,
test_keepers_rounds.py and test_batches.py, tests/surface/test_api.py.
"""

from __future__ import annotations

from typing import Final

RENEWALS_PER_TTL: Final = 8
"""`renew_every` is the ttl divided by this, if it is not set; a longer one causes a warning."""

MAX_FAILURES: Final = 3
"""The default of `max_failures`: consecutive rounds of `renew_every` without a success until the lease is lost."""

RETRIES_PER_TTL: Final = 24
"""The pause after a failed renewal is the ttl divided by this."""

JITTER: Final = 0.1
"""Renewals come up to this fraction of `renew_every` early, drawn once per lease, so that not all are due together."""

EARLY: Final = 0.5
"""A renewal may join a batch with one that is due when at most this fraction of `renew_every` is left."""

PATIENCE: Final = 1.25
"""A record that was not renewed for this many of its `renew_every` keeps no shared lease of a server alive."""

FRESH: Final = 1 / 16
"""The fraction of its ttl after which a shared lease is renewed before another record is attached to it."""


def default_renew_every(ttl: float) -> float:
    """Return the default time between two renewals, in seconds."""
    return ttl / RENEWALS_PER_TTL


def renews_late(renew_every: float, ttl: float) -> bool:
    """Whether renewals are rarer than by default. The tolerance is for rounding."""
    return renew_every > default_renew_every(ttl) * (1 + 1e-9)


def time_for_failures(renew_every: float, max_failures: int) -> float:
    """Return the seconds from the last success until max_failures rounds of renewal have failed."""
    return (1 + max_failures) * renew_every


def renewal_due_at(sent_at: float, renewal_sent_at: float, renew_every: float, ttl: float, jitter: float) -> float:
    """Return when the next renewal is due. jitter is a fraction that the lease keeps.

    sent_at: the send that certainly renewed the lease. renewal_sent_at: the send of the last attempt, whose answer may
    show an older renewal (of an etcd lease); another attempt at once would get the same answer.
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
