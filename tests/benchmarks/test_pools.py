"""What `make bench-dagster` concludes from its notes. Says nothing of how fast anything is, and needs no Dagster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.figures import cells
from tests.benchmarks.pools import THEIRS, Recovery, overlap, recovered, stays
from tests.benchmarks.stays import Stay, hand_overs


def noted(at: float, who: int) -> dict[str, Any]:
    return {"at": at, "who": who}


def test_stays_are_read_in_order_of_entering():
    found = stays([noted(2.5, 2), noted(1.0, 1)], [noted(2.0, 1)])
    assert found == [Stay(1, 0.0, 1.0, 2.0), Stay(2, 0.0, 2.5, None)]
    assert hand_overs(found) == [0.5]


def test_two_in_a_section_at_once_make_the_hand_overs_worthless():
    with pytest.raises(RuntimeError, match="overlap"):
        hand_overs(stays([noted(1.0, 1), noted(1.5, 2)], [noted(2.0, 1), noted(3.0, 2)]))


def test_an_overlap_is_how_long_the_one_before_worked_on():
    assert overlap(10.0, [9.0, 9.5]) == 0.0
    assert overlap(10.0, [9.0, 24.5]) == 14.5


def test_any_overlap_of_ours_is_a_goal_that_is_not_reached():
    found = {THEIRS: Recovery(10.0, 30.0), "redis": Recovery(1.0, 0.0), "sqlite": Recovery(1.0, 0.25)}
    redis, _, sqlite, until = recovered(found, "a pool")
    assert (redis.is_reached, redis.theirs) == (True, 30.0)
    assert not sqlite.is_reached
    assert "NO" in cells(sqlite)
    assert until.limit is None
