"""What a lock on Cloud Storage costs in money, worked out from the requests it makes and the list prices.

Prices: https://cloud.google.com/storage/pricing as read on 2026-09-20 (the transcription in
github.com/api-evangelist/gcp-cloud-storage), standard storage in one region, in US dollars. Which request is of which
class: the same page. The free tier is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from lockstead.renewal import JITTER
from lockstead.settings import Settings

CLASS_A = 0.005 / 1000
CLASS_B = 0.0004 / 1000
PRICES = {"insert": CLASS_A, "patch": CLASS_A, "list": CLASS_A, "get": CLASS_B, "delete": 0.0}
GIBIBYTE_HOUR = 0.000027397

MONTH = 30 * 86400.0
CYCLE = {"insert": 1, "delete": 1}
TOKEN = {"get": 1, "patch": 2}
"""A look at the record, the companion that is drawn from, the record again; from the second token of a key on."""

OBJECT_BYTES = 1024
"""More than a lock's name and metadata take."""

SETTINGS = Settings()


def cost(requests: Mapping[str, float]) -> float:
    """Return the price of so many requests of each kind, dollars."""
    return sum(PRICES[kind] * count for kind, count in requests.items())


def mean_pause(settings: Settings = SETTINGS, draws: int = 1_000_000) -> float:
    """Return the mean time between two looks of a waiter, seconds: each is drawn from up to three times the last."""
    dice = random.Random(7)
    longest, total = settings.backoff_min, 0.0
    for _ in range(draws):
        pause = dice.uniform(settings.backoff_min, max(settings.backoff_min, longest))
        longest = min(settings.backoff_max, pause * 3)
        total += pause
    return total / draws


def renewals(duration: float, settings: Settings = SETTINGS) -> float:
    """Return how often a lease is renewed in a time: each renewal comes up to a tenth early."""
    return duration / (settings.renew_every * (1 - JITTER / 2))


def rows() -> Iterator[tuple[str, str, str]]:
    """Return what, how many requests, dollars."""
    million = {kind: count * 1e6 for kind, count in CYCLE.items()}
    yield "1,000,000 uncontended cycles", "1,000,000 inserts (A), as many deletes (free)", _dollars(cost(million))
    drawn = {kind: count * 1e6 for kind, count in TOKEN.items()}
    fenced = cost(million) + cost(drawn)
    yield "the same, each with a fencing token", "and 2,000,000 patches (A), 1,000,000 reads (B)", _dollars(fenced)
    kept = renewals(MONTH)
    held = f"{kept:,.0f} patches (A)"
    yield "one lock held for 30 days at the defaults", held, _dollars(cost({"patch": kept}))
    looks = 3600 / mean_pause()
    yield (
        "one process that waits, for an hour",
        f"about {round(looks, -2):,.0f} reads (B)",
        _dollars(cost({"get": looks})),
    )
    stored = OBJECT_BYTES / 2**30 * GIBIBYTE_HOUR
    yield "storage of one lock for 30 days", "1 KiB", _dollars(stored * MONTH / 3600)
    softly = f"1,000,000 × 1 KiB × 7 days after {million['insert']:,.0f} cycles"
    yield "soft delete left on (its default)", softly, _dollars(1e6 * stored * 7 * 24)


def _dollars(amount: float) -> str:
    if amount < 1e-5:
        return "below $0.00001"
    return f"${amount:.2f}" if amount >= 0.1 else f"${amount:.1g}"


def markdown() -> list[str]:
    """Write the rows as docs/benchmarks.md keeps them."""
    return [f"| {what} | {requests} | {dollars} |" for what, requests, dollars in rows()]


if __name__ == "__main__":
    print("\n".join(markdown()))
