"""What `make bench-prefect` concludes from its notes. Says nothing of how fast anything is, and needs no Prefect."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.figures import cells
from tests.benchmarks.recoveries import PATIENCE, beside
from tests.benchmarks.stays import THEIRS, Stay, by_rounds, hand_overs, lines, longest_wait, recoveries, stays


def noted(what: str, at: float, *, who: int = 1, place: str = "a", left: int = 1) -> dict[str, Any]:
    return {"what": what, "at": at, "who": who, "place": place, "left": left}


def test_waits_are_computed_from_the_first_request():
    lines = [
        noted("asks", 1.0),
        noted("enters", 1.1),
        noted("asks", 1.2, who=2),
        noted("leaves", 2.0),
        noted("fails", 2.1, who=2),
        noted("asks", 3.1, who=2),
        noted("enters", 3.2, who=2),
    ]
    assert stays(lines) == [Stay(1, 1.0, 1.1, 2.0), Stay(2, 1.2, 3.2, None)]
    assert longest_wait(stays(lines), 0.5) == pytest.approx(4.0)


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path):
    notes = tmp_path / "notes"
    assert lines(notes) == []
    notes.write_text(f"{json.dumps(noted('asks', 1.0))}\n{{'wh")
    assert lines(notes) == [noted("asks", 1.0)]


def test_a_hand_over_counts_only_where_the_next_one_was_waiting():
    waiting, late = Stay(2, 0.5, 1.25, 2.0), Stay(3, 2.5, 2.6, 3.0)
    assert hand_overs([Stay(1, 0.0, 0.0, 1.0), waiting, late]) == [0.25]


@pytest.mark.parametrize("ended", [None, 1.5])
def test_an_overlap_in_a_section_fails_the_measurement(ended: float | None):
    with pytest.raises(RuntimeError, match="overlap"):
        hand_overs([Stay(1, 0.0, 0.0, ended), Stay(2, 0.5, 1.25, 2.0)])


def test_the_ratio_is_of_medians_and_its_spread_of_rounds():
    pair = by_rounds([[1.0, 1.0, 9.0], [2.0, 2.0, 2.0]], [[10.0, 10.0, 90.0], [10.0, 10.0, 10.0]])
    assert (pair.ours, pair.theirs, pair.ratio, pair.low, pair.high) == (2.0, 10.0, 0.2, 0.1, 0.2)


def test_a_section_has_recovered_when_it_is_entered_again():
    lines = [noted("enters", 1.0), noted("enters", 2.0, place="b"), noted("asks", 3.0), noted("enters", 62.0)]
    assert recoveries(lines, ["a", "b"], since=5.0) == [57.0, None]


def test_who_recovers_later_has_not_reached_the_goal():
    kinds = (THEIRS, "Redis", "SQLite")
    quicker, slower = beside("killed", kinds, [[60.0, 61.0], [54.0, 61.0], [66.0, 64.0]], "theirs")
    assert (quicker.is_reached, slower.is_reached) == (True, False)
    assert (quicker.to_reach, quicker.spread) == ("≤ 1 ×", "0.90-1.00")


def test_where_theirs_does_not_recover_ours_has_to():
    kinds = (THEIRS, "Redis", "SQLite")
    recovered, not_recovered = beside("killed", kinds, [[60.0, None], [58.0, 59.0], [58.0, None]], "theirs")
    assert (recovered.ours, recovered.limit, recovered.is_reached) == (58.5, PATIENCE, True)
    assert recovered.against == "theirs: not within 240 s"
    assert (not_recovered.ours, not_recovered.is_reached) == (math.inf, False)
    assert "NO" in cells(not_recovered)


def test_ours_that_does_not_recover_is_a_row_that_says_so():
    (row,) = beside("killed", (THEIRS, "Redis"), [[60.0], [None]], "theirs")
    assert not row.is_reached
    assert "NO" in cells(row)
