"""Diagnosis of bucket settings that harm locks, from the bucket's resource. No I/O.

Source: the Bucket resource of Cloud Storage's JSON API; storage classes and their minimum durations, soft delete and
its default of 7 days, retention and holds from its documentation (2026). Must not know how the resource is requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from lockstead.stores.examination import Finding, Severity

Resource: TypeAlias = Mapping[str, Any]

DAY: Final = 86400
SOFT_DELETE_DEFAULT: Final = 7 * DAY

MINIMUM_DAYS: Final = {"NEARLINE": 30, "COLDLINE": 90, "ARCHIVE": 365}
"""Days for which objects of a storage class are billed at least, however soon they are deleted."""

_PAST_VERSIONS: Final = ("daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions", "daysSinceCustomTime")
"""Conditions of a lifecycle rule that no live object of a lock meets."""


def settings_of(resource: Resource, bucket: str, root: str) -> Iterator[Finding]:
    """Yield the findings on a bucket's settings, for locks whose object names begin with `root`."""
    place = f"{resource.get('location', 'somewhere')}, {resource.get('locationType', 'kind unknown')}"
    yield Finding(Severity.OK, "bucket.exists", f"the bucket gs://{bucket} exists ({place})")
    update = f"gcloud storage buckets update gs://{bucket}"
    yield _retention(resource, update)
    yield _hold(resource, update)
    yield _soft_delete(resource, update)
    yield _versioning(resource, update)
    yield from _lifecycle(resource, update, root)
    yield _storage_class(resource, update)
    yield from _payer(resource, update)
    yield from _access(resource, update)


def _retention(resource: Resource, update: str) -> Finding:
    check, policy = "bucket.retention-policy", resource.get("retentionPolicy") or {}
    period = _seconds(policy, "retentionPeriod")
    if period <= 0:
        return Finding(Severity.OK, check, "no retention policy: locks can be released")
    remedy = f"{update} --clear-retention-period"
    if policy.get("isLocked"):
        remedy = "the policy is locked and cannot be taken away: use another bucket"
    text = f"a retention policy keeps every object for {_long(period)}: no lock can be released or taken over before"
    return Finding(Severity.FAILURE, check, text, remedy, {"retention_s": period})


def _hold(resource: Resource, update: str) -> Finding:
    check = "bucket.default-event-based-hold"
    if not resource.get("defaultEventBasedHold"):
        return Finding(Severity.OK, check, "no hold is put on new objects")
    text = "every new object gets an event-based hold: no lock can be released or taken over"
    return Finding(Severity.FAILURE, check, text, f"{update} --no-default-event-based-hold")


def _soft_delete(resource: Resource, update: str) -> Finding:
    check, kept = "bucket.soft-delete", _seconds(resource.get("softDeletePolicy") or {}, "retentionDurationSeconds")
    if kept <= 0:
        return Finding(Severity.OK, check, "soft delete is off")
    severity = Severity.NOTE if kept <= SOFT_DELETE_DEFAULT else Severity.WARNING
    text = f"soft delete keeps, and bills, every lock for {_long(kept)} after its release"
    return Finding(severity, check, text, f"{update} --clear-soft-delete", {"soft_delete_s": kept})


def _versioning(resource: Resource, update: str) -> Finding:
    check = "bucket.versioning"
    if not (resource.get("versioning") or {}).get("enabled"):
        return Finding(Severity.OK, check, "object versioning is off")
    text = "object versioning keeps every released lock forever, and bills it"
    return Finding(Severity.WARNING, check, text, f"{update} --no-versioning")


def _lifecycle(resource: Resource, update: str, root: str) -> Iterator[Finding]:
    check, rules = "bucket.lifecycle", (resource.get("lifecycle") or {}).get("rule") or []
    found = [finding for rule in rules if (finding := _rule(rule, check, update, root)) is not None]
    yield from found
    if not found:
        yield Finding(Severity.OK, check, "no lifecycle rule touches locks")


def _rule(rule: Resource, check: str, update: str, root: str) -> Finding | None:
    """Return the finding on one rule; None if it does not affect live objects of locks."""
    condition, action = rule.get("condition") or {}, (rule.get("action") or {}).get("type", "")
    if action not in ("Delete", "SetStorageClass") or not _concerns(condition, root):
        return None
    remedy = f"keep locks out of the rule (matchesPrefix), or use another bucket; {update} --lifecycle-file=FILE"
    if action == "SetStorageClass":
        text = "a lifecycle rule moves objects of locks to another storage class, at a price for each"
        return Finding(Severity.WARNING, check, text, remedy)
    age, endings = condition.get("age"), condition.get("matchesSuffix") or []
    which = f" whose names end in {' or '.join(map(str, endings))}" if endings else ""
    if age:
        days = float(age) * DAY
        text = f"a lifecycle rule deletes objects{which} after {_long(days)}: a lock held for longer vanishes"
        return Finding(Severity.WARNING, check, text, remedy, {"age_s": days})
    if "createdBefore" in condition or "customTimeBefore" in condition:
        text = f"a lifecycle rule deletes objects{which} by their date: a lock that is held then vanishes"
        return Finding(Severity.WARNING, check, text, remedy)
    text = f"a lifecycle rule deletes objects{which} of any age: locks vanish while they are held"
    return Finding(Severity.WARNING if endings else Severity.FAILURE, check, text, remedy)


def _concerns(condition: Resource, root: str) -> bool:
    if condition.get("isLive") is False or any(condition.get(name) for name in _PAST_VERSIONS):
        return False
    classes = condition.get("matchesStorageClass") or []
    prefixes = condition.get("matchesPrefix") or []
    # a rule for a longer prefix affects some locks, a rule for a shorter one affects all
    may_match = not prefixes or any(prefix.startswith(root) or root.startswith(prefix) for prefix in prefixes)
    return may_match and (not classes or not set(classes) <= set(MINIMUM_DAYS))


def _storage_class(resource: Resource, update: str) -> Finding:
    check, kind = "bucket.storage-class", str(resource.get("storageClass") or "STANDARD")
    days = MINIMUM_DAYS.get(kind)
    if days is None:
        return Finding(Severity.OK, check, f"the storage class is {kind}, without a minimum duration")
    text = f"the storage class is {kind}: every lock is billed for {days} days, however soon it is released"
    remedy = f"{update} --default-storage-class=STANDARD"
    return Finding(Severity.WARNING, check, text, remedy, {"minimum_s": days * DAY})


def _payer(resource: Resource, update: str) -> Iterator[Finding]:
    if (resource.get("billing") or {}).get("requesterPays"):
        text = "the requester pays: lockstead names no project to bill, so others than the owners are refused"
        yield Finding(Severity.WARNING, "bucket.requester-pays", text, f"{update} --no-requester-pays")


def _access(resource: Resource, update: str) -> Iterator[Finding]:
    uniform = (resource.get("iamConfiguration") or {}).get("uniformBucketLevelAccess") or {}
    if uniform.get("enabled") is False:
        text = "access is not uniform: another account may be denied an object that this one made"
        remedy = f"{update} --uniform-bucket-level-access"
        yield Finding(Severity.NOTE, "bucket.uniform-access", text, remedy)


def _seconds(policy: Resource, name: str) -> float:
    """Return a duration in seconds; the API encodes integers as strings."""
    try:
        return float(policy.get(name) or 0)
    except (TypeError, ValueError):
        return 0.0


def _long(seconds: float) -> str:
    for size, unit in ((DAY, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}{'' if seconds == size else 's'}"
    return f"{seconds:.3g} s"
