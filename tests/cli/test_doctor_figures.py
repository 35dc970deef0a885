"""The arithmetic behind what `lockstead doctor` says of clocks and pace."""

from __future__ import annotations

import pytest

from lockstead.cli.doctor.figures import of_pace, of_time, percentile, recommended_ttl
from lockstead.cli.doctor.prober import TimedAnswer
from lockstead.protocol.commands import Snapshot, StoreClock, TokenSource, Traits
from lockstead.stores.examination import Severity
from lockstead.stores.gcs.store import TRAITS as DATED

SHARED = Traits("x", "x", StoreClock.ONE_CLOCK, TokenSource.NONE)
EPOCH = 1_700_000_000.0


def sight(updated: float | None, now: float | None, *, wall: float = 0.0, took: float = 0.1) -> TimedAnswer:
    """A Create at `wall` seconds after the epoch of this test, by the caller's wall clock."""
    at = None if updated is None else EPOCH + updated
    stored = None if now is None else EPOCH + now
    return TimedAnswer("Create", Snapshot({}, "1", "1", at, stored), 5.0, 5.0 + took, EPOCH + wall, EPOCH + wall + took)


def severities(answers: list[TimedAnswer], traits: Traits = DATED) -> dict[str, Severity]:
    return {finding.check: finding.severity for finding in of_time(answers, traits)}


def test_a_date_within_the_tolerance_is_ok_beyond_it_a_warning() -> None:
    assert severities([sight(0.9, 0.0)])["clock.calibration"] is Severity.OK
    # behind: updated - Date + the time between send and receipt is above 2 s
    assert severities([sight(1.95, 0.0)])["clock.calibration"] is Severity.WARNING
    # ahead: Date + its step of 1 s - updated is above 2 s
    assert severities([sight(0.0, 1.0)])["clock.calibration"] is Severity.OK
    assert severities([sight(-0.1, 1.0)])["clock.calibration"] is Severity.WARNING


def test_a_majority_of_uncalibrated_answers_is_a_warning() -> None:
    good, bad = sight(0.5, 0.0), sight(0.5, 0.0, took=9.0)
    kinds = [severities([good] * most + [bad] * 2)["clock.calibration"] for most in (1, 2)]
    assert kinds == [Severity.WARNING, Severity.OK]
    findings = {one.check: one for one in of_time([good, bad], DATED)}
    assert "1 of 2" in findings["clock.calibration"].text
    assert findings["clock.calibration"].figures["date_minus_updated_min_s"] == -0.5
    assert findings["clock.calibration"].figures["date_minus_updated_max_s"] == -0.5
    assert severities([sight(0.5, 0.0), sight(0.5, 0.0, took=9.0)])["clock.calibration"] is Severity.OK, "a slow one"


@pytest.mark.parametrize("off", [-3600.0, 30.0, 3600.0])
def test_a_single_wrong_date_is_a_warning(off: float) -> None:
    found = {one.check: one for one in of_time([*[sight(0.5, 0.0)] * 9, sight(0.5 - off, 0.0)], DATED)}
    assert found["clock.calibration"].severity is Severity.WARNING
    assert "9 of 10" in found["clock.calibration"].text


def test_an_answer_without_date_is_a_warning() -> None:
    assert severities([sight(0.5, None), sight(0.5, 0.0)])["clock.date"] is Severity.WARNING
    assert severities([sight(0.5, None)]) == {"clock.date": Severity.WARNING}


@pytest.mark.parametrize(
    ("instants", "step"),
    [((1.0, 2.0), 1.0), ((1.5, 2.0), 0.1), ((1.123, 1.456), 1e-3), ((1.12345, 1.0), 1e-5), ((1.123456, 1.0), 1e-6)],
)
def test_the_resolution_of_updated_is_measured(instants: tuple[float, ...], step: float) -> None:
    findings = {one.check: one for one in of_time([sight(at, 1.0) for at in instants], DATED)}
    assert findings["clock.calibration"].figures["updated_step_s"] == pytest.approx(step)


def test_the_steps_of_date_are_measured() -> None:
    findings = {one.check: one for one in of_time([sight(n, float(n), wall=n) for n in range(0, 9, 3)], DATED)}
    assert findings["clock.date"].figures == {"date_step_s": 3.0}


@pytest.mark.parametrize(
    ("wall", "severity"),
    # a Date of 0 stands for any time up to 1 s, and the answer took 0.1 s
    [
        *((0.0, Severity.OK), (2.9, Severity.OK), (3.1, Severity.NOTE), (-2.0, Severity.OK), (-2.2, Severity.NOTE)),
        *((3600.0, Severity.WARNING), (-3600.0, Severity.WARNING)),
    ],
)
def test_a_wrong_wall_clock_is_a_note_or_from_a_minute_a_warning(wall: float, severity: Severity) -> None:
    assert severities([sight(0.5, 0.0, wall=wall)])["clock.wall"] is severity


def test_h31_a_shared_clock_behind_its_records_was_set_back() -> None:
    assert severities([sight(1.0, 1.0), sight(1.0, 1.5)], SHARED)["clock"] is Severity.OK
    assert severities([sight(1.0, 1.5), sight(3.0, 1.5)], SHARED)["clock"] is Severity.WARNING
    assert severities([sight(1.0, 1.5), sight(1.0, None)], SHARED)["clock"] is Severity.WARNING


@pytest.mark.parametrize(
    ("wall", "severity"),
    [(0.0, Severity.OK), (1.9, Severity.OK), (2.1, Severity.WARNING), (-2.2, Severity.WARNING)],
)
def test_h31_a_store_with_another_wall_clock_is_a_warning(wall: float, severity: Severity) -> None:
    assert severities([sight(0.0, 0.0, wall=wall)], SHARED)["clock.wall"] is severity


def test_h31_a_boot_clock_is_nobodys_wall_clock() -> None:
    boot = TimedAnswer("Create", Snapshot({}, "1", "1", 5.0, 5.1), 5.0, 5.1, EPOCH, EPOCH + 0.1)
    assert severities([boot], SHARED) == {"clock": Severity.OK}


def test_a_store_without_time_says_so() -> None:
    assert severities([], Traits("x", "x", StoreClock.NONE, TokenSource.NONE)) == {"clock": Severity.NOTE}


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.0, 0.2, 0.5, 0.99, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert percentile([7.0], 0.5) == 7.0


def test_the_recommended_ttl_fits_a_hundred_slow_requests() -> None:
    assert recommended_ttl([0.05], DATED) == 20.0
    assert recommended_ttl([0.05, 0.31], DATED) == 31.0
    assert recommended_ttl([0.0001], SHARED) == 1.0


def test_a_ttl_below_that_is_a_warning() -> None:
    took = {"Create": [0.31], "Remove": []}
    kinds = [{one.check: one.severity for one in of_pace(took, DATED, ttl)}.get("ttl") for ttl in (None, 31.0, 30.0)]
    assert kinds == [Severity.OK, Severity.OK, Severity.WARNING]
    assert list(of_pace({"Create": []}, DATED, None)) == []
