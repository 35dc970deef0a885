"""The rules of the reaper, in virtual time, and a planted fault for each of them that these tests find."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from lockstead.reaper import rules
from lockstead.views import LockInfo

NOW = 1_800_000_000.0
REPEAT = 600.0


def lease(**more: Any) -> LockInfo:
    """Return a lease that was acquired 1000 s ago and renewed 100 s ago, its clock like this machine's."""
    given: dict[str, Any] = {
        "key": "apt",
        "holder": "a/1",
        "owner": "a",
        "incarnation": "7",
        "ttl": 300.0,
        "age": 100.0,
        "acquired_epoch": NOW - 1000,
        "expires_epoch": NOW + 200,
    }
    return LockInfo(**{**given, **more})


def overdue(**more: Any) -> LockInfo:
    return lease(**{"alert_epoch": NOW - 50, **more})


def due(**more: Any) -> LockInfo:
    return overdue(**{"auto_unlock_epoch": NOW - 10, **more})


def acts(r: ModuleType, one: LockInfo, noted: Any = None, now: float = NOW, ticks: float = 0.0) -> list[str]:
    return [act.value for act in r.decide(one, noted, now, ticks, REPEAT)]


def told(r: ModuleType, alerted_at: float = 0.0, **more: Any) -> Any:
    return r.Noted(**{"alerted_at": alerted_at, "alerts": 1, "is_told": True, **more})


def a_crossing_is_alerted_on_at_once(r: ModuleType) -> None:
    assert acts(r, lease()) == []
    assert acts(r, lease(alert_epoch=NOW + 1)) == []
    assert acts(r, lease(alert_epoch=NOW)) == ["alert"]
    assert acts(r, overdue()) == ["alert"]


def an_alert_is_repeated_once_each_repeat(r: ModuleType) -> None:
    assert acts(r, overdue(), told(r), ticks=REPEAT - 1) == []
    assert acts(r, overdue(), told(r), ticks=REPEAT) == ["alert"]
    assert acts(r, overdue(), told(r, alerted_at=REPEAT), ticks=REPEAT + 1) == []


def nothing_is_unlocked_that_did_not_ask(r: ModuleType) -> None:
    assert acts(r, overdue(), told(r), now=NOW + 1e6) == []


def an_unlock_waits_for_its_time(r: ModuleType) -> None:
    assert acts(r, due(auto_unlock_epoch=NOW + 1), told(r)) == []
    assert acts(r, due(), told(r)) == ["revoke"]


def no_lease_is_revoked_in_the_round_of_its_first_alert(r: ModuleType) -> None:
    assert acts(r, due()) == ["alert"]
    assert acts(r, due(), r.Noted(is_told=True)) == ["alert"]


def an_unlock_waits_until_the_alert_was_tried(r: ModuleType) -> None:
    assert acts(r, due(), told(r, is_told=False), ticks=r.PATIENCE - 1) == []
    assert acts(r, due(), told(r, is_told=True), ticks=1) == ["revoke"]


def a_receiver_that_hangs_does_not_prevent_an_unlock(r: ModuleType) -> None:
    assert acts(r, due(), told(r, is_told=False), ticks=r.PATIENCE) == ["revoke"]


def an_unlock_without_an_alert_time_is_alerted_on_first(r: ModuleType) -> None:
    assert acts(r, due(alert_epoch=None)) == ["alert"]
    assert acts(r, due(alert_epoch=None), told(r)) == ["revoke"]
    assert acts(r, due(alert_epoch=NOW + 500)) == ["alert"]


def an_instant_before_the_acquisition_unlocks_nothing(r: ModuleType) -> None:
    for at in (0.0, NOW - 1001):
        assert acts(r, due(auto_unlock_epoch=at), told(r)) == []
    assert acts(r, due(auto_unlock_epoch=NOW - 1000), told(r)) == ["revoke"]
    assert acts(r, due(acquired_epoch=None), told(r)) == []


def a_writers_clock_that_is_behind_makes_nothing_early(r: ModuleType) -> None:
    # it says 1970: 1000 s after its start it was renewed last, 100 s ago, and asked for an alert at 1200
    early = {"acquired_epoch": 100.0, "expires_epoch": 1300.0, "alert_epoch": 1200.0, "auto_unlock_epoch": 1250.0}
    assert acts(r, lease(**early)) == []
    assert acts(r, lease(**early), told(r)) == []
    later = {**early, "expires_epoch": 1500.0}
    assert acts(r, lease(**later)) == ["alert"]
    assert acts(r, lease(**later), told(r)) == ["revoke"]


def this_clock_that_is_behind_makes_nothing_early(r: ModuleType) -> None:
    assert acts(r, due(), now=NOW - 51) == []
    assert acts(r, due(), told(r), now=NOW - 11) == []


def a_store_that_shows_no_age_is_judged_by_this_clock(r: ModuleType) -> None:
    assert acts(r, due(age=None, expires_epoch=None)) == ["alert"]
    assert acts(r, due(age=None), told(r)) == ["revoke"]


def what_is_over_or_not_ours_is_left_alone(r: ModuleType) -> None:
    for more in ({"is_expired": True}, {"closing": True}, {"revoked_by": "anna"}, {"ttl": None}):
        for noted in (None, told(r)):
            assert acts(r, due(**more), noted) == [], more


def a_revocation_of_a_reaper_is_completed_once(r: ModuleType) -> None:
    revoked = due(revoked_by="lockstead reap host/1")
    assert acts(r, revoked) == ["complete"]
    assert acts(r, revoked, told(r)) == ["complete"]
    assert acts(r, revoked, told(r, is_done=True)) == []
    assert acts(r, replace(revoked, is_expired=True)) == []


CHECKS: list[Callable[[ModuleType], None]] = [
    found
    for name, found in inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    if list(inspect.signature(found).parameters) == ["r"] and name not in ("told", "acts")
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_h38_the_rules_hold(check: Callable[[ModuleType], None]) -> None:
    check(rules)


FAULTS = [
    ("at is None or now < at", "at is None", this_clock_that_is_behind_makes_nothing_early),
    ("writers is None or writers >= at", "True", a_writers_clock_that_is_behind_makes_nothing_early),
    ("writers is None or writers >= at", "writers is not None and writers >= at",
     a_store_that_shows_no_age_is_judged_by_this_clock),
    ("- lease.ttl + lease.age", "- lease.ttl", a_writers_clock_that_is_behind_makes_nothing_early),
    ("lease.is_foreign or ", "", what_is_over_or_not_ours_is_left_alone),
    ("lease.is_expired or lease.closing", "lease.closing", what_is_over_or_not_ours_is_left_alone),
    ("lease.is_expired or lease.closing", "lease.is_expired", what_is_over_or_not_ours_is_left_alone),
    (" or lease.revoked_by is not None)", ")", what_is_over_or_not_ours_is_left_alone),
    (" or may_unlock(lease, now)", "", an_unlock_without_an_alert_time_is_alerted_on_first),
    (" and at >= since", "", an_instant_before_the_acquisition_unlocks_nothing),
    (" and since is not None and at >= since", "", an_instant_before_the_acquisition_unlocks_nothing),
    ("at >= since", "at > since", an_instant_before_the_acquisition_unlocks_nothing),
    ("ticks - noted.alerted_at >= repeat", "True", an_alert_is_repeated_once_each_repeat),
    ("ticks - noted.alerted_at >= repeat", "False", an_alert_is_repeated_once_each_repeat),
    ("or noted.alerts == 0 or not may_unlock(lease, now)", "or not may_unlock(lease, now)",
     no_lease_is_revoked_in_the_round_of_its_first_alert),
    (" or not may_unlock(lease, now):", ":", nothing_is_unlocked_that_did_not_ask),
    ("noted.is_told or ticks", "True or ticks", an_unlock_waits_until_the_alert_was_tried),
    ("noted.is_told or ticks", "ticks", an_unlock_waits_until_the_alert_was_tried),
    (" or ticks - noted.alerted_at >= PATIENCE", "", a_receiver_that_hangs_does_not_prevent_an_unlock),
    (" and lease.revoked_by.startswith(BY)", "", what_is_over_or_not_ours_is_left_alone),
    ("noted is None or not noted.is_done", "True", a_revocation_of_a_reaper_is_completed_once),
    ("lease.revoked_by.startswith(BY) and not lease.is_expired", "lease.revoked_by.startswith(BY)",
     a_revocation_of_a_reaper_is_completed_once),
    ("            yield Act.COMPLETE\n", "            pass\n", a_revocation_of_a_reaper_is_completed_once),
    ("yield Act.ALERT", "pass", a_crossing_is_alerted_on_at_once),
    ("yield Act.REVOKE", "pass", an_unlock_waits_for_its_time),
]  # fmt: skip
"""Planted faults: what stands in the rules, what is put there, and the test that finds it."""


@pytest.mark.parametrize(
    ("sound", "faulty", "check"), FAULTS, ids=[f"{n}-{f[2].__name__}" for n, f in enumerate(FAULTS)]
)
def test_a_planted_fault_is_found(sound: str, faulty: str, check: Callable[[ModuleType], None]) -> None:
    source = inspect.getsource(rules)
    assert source.count(sound) == 1, f"{sound!r} stands {source.count(sound)} times in the rules"
    broken = ModuleType("tests.reaper.broken_rules")
    sys.modules[broken.__name__] = broken
    exec(compile(source.replace(sound, faulty), "rules", "exec"), broken.__dict__)  # the source is our own
    with pytest.raises(AssertionError):
        check(broken)
