"""Protection from deletion and overwriting: a bucket's retention policy, and holds on an object.

No I/O. Metadata may still be changed. The texts and reasons are those of the real service.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcs_emulator.clock import rfc3339
from gcs_emulator.errors import ApiError

HOLDS = {"eventBasedHold": "Event-Based", "temporaryHold": "Temporary"}
"""Fields of an object, with their names in the service's errors."""


def held_by_default(bucket: Mapping[str, object], draft: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a new object; the bucket may put every new object under a hold."""
    if bucket.get("defaultEventBasedHold") and "eventBasedHold" not in draft:
        return {**draft, "eventBasedHold": True}
    return dict(draft)


def refusal(
    bucket: Mapping[str, object], place: str, created_at: float, fields: Mapping[str, object], now: float
) -> ApiError | None:
    """Return the error of deleting or overwriting an object; None if allowed. place: bucket/name; instants: seconds."""
    for field, called in HOLDS.items():
        if fields.get(field):
            return ApiError(
                403,
                f"Object '{place}' is under active {called} hold and cannot be deleted, overwritten or archived until "
                "hold is removed.",
            )
    policy = bucket.get("retentionPolicy")
    period = policy.get("retentionPeriod") if isinstance(policy, dict) else None
    if period is None or now >= created_at + float(period):
        return None
    return ApiError(
        403,
        f"Object '{place}' is subject to bucket's retention policy or object retention and cannot be deleted or "
        f"overwritten until {rfc3339(created_at + float(period))}",
        "retentionPolicyNotMet",
    )
