"""Every benchmark measures what it says, and returns its rows. No timing is checked."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer
from tests.benchmarks import money, networked
from tests.benchmarks.__main__ import BENCHMARKS
from tests.benchmarks.figures import TINY, Row, cells, in_turn, machine, markdown, paired


# peers print warnings: of deprecated features, and of what they leave open
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_and_gives_its_figures(name: str) -> None:
    rows = list(BENCHMARKS[name](TINY))
    assert rows
    for row in rows:
        assert math.isfinite(row.ours)
        assert row.what
        assert len(cells(row)) == 8
        if row.ratio is not None:
            assert row.ratio > 0
            assert row.against


def test_what_is_counted_does_not_depend_on_the_machine() -> None:
    counted = {row.what: row for name in ("gcs", "waiters") for row in BENCHMARKS[name](TINY) if "µs" not in row.unit}
    assert [row.ours for what, row in counted.items() if "requests" in what] == [2]
    assert [row.ours for what, row in counted.items() if "writes" in what] == [0]
    assert [row.is_reached for what, row in counted.items() if "reads" in what] == [True]


def test_ours_and_theirs_are_measured_in_turn_and_change_places() -> None:
    calls: list[str] = []
    size = TINY.__class__(rounds=2, times=1)
    in_turn(lambda: calls.append("ours"), lambda: calls.append("theirs"), size)
    assert calls == ["ours", "theirs", "ours", "theirs", "theirs", "ours"]


def test_a_ratio_is_that_of_the_rounds_and_not_of_the_medians() -> None:
    pair = paired([1.0, 10.0, 100.0], [1.0, 5.0, 25.0])
    assert (pair.ours, pair.theirs, pair.ratio, pair.low, pair.high) == (10.0, 5.0, 2.0, 1.0, 4.0)


def test_a_row_says_whether_it_is_within_its_limit() -> None:
    assert Row("a", 5.0, "ms", 5.0).is_reached
    assert not Row("a", 5.1, "ms", 5.0).is_reached
    assert Row("a", 99.0, "µs", 2.0, "b", 50.0, 1.98, of_ratio=True).is_reached
    assert not Row("a", 99.0, "µs", 2.0, "b", 40.0, 2.5, of_ratio=True).is_reached


def test_the_table_says_where_it_was_measured() -> None:
    written = markdown([Row("a", 5.0, "ms", 5.0)], machine((0.0, 0.0, 0.0)))
    assert "cores" in written
    assert "| a | 5 ms; ≤5 ms |  |" in written


def test_a_figure_is_one_line_with_all_that_it_is_compared_with() -> None:
    rows = [
        Row("a", 5.0, "ms", 1.0),
        Row("a", 5.0, "ms", 2.0, "b", 2.0, 2.5, "2.00-3.00", of_ratio=True),
        Row("a", 5.0, "ms", None, "c", 10.0, 0.5),
    ]
    line = "| a | 5 ms; ≤1 ms: **NO** | b 2 ms: 2.50 (2.00-3.00); ≤2×: **NO**<br>c 10 ms: 0.50 |"
    assert markdown(rows, "here").splitlines()[4:] == [line]


def test_the_prices_are_of_the_requests_that_a_lock_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsServer(buckets=["bucket"]) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        with lockstead.connect("gs://bucket/locks", listener=lambda _event: None) as client:
            lock = client.lock("apt")
            with lock.hold() as lease:
                lease.sequencer()  # the first token of a key makes its companion
            server.requests.clear()
            with lock.hold():
                pass
            assert server.requests.counts() == money.CYCLE
            server.requests.clear()
            with lock.hold() as lease:
                lease.sequencer()
            assert server.requests.counts() == Counter(money.CYCLE) + Counter(money.TOKEN)


def test_the_prices_in_the_documentation_are_those_worked_out() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "benchmarks.md").read_text("utf-8")
    for row in money.markdown():
        assert row in page


def test_several_are_measured_in_rotating_turns() -> None:
    calls: list[str] = []
    kinds = ("a", "b", "c")
    taken = networked.in_turn({kind: partial(calls.append, kind) for kind in kinds}, rounds=3, times=1)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert [list(taken[kind]) for kind in kinds] == [[0, 1, 2]] * 3


def test_a_slow_peer_is_compared_by_its_own_rounds() -> None:
    taken = {"lockstead": {0: 1.0, 1: 50.0, 2: 60.0, 5: 2.0}, "slow": {0: 2.0, 5: 4.0}}
    goal = networked.Goal("slow", 0.5)
    (row,) = networked._beside("a", taken, ["slow"], [goal], "ms", {})
    assert (row.ours, row.theirs, row.ratio) == (1500.0, 3000.0, 0.5)
    assert row.is_reached


def test_a_peer_that_cannot_run_is_a_row_that_says_so() -> None:
    taken = {"lockstead": {0: 1.0}}
    goals = [networked.Goal("", 1.0, of_ratio=False), networked.Goal("absent", 0.5)]
    alone, beside = networked._beside("a", taken, ["absent"], goals, "ms", {"absent": "ImportError: no"})
    assert (alone.ours, alone.limit, alone.is_reached) == (1000.0, 1.0, False)
    assert "cannot run here: ImportError: no" in beside.against
    assert beside.to_reach == ""


def test_what_one_in_a_hundred_exceeds() -> None:
    assert networked.late(range(100)) == 98
    assert networked.late([3.0, 1.0, 2.0]) == 3.0
