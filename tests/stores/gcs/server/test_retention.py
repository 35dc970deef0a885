"""A bucket that keeps what it has: what a retention policy and a hold refuse, and in which words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from gcs_emulator import GcsServer, ManualClock
from tests.stores.gcs.server.driver import Driver

PERIOD = 3600.0


@dataclass(frozen=True, slots=True)
class Row:
    promise: str
    operation: str
    given: str
    status: int


TABLE = (
    Row("what was never there can be made", "insert", "absent", 200),
    Row("a young object cannot be overwritten", "insert", "young", 403),
    Row("a young object cannot be deleted", "delete", "young", 403),
    Row("a young object cannot be copied over", "copy", "young", 403),
    Row("a young object cannot be rewritten over", "rewrite", "young", 403),
    Row("a young object's descriptions can be changed", "patch", "young", 200),
    Row("a change of descriptions makes nothing younger", "delete", "patched, then old", 204),
    Row("an old object can be overwritten", "insert", "old", 200),
    Row("an old object can be deleted", "delete", "old", 204),
    Row("a precondition is judged first", "delete unless", "young", 412),
    Row("a held object cannot be deleted, however old", "delete", "held, old", 403),
    Row("a held object cannot be overwritten", "insert", "held, old", 403),
    Row("a held object's descriptions can be changed", "patch", "held, old", 200),
    Row("an object whose hold was taken off can be deleted", "delete", "released, old", 204),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture
def keeping(clock: ManualClock) -> Iterator[GcsServer]:
    with GcsServer(clock=clock) as server:
        yield server


def play(driver: Driver, operation: str) -> httpx.Response:
    match operation:
        case "insert":
            return driver.insert("x")
        case "delete":
            return driver.delete("x")
        case "delete unless":
            return driver.delete("x", {"ifGenerationMatch": "1"})
        case "patch":
            return driver.patch("x")
        case "copy":
            return driver.copy("source", "x")
        case "rewrite":
            return driver.copy("source", "x", verb="rewriteTo")
    raise ValueError(operation)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.promise)
def test_row(keeping: GcsServer, clock: ManualClock, row: Row) -> None:
    is_held = row.given.startswith(("held", "released"))
    keeping.create_bucket(
        "kept",
        **({"defaultEventBasedHold": True} if is_held else {"retentionPolicy": {"retentionPeriod": str(int(PERIOD))}}),
    )
    with httpx.Client(base_url=keeping.url, timeout=30) as http:
        driver = Driver(http, "kept")
        driver.insert("source").raise_for_status()
        if row.given != "absent":
            driver.insert("x").raise_for_status()
        if row.given.startswith("released"):
            driver.patch("x", changes={"eventBasedHold": False}).raise_for_status()
        clock.advance(PERIOD - 1)
        if row.given.startswith("patched"):
            driver.patch("x").raise_for_status()
        if row.given.endswith("old"):
            clock.advance(2)
        before = driver.get("x")
        answer = play(driver, row.operation)
        assert answer.status_code == row.status, answer.text
        if answer.status_code >= 400:
            assert driver.get("x").json() == before.json()
        if answer.status_code == 403:
            assert refused_as_the_service_does(answer.json()["error"], is_held=is_held)


def refused_as_the_service_does(error: dict[str, object], *, is_held: bool) -> bool:
    errors = error["errors"]
    assert isinstance(errors, list)
    if is_held:
        assert error["message"] == (
            "Object 'kept/x' is under active Event-Based hold and cannot be deleted, overwritten or archived until "
            "hold is removed."
        )
        return errors[0]["reason"] == "forbidden"
    assert str(error["message"]).startswith(
        "Object 'kept/x' is subject to bucket's retention policy or object retention and cannot be deleted or "
        "overwritten until 2023-11-14T23:13:20"
    )
    return errors[0]["reason"] == "retentionPolicyNotMet"


def test_a_policy_that_is_taken_off_lets_go(keeping: GcsServer) -> None:
    keeping.create_bucket("kept", retentionPolicy={"retentionPeriod": "3600"})
    with httpx.Client(base_url=keeping.url, timeout=30) as http:
        driver = Driver(http, "kept")
        driver.insert("x").raise_for_status()
        assert driver.delete("x").status_code == 403
        http.patch("/storage/v1/b/kept", json={"retentionPolicy": None}).raise_for_status()
        assert driver.delete("x").status_code == 204
