"""The drawing of a lock's history."""

from __future__ import annotations

from lockstead.dashboard.changes import Event
from lockstead.dashboard.strip import LEAST, WIDTH, Bar, strip


def event(at: float, what: str, holder: str) -> Event:
    return Event(at, "apt", what, holder=holder)


def test_each_lease_is_a_bar_from_its_grant_to_its_end() -> None:
    events = [
        event(300, "granted", "c"),
        event(250, "lost", "b"),
        event(240, "revoked", "b"),
        event(200, "granted", "b"),
        event(150, "released", "a"),
        event(100, "granted", "a"),
    ]
    drawn = strip(events, {"c"}, 500)
    assert drawn is not None
    assert drawn.bars == (Bar(0, 125, "released"), Bar(250, 125, "lost"), Bar(500, 500, "held"))
    assert (drawn.since, drawn.until, drawn.lost) == (100, 500, 1)


def test_a_lease_whose_end_is_told_twice_is_one_bar() -> None:
    events = [event(200, "lost", "a"), event(190, "removed", "a"), event(100, "granted", "a")]
    drawn = strip(events, (), 200)
    assert drawn is not None
    assert drawn.bars == (Bar(0, 900, "lost"),)


def test_what_nobody_saw_begin_or_end_has_a_place_too() -> None:
    begun_before = strip([event(200, "released", "a"), event(100, "granted", "b")], {"b"}, 300)
    assert begun_before is not None
    assert begun_before.bars == (Bar(0, 500, "released"), Bar(0, 1000, "held"))
    never_ended = strip([event(200, "granted", "b"), event(100, "granted", "a")], {"b"}, 300)
    assert never_ended is not None
    assert never_ended.bars == (Bar(0, 500, "released"), Bar(500, 500, "held"))


def test_every_bar_is_inside_the_drawing_and_wide_enough_to_see() -> None:
    dates = [event(at, what, str(at)) for at in (1e-9, 1.0, 1e10, 2.5e11) for what in ("granted", "released")]
    for now in (0.0, 1.0, 1e12):
        drawn = strip(dates, {"1.0"}, now)
        assert drawn is not None
        assert all(bar.x >= 0 and bar.width >= LEAST and bar.x + bar.width <= WIDTH for bar in drawn.bars)
    assert strip([event(0.0, "granted", "a")], {"a"}, 5.0) is None
    assert strip([], (), 5.0) is None
