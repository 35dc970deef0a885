"""Every margin has its test: it fails if the margin is dropped, or its sign is flipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstead.protocol import expiry

HAIR = 1e-6
TTL, DRIFT = 100.0, 0.01


def test_the_deadline_counts_from_the_send_minus_the_drift() -> None:
    assert expiry.holder_deadline(1000.0, TTL, DRIFT) == pytest.approx(1099.0)


def test_a_record_lives_for_ttl_plus_drift_plus_lock_delay() -> None:
    assert expiry.record_lifetime(TTL, 0.0, DRIFT) == pytest.approx(101.0)
    assert expiry.record_lifetime(TTL, 7.0, DRIFT) == pytest.approx(108.0)


@pytest.mark.parametrize(("lock_delay", "clock_skew_max"), [(0.0, 0.0), (7.0, 0.0), (0.0, 2.0), (7.0, 2.0)])
def test_by_the_stores_clock_a_record_is_over_after_all_margins(lock_delay: float, clock_skew_max: float) -> None:
    end = 5000.0 + TTL * 1.01 + lock_delay + clock_skew_max

    def is_over(now: float) -> bool:
        return expiry.expired_by_store_clock(now, 5000.0, TTL, lock_delay, DRIFT, clock_skew_max)

    assert not is_over(end - HAIR)
    assert is_over(end + HAIR)


@pytest.mark.parametrize(("lock_delay", "clock_skew_max"), [(0.0, 0.0), (7.0, 0.0), (0.0, 2.0), (7.0, 2.0)])
def test_a_waiter_knows_when_the_stores_clock_ends_a_record(lock_delay: float, clock_skew_max: float) -> None:
    record = (5000.0, TTL, lock_delay, DRIFT, clock_skew_max)
    over_at = 5030.0 + expiry.left_by_store_clock(5030.0, *record)
    assert not expiry.expired_by_store_clock(over_at - HAIR, *record)
    assert expiry.expired_by_store_clock(over_at + HAIR, *record)


@pytest.mark.parametrize("lock_delay", [0.0, 7.0])
def test_by_observation_a_record_is_over_only_after_every_margin(lock_delay: float) -> None:
    end = 300.0 + TTL * 1.01 + lock_delay
    assert not expiry.expired_by_observation(300.0, end - HAIR, TTL, lock_delay, DRIFT)
    assert expiry.expired_by_observation(300.0, end + HAIR, TTL, lock_delay, DRIFT)


def test_a_foreign_lock_is_over_only_after_the_allowance() -> None:
    assert not expiry.foreign_expired(1060.0, 1000.0)
    assert expiry.foreign_expired(1060.0 + HAIR, 1000.0)


def test_calibration_fails_when_date_is_behind_the_granularity() -> None:
    # `updated` says 100.0; an instant answer, a step of one second
    assert expiry.calibrated(100.0, 98.0, 0.0, 0.0, 2.0, 1.0)
    assert not expiry.calibrated(100.0, 98.0 - HAIR, 0.0, 0.0, 2.0, 1.0)


def test_calibration_charges_the_time_of_the_round_trip_to_date() -> None:
    assert expiry.calibrated(100.0, 98.5, 10.0, 10.5, 2.0, 1.0)
    assert not expiry.calibrated(100.0, 98.5, 10.0, 10.5 + HAIR, 2.0, 1.0)


def test_calibration_fails_when_date_is_ahead_by_the_granularity() -> None:
    assert expiry.calibrated(100.0, 101.0, 0.0, 0.0, 2.0, 1.0)
    assert not expiry.calibrated(100.0, 101.0 + HAIR, 0.0, 0.0, 2.0, 1.0)


def test_a_members_deadline_assumes_the_greatest_age() -> None:
    # read at 50 on our clock; Date 1010, updated 1000: at most 10 + 1 + 2 seconds old
    by_read = expiry.deadline_by_read(50.0, 1010.0, 1000.0, TTL, DRIFT, 2.0, 1.0)
    assert by_read == pytest.approx(50.0 - 13.0 * 1.01 + 99.0)


def test_h31_a_record_from_the_future_gives_a_member_no_deadline() -> None:
    assert expiry.deadline_by_read(50.0, 996.9, 1000.0, TTL, DRIFT, 2.0, 1.0) is None
    by_read = expiry.deadline_by_read(50.0, 997.0, 1000.0, TTL, DRIFT, 2.0, 1.0)
    assert by_read == pytest.approx(expiry.holder_deadline(50.0, TTL, DRIFT))


@pytest.mark.parametrize("store_elapsed", [-3600.0, 88.0, 114.0, 3600.0])
def test_h31_a_clock_off_by_more_than_the_drift_was_set(store_elapsed: float) -> None:
    assert not expiry.ran_steadily(store_elapsed, 90.0, 110.0, DRIFT)


@given(
    mine=st.floats(-1, 1),
    stores=st.floats(-1, 1),
    drift=st.floats(0, 0.1),
    lasts=st.floats(0, 1e6),
    trip=st.floats(0, 9),
)
def test_h31_a_clock_that_only_drifts_was_not_set(
    mine: float, stores: float, drift: float, lasts: float, trip: float
) -> None:
    """Read at true 0 and `lasts`, by requests that took up to `trip` on either side; or the other way round."""
    rate, store_rate = 1 + drift * mine, 1 + drift * stores
    for sign in (1, -1):
        elapsed = sign * lasts * store_rate
        assert expiry.ran_steadily(elapsed, sign * lasts * rate - trip, sign * lasts * rate + trip, drift)


def test_the_overlap_is_ttl_plus_drift_plus_granularity() -> None:
    assert expiry.overlap_until(1000.0, TTL, DRIFT, 2.0) == pytest.approx(1103.0)


RATES = st.floats(-1, 1)


@given(mine=RATES, theirs=RATES, ttl=st.floats(1, 1000), drift=st.floats(0, 0.2), sent=st.floats(0, 10))
def test_no_contender_is_early_whatever_the_clocks_drift(
    mine: float, theirs: float, ttl: float, drift: float, sent: float
) -> None:
    """The holder sends at 0 and is committed at `sent`; the contender's clock starts there."""
    holder_rate, other_rate = 1 + drift * mine, 1 + drift * theirs
    believes_until = expiry.holder_deadline(0.0, ttl, drift) / holder_rate
    over_at = sent + expiry.record_lifetime(ttl, 0.0, drift) / other_rate
    assert believes_until <= over_at * (1 + 1e-12)


@given(
    mine=RATES,
    stores=RATES,
    ttl=st.floats(2, 500),
    drift=st.floats(0, 0.1),
    age=st.floats(0, 1),
    skew=st.floats(-1.9, 0.9),
    into=st.floats(0, 1),
)
def test_no_member_trusts_a_read_beyond_the_records_life(
    mine: float, stores: float, ttl: float, drift: float, age: float, skew: float, into: float
) -> None:
    """The record was written at true 0 (the store's clock says `into`), and read when it was `age` of a ttl old."""
    rate, store_rate = 1 + drift * mine, 1 + drift * stores
    read_at = age * ttl
    date = float(int(1000 + into + read_at * store_rate + skew))
    by_read = expiry.deadline_by_read(read_at * rate, date, 1000 + into, ttl, drift, 2.0, 1.0)
    over_at = (ttl * (1 + drift)) / store_rate
    assert by_read is not None
    assert by_read / rate <= over_at + 1e-9


@pytest.mark.parametrize(("ttl", "lock_delay"), [(10.0, 0.0), (10.0, 4.0), (300.0, 60.0)])
def test_the_ttl_of_a_life_is_the_one_that_asks_for_it(ttl: float, lock_delay: float) -> None:
    assert expiry.ttl_of_lifetime(expiry.record_lifetime(ttl, lock_delay, 0.01), lock_delay, 0.01) == pytest.approx(ttl)
    assert expiry.ttl_of_lifetime(lock_delay, lock_delay, 0.01) == 0.0
