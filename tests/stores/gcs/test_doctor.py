"""Which settings of a bucket hurt locks, one by one, as the service writes them."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.stores.examination import Finding, Severity
from lockstead.stores.gcs.settings import settings_of

HEALTHY: dict[str, Any] = {
    "kind": "storage#bucket",
    "location": "EUROPE-WEST1",
    "locationType": "region",
    "storageClass": "STANDARD",
    "softDeletePolicy": {"retentionDurationSeconds": "0"},
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True, "lockedTime": "2030-01-01T00:00:00Z"}},
}


def found(root: str = "locks/", **settings: object) -> dict[str, Finding]:
    """Return the findings that are not ok, by check."""
    findings = settings_of({**HEALTHY, **settings}, "b", root)
    return {finding.check: finding for finding in findings if finding.severity is not Severity.OK}


def ruled(root: str = "locks/", action: str = "Delete", **condition: object) -> Severity | None:
    """Return how much one lifecycle rule matters."""
    rule = {"action": {"type": action}, "condition": condition}
    finding = found(root, lifecycle={"rule": [rule]}).get("bucket.lifecycle")
    return None if finding is None else finding.severity


def test_a_healthy_bucket_is_ok_in_everything() -> None:
    assert found() == {}
    findings = list(settings_of(HEALTHY, "b", "locks/"))
    assert {finding.check for finding in findings} == {
        "bucket.exists",
        "bucket.retention-policy",
        "bucket.default-event-based-hold",
        "bucket.soft-delete",
        "bucket.versioning",
        "bucket.lifecycle",
        "bucket.storage-class",
    }


def test_an_emulators_bucket_that_says_little_is_ok() -> None:
    findings = settings_of({"kind": "storage#bucket"}, "b", "")
    assert {finding.severity for finding in findings} == {Severity.OK}


def test_a_retention_policy_is_a_failure_with_its_duration() -> None:
    open_one = found(retentionPolicy={"retentionPeriod": "86400", "effectiveTime": "2026-01-01T00:00:00Z"})
    locked = found(retentionPolicy={"retentionPeriod": "259200", "isLocked": True})
    assert [one["bucket.retention-policy"].severity for one in (open_one, locked)] == [Severity.FAILURE] * 2
    assert "for 1 day:" in open_one["bucket.retention-policy"].text
    assert "--clear-retention-period" in open_one["bucket.retention-policy"].remedy
    assert "for 3 days:" in locked["bucket.retention-policy"].text
    assert "another bucket" in locked["bucket.retention-policy"].remedy


def test_a_default_hold_is_a_failure() -> None:
    assert found(defaultEventBasedHold=True)["bucket.default-event-based-hold"].severity is Severity.FAILURE


@pytest.mark.parametrize(("days", "severity"), [(7, Severity.NOTE), (8, Severity.WARNING), (90, Severity.WARNING)])
def test_soft_delete_is_a_note_at_its_default_and_a_warning_above(days: int, severity: Severity) -> None:
    finding = found(softDeletePolicy={"retentionDurationSeconds": str(days * 86400)})["bucket.soft-delete"]
    assert (finding.severity, finding.figures["soft_delete_s"]) == (severity, days * 86400)


def test_versioning_is_a_warning_only_while_it_is_on() -> None:
    assert found(versioning={"enabled": True})["bucket.versioning"].severity is Severity.WARNING
    assert found(versioning={"enabled": False}) == {}


@pytest.mark.parametrize(("kind", "days"), [("NEARLINE", 30), ("COLDLINE", 90), ("ARCHIVE", 365)])
def test_a_storage_class_with_a_minimum_is_a_warning_that_names_it(kind: str, days: int) -> None:
    finding = found(storageClass=kind)["bucket.storage-class"]
    assert finding.severity is Severity.WARNING
    assert f"billed for {days} days" in finding.text


def test_classes_without_a_minimum_are_ok() -> None:
    for kind in ("STANDARD", "MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY"):
        assert found(storageClass=kind) == {}


def test_a_lifecycle_rule_that_deletes_is_a_warning_or_failure() -> None:
    assert ruled(age=30) is Severity.WARNING
    assert ruled(createdBefore="2026-01-01") is Severity.WARNING
    assert ruled(age=0) is Severity.FAILURE
    assert ruled() is Severity.FAILURE


def test_a_rule_for_some_endings_says_so_and_is_a_warning() -> None:
    rule = {"action": {"type": "Delete"}, "condition": {"matchesSuffix": [".tmp", ".log"]}}
    finding = found(lifecycle={"rule": [rule]})["bucket.lifecycle"]
    assert finding.severity is Severity.WARNING
    assert "names end in .tmp or .log" in finding.text


def test_a_rule_for_versions_or_other_objects_concerns_no_lock() -> None:
    assert ruled(isLive=False, age=1) is None
    assert ruled(daysSinceNoncurrentTime=3) is None
    assert ruled(numNewerVersions=1) is None
    assert ruled(age=1, matchesPrefix=["logs/", "tmp/"]) is None
    assert ruled(age=1, matchesStorageClass=["NEARLINE"]) is None
    assert ruled(action="AbortIncompleteMultipartUpload", age=1) is None


@pytest.mark.parametrize("prefix", ["locks/", "lo", "locks/apt", "locks/.lockstead/"])
def test_a_rule_for_a_prefix_concerns_locks_above_and_below_it(prefix: str) -> None:
    assert ruled(age=1, matchesPrefix=["logs/", prefix]) is Severity.WARNING
    assert ruled("", age=1, matchesPrefix=[prefix]) is Severity.WARNING


def test_a_rule_that_moves_live_objects_is_a_warning() -> None:
    assert ruled(action="SetStorageClass", age=30) is Severity.WARNING
    assert ruled(action="SetStorageClass", age=30, isLive=False) is None


def test_a_bucket_whose_requester_pays_is_a_warning() -> None:
    assert found(billing={"requesterPays": True})["bucket.requester-pays"].severity is Severity.WARNING


def test_access_that_is_not_uniform_is_a_note() -> None:
    settings = {"uniformBucketLevelAccess": {"enabled": False}}
    assert found(iamConfiguration=settings)["bucket.uniform-access"].severity is Severity.NOTE
