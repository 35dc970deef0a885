"""Every relation between settings is checked when they are built, each with its own line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstead.settings import SETTING_NAMES, Given, Settings
from lockstead.values import seconds


def test_the_defaults_follow_from_the_ttl() -> None:
    made = Settings.make()
    assert (made.ttl, made.renew_every, made.request_timeout, made.abort_margin) == (300.0, 37.5, 30.0, 50.0)
    short = Settings.make(ttl="40s")
    assert (short.renew_every, short.request_timeout) == (5.0, 4.0)
    assert short.abort_margin == pytest.approx(40 / 6)


def test_at_the_defaults_a_loss_is_told_with_half_the_ttl_left() -> None:
    made = Settings.make()
    assert made.renew_every * (1 + made.max_failures) == 150.0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ttl": 0.5}, "ttl is 0.5 s; it must be at least 1 s"),
        ({"max_failures": 0}, "max_failures is 0; it must be at least 1"),
        ({"drift": 0.5}, "drift is 0.5; it must be at least 0 and below 0.5"),
        ({"drift": -0.1}, "drift is -0.1; it must be at least 0 and below 0.5"),
        ({"renew_every": 0}, "renew_every must be above 0"),
        (
            {"renew_every": 70},
            "(1 + max_failures) * renew_every + abort_margin is 330 s, above ttl * (1 - drift) = 297",
        ),
        (
            {"max_failures": 6},
            "tolerate fewer failures, or use a longer ttl or a smaller abort_margin",
        ),
        ({"abort_margin": 150}, "(1 + max_failures) * renew_every + abort_margin is 300 s"),
        ({"request_timeout": 37.5}, "request_timeout is 37.5 s; it must be above 0 and below renew_every (37.5 s)"),
        ({"request_timeout": 0}, "request_timeout is 0 s; it must be above 0"),
        ({"backoff_min": 0}, "backoff_min is 0 s and backoff_max 5 s; needed is 0 < backoff_min <= backoff_max"),
        ({"backoff_min": 6}, "backoff_min is 6 s and backoff_max 5 s"),
        ({"lock_delay": 61}, "lock_delay is 61 s; it may be at most 60 s"),
        ({"foreign_ttl": 0.1}, "foreign_ttl is 0.1 s; it must be at least 1 s"),
        ({"expected": 60, "auto_unlock_after": 59}, "auto_unlock_after is 59 s, before the lock becomes overdue (60 s"),
        ({"alert_after": 9, "auto_unlock_after": 8}, "auto_unlock_after is 8 s, before the lock becomes overdue (9 s"),
        ({"drift": "much"}, "drift must be a number, not 'much'"),
        ({"max_failures": "some"}, "max_failures must be a whole number, not 'some'"),
        ({"owner": "  "}, "owner must be printable text"),
        ({"purpose": "a\nb"}, "purpose must be printable text"),
        ({"ttl": "soon"}, "ttl 'soon' is not a duration"),
        ({"ttl": -3}, "ttl must be a finite, non-negative duration"),
        ({"ttl": float("nan")}, "ttl must be a finite, non-negative duration"),
    ],
)
def test_an_impossible_relation_is_refused_with_its_own_message(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        Settings.make(**given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ttl": None}, "ttl must be seconds"),
        ({"ttl": True}, "ttl must be seconds"),
        ({"owner": 3}, "owner must be text"),
        ({"labels": {"a": 1}}, "labels must map text to text"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Settings.make(**given)


@pytest.mark.parametrize("given", ["5m", "300", 300, timedelta(minutes=5), "PT5M", "4m60s"])
def test_durations_come_in_many_spellings(given: Any) -> None:
    assert Settings.make(ttl=given).ttl == 300.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("P1Y2M3DT4H5M6S", ((365 + 60 + 3) * 24 + 4) * 3600 + 306),
        ("P2W", 14 * 86400),
        ("PT0,5H", 1800),
        ("PT1.5M", 90),
        *((malformed, None) for malformed in ("P", "PT", "P1DT", "PT5", "PT5m", "P1M1Y", "-PT5M", "PT1.S", "P1D P1D")),
    ],
)
def test_iso_8601_durations(given: str, expected: float | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="not a duration"):
            seconds(given, "ttl")
    else:
        assert seconds(given, "ttl") == expected


def test_settings_scale_with_the_ttl_of_the_lease() -> None:
    scaled = Settings.make(ttl=100).for_ttl(10)
    assert (scaled.ttl, scaled.renew_every, scaled.request_timeout) == (10, 1.25, 1.0)
    scaled.check()


def test_renewing_later_than_an_eighth_of_the_ttl_warns() -> None:
    assert not Settings.make().renews_late
    assert Settings.make(renew_every=40).renews_late


def test_the_drains_bound_lets_a_dead_registration_expire() -> None:
    made = Settings.make(ttl=100)
    assert made.drain_bound(2.0) == pytest.approx(101.0 + 2.0 + 20.0)
    assert made.drain_bound(2.0, observing=True) == pytest.approx(2 * 123.0)
    assert Settings.make(drain=7).drain_bound(2.0, observing=True) == 7.0


def test_typed_keywords_of_settings_match_the_settings() -> None:
    made = {name: kind for name, kind in Settings.make.__annotations__.items() if name != "return"}
    assert {name: kind.__forward_arg__ for name, kind in Given.__annotations__.items()} == made
    assert set(made) == SETTING_NAMES
