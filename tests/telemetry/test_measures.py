"""Events become measures: each lease and each end once, in names of a bounded number."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.errors import LossReason
from lockstead.events import (
    Acquired,
    Attached,
    BlockEntered,
    Detached,
    EngineWarning,
    LeaseDropped,
    Lost,
    NotGranted,
    ProcessEvent,
    Released,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    StoreRequest,
    Waiting,
)
from lockstead.monitor.names import LockNames
from lockstead.telemetry.measures import STORES_MAX, Meter

STORE = "redis://h/0"
ODD = ValueError("odd")


class Told:
    """A sink that keeps what it was told."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *said: self.all.append((name, *said))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def meter(told: Told) -> Meter:
    return Meter(told, LockNames.parse(["apt-*=apt", "yum"]))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (StoreRequest("create", "ok", 0.25), [("request", STORE, "create", "ok", 0.25)]),
        (NotGranted("apt-1", "a", "timeout", 2.0), [("acquired", STORE, "apt", "timeout", 2.0)]),
        (Renewed("apt-1", "a", 9.0), [("renewal", STORE, "apt", "ok")]),
        (RenewalFailed("yum", "a", ODD, 1.0), [("renewal", STORE, "yum", "failed")]),
        (Lost("zip", "a", LossReason.TAKEN, 1, ""), [("lost", STORE, "other", "taken")]),
        (Lost("apt-1", "a", LossReason.ENDED, 1, ""), []),
        (Released("apt-1", "of another process", True, ""), []),
        (Detached("apt-1", "a"), []),
        (Waiting("apt-1", "a", "b", None), []),
        (BlockEntered("apt-1", "a"), []),
        (EngineWarning("apt-1", "odd"), []),
    ],
)
def test_each_event_is_its_measure(meter: Meter, told: Told, event: ProcessEvent, said: list[object]) -> None:
    meter(event, STORE)
    assert told.all == said


@pytest.mark.parametrize(
    "end",
    [
        Released("apt-1", "a", True, ""),
        ReleaseFailed("apt-1", "a", ODD),
        Detached("apt-1", "a"),
        LeaseDropped("apt-1", "a"),
        Lost("apt-1", "a", LossReason.ENDED, 1, ""),
    ],
)
def test_a_lease_ends_with_the_first_event_that_ends_it(meter: Meter, told: Told, end: ProcessEvent) -> None:
    meter.record(Acquired("apt-1", "a", 1, 0.5), STORE, 100.0)
    assert told.all == [("acquired", STORE, "apt", "granted", 0.5), ("began", STORE, "apt")]
    meter.record(end, STORE, 102.5)
    meter.record(Released("apt-1", "a", True, ""), STORE, 103.0)
    assert told.all[2:] == [("ended", STORE, "apt", 2.5)]


def test_a_member_is_a_lease_of_its_own(meter: Meter, told: Told) -> None:
    meter.record(Acquired("apt-1", "a", 1, 0.0), STORE, 0.0)
    meter.record(Attached("apt-1", "a", "m1"), STORE, 1.0)
    meter.record(Attached("apt-1", "a", "m2"), STORE, 2.0)
    meter.record(Detached("apt-1", "a", "m1"), STORE, 5.0)
    meter.record(Released("apt-1", "a", True, ""), STORE, 6.0)
    meter.record(LeaseDropped("apt-1", "a", "m2"), STORE, 8.0)
    assert [one for one in told.all if one[0] == "ended"] == [("ended", STORE, "apt", held) for held in (4.0, 6.0, 6.0)]


def test_the_same_key_in_two_stores_is_two_leases(meter: Meter, told: Told) -> None:
    for store in ("one", "two"):
        meter.record(Acquired("yum", "a", 1, 0.0), store, 0.0)
    meter.record(Released("yum", "a", True, ""), "two", 1.0)
    assert told.all[-1] == ("ended", "two", "yum", 1.0)


def test_the_number_of_stores_is_bounded(meter: Meter, told: Told) -> None:
    for number in range(STORES_MAX + 3):
        meter(StoreRequest("read", "ok", 0.0), f"sqlite:///{number}")
    assert len({one[1] for one in told.all}) == STORES_MAX + 1
    assert told.all[-1][1] == "other"
    meter(StoreRequest("read", "ok", 0.0), "sqlite:///0")
    assert told.all[-1][1] == "sqlite:///0"


def test_a_forked_child_holds_no_lease(meter: Meter, told: Told) -> None:
    meter(Acquired("yum", "a", 1, 0.0), STORE)
    meter.after_fork()
    meter(Released("yum", "a", True, ""), STORE)
    assert [one[0] for one in told.all] == ["acquired", "began", "forked"]
