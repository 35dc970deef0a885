"""Metrics of stores: right values, few names, and text that prometheus_client itself can read."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lockstead.monitor.names import NAMES_MAX, OTHER, LockNames
from lockstead.monitor.openmetrics import Metrics
from lockstead.monitor.rounds import Round
from lockstead.views import LockInfo, Permits

NOW = 1_800_000_000.0


def info(key: str, **more: Any) -> LockInfo:
    given = {"holder": "a/1", "owner": "a", "incarnation": "1", "ttl": 300.0, "age": 100.0, "acquired_epoch": NOW - 500}
    return LockInfo(key=key, **{**given, **more})


def shown(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    return {
        (sample.name.removeprefix("lockstead_"), sample.labels["store"], sample.labels.get("lock", "")): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def watched(metrics: Metrics, *infos: LockInfo, error: str | None = None, number: int = 1) -> None:
    watcher = metrics.of("memory:")
    watcher.began(NOW)
    for one in infos:
        watcher.saw(one)
    watcher.ended(Round("memory:", number, NOW, 0.1, len(infos), error))


def test_the_values_of_a_name_are_those_of_its_leases() -> None:
    metrics = Metrics(LockNames.parse(["apt-*=apt"]))
    watched(
        metrics,
        info("apt-1", alert_epoch=NOW - 1),
        info("apt-2", age=250.0, acquired_epoch=NOW - 900, wanted_by="w/1"),
        info("apt-3", is_expired=True, alert_epoch=NOW - 1, acquired_epoch=NOW - 9999),
        info("apt-4", alert_epoch=NOW - 1, revoked_by="anna"),
        info("odd", decode_error="damaged"),
    )
    metrics.of("memory:").reap("apt-9")
    assert shown(metrics) == {
        ("held_seconds", "memory:", "apt"): 900,
        ("ttl_left_seconds", "memory:", "apt"): 50,
        ("overdue", "memory:", "apt"): 1,
        ("overdue", "memory:", OTHER): 0,
        ("waiters", "memory:", "apt"): 1,
        ("waiters", "memory:", OTHER): 0,
        ("reaped_total", "memory:", "apt"): 1,
        ("scrape_errors_total", "memory:", ""): 0,
        ("scrape_timestamp_seconds", "memory:", ""): NOW,
    }


def test_readers_and_permits_are_counted_one_by_one() -> None:
    metrics = Metrics(LockNames.parse(["*"]))
    late = [info("k", alert_epoch=NOW - 1), info("k", alert_epoch=NOW + 1), info("k", alert_epoch=NOW - 2)]
    watched(
        metrics,
        info("index", mode="shared", readers=tuple(late)),
        info("pool", mode="permits", permits=Permits("pool", 3, tuple(late), info("pool"))),
    )
    values = shown(metrics)
    assert values["overdue", "memory:", "index"] == values["overdue", "memory:", "pool"] == 2
    assert values["waiters", "memory:", "index"] == 0
    assert values["waiters", "memory:", "pool"] == 1


def test_a_failed_round_keeps_the_last_values_and_is_counted() -> None:
    metrics = Metrics(LockNames.parse(["*"]))
    watched(metrics, info("apt"))
    watched(metrics, info("yum"), error="down", number=2)
    values = shown(metrics)
    assert values["held_seconds", "memory:", "apt"] == 500
    assert values["scrape_errors_total", "memory:", ""] == 1
    assert not any(lock == "yum" for _, _, lock in values)
    watched(metrics, number=3)
    assert not any(lock == "apt" for _, _, lock in shown(metrics))


def test_however_many_keys_there_are_the_names_are_bounded_and_hostile_ones_readable() -> None:
    metrics = Metrics(LockNames.parse(["*"]))
    watched(metrics, *(info(f'k{number}"\n\\\x1b{{}}' + "x" * 500) for number in range(10 * NAMES_MAX)))
    locks = {lock for _, _, lock in shown(metrics) if lock}
    assert len(locks) == NAMES_MAX
    assert OTHER in locks
    assert all(lock.isprintable() and len(lock.encode()) <= 100 for lock in locks)


@pytest.mark.parametrize("label", ["", "=", "=apt", "apt-*=", "a=\x1b", "a=" + "x" * 101])
def test_a_lock_label_that_is_none_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match=r"^a lock label is PATTERN=NAME"):
        LockNames.parse([label])


def test_too_many_names_are_refused_and_no_label_names_no_lock() -> None:
    with pytest.raises(ValueError, match="there may be 99"):
        LockNames.parse([f"{number}={number}" for number in range(NAMES_MAX)])
    assert LockNames().name("apt") == OTHER
    names = LockNames.parse(["apt-*=apt", "apt-x=never", "y"])
    assert [names.name(key) for key in ("apt-x", "y", "Y", "apt")] == ["apt", "y", OTHER, OTHER]
