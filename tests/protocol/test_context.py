"""The context of scripts: how long a drain takes, when a write is repeated, what a read proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import (
    Absent,
    Conflict,
    Create,
    Extend,
    Reply,
    Snapshot,
    StoreClock,
    TokenSource,
    Traits,
)
from lockstead.protocol.context import draw
from lockstead.protocol.observations import Observation
from lockstead.values import Name, Space
from tests.protocol.bench import APT, Bench
from tests.simulation.store import DATED, NONE, SHARED


@pytest.mark.parametrize(
    ("traits", "is_calibrated", "observing"),
    [(NONE, False, True), (SHARED, False, False), (DATED, False, True), (DATED, True, False)],
)
def test_a_drain_takes_longer_where_observation_finds_the_dead(
    traits: Traits, is_calibrated: bool, observing: bool
) -> None:
    context = Bench(traits).context()
    context.observations.is_calibrated = is_calibrated
    bounds = {watch: context.settings.drain_bound(traits.clock_skew_max, observing=watch) for watch in (True, False)}
    assert bounds[True] != bounds[False]
    assert context.drain_bound() == bounds[observing]


@pytest.mark.parametrize(("turn", "at_least"), [(0, 0.1), (1, 2.0), (2, 4.0), (3, 4.0), (9, 4.0)])
def test_a_change_is_retried_after_half_the_pace_then_all_of_it(turn: int, at_least: float) -> None:
    pause = Bench(replace(DATED, pace=4.0)).context().retry_pause(APT, turn)
    assert (pause.at_least, pause.at_most, pause.wake_on_change) == (at_least, 2 * at_least, False)


def test_only_a_lock_record_can_be_foreign() -> None:
    context = Bench(replace(DATED, foreign=True)).context()
    seen = Snapshot({"identity": "go", "expires_at": "5"}, "1", "1")
    assert context.decode(APT, seen).expires_at == 5.0
    with pytest.raises(StoreRefused):
        context.decode(Name("apt", Space.MEMBER, "1/m"), seen)


def test_a_deadline_by_a_read_is_the_later_of_both_judgements() -> None:
    context = Bench(DATED, ttl=100).context()
    context.observations.is_calibrated = True
    seen = Snapshot({}, "1", "2", updated_at=500.0, store_now=500.0)
    reply = Reply(seen, 60.0, 61.0)
    for changed_after in (10.0, 59.9):
        look = Observation("1", "2", 60.0, 60.0, 61.0, changed_after)
        by_clock = context.deadline_by_look(replace_changed(look, None), reply, seen, 100.0)
        assert by_clock is not None
        assert context.deadline_by_look(look, reply, seen, 100.0) == max(
            context.deadline(changed_after, 100.0), by_clock
        )
    for silent in (replace(seen, updated_at=None), replace(seen, store_now=None)):
        assert context.deadline_by_look(replace_changed(look, None), reply, silent, 100.0) is None


@pytest.mark.parametrize("times", [(500.0, None), (None, 500.0), (None, None)])
@pytest.mark.parametrize("was_calibrated", [False, True])
def test_a_write_reply_without_both_times_proves_no_clock(
    times: tuple[float | None, float | None], was_calibrated: bool
) -> None:
    context = Bench(DATED).context()
    context.observations.is_calibrated = was_calibrated
    seen = Snapshot({}, "1", "2", *times)
    context.note_write(APT, Reply(seen, 60.0, 60.1), seen)
    assert not context.observations.is_calibrated


def test_a_client_that_wrote_nothing_trusts_no_other_clock() -> None:
    context = Bench(DATED, ttl=100).context()
    seen = Snapshot({}, "1", "2", updated_at=500.0, store_now=500.0)
    assert (
        context.deadline_by_look(Observation("1", "2", 60.0, 60.0, 61.0), Reply(seen, 60.0, 61.0), seen, 100.0) is None
    )
    assert context.drain_bound() == context.settings.drain_bound(context.traits.clock_skew_max, observing=True)


def replace_changed(look: Observation, changed_after: float | None) -> Observation:
    return look._replace(changed_after=changed_after)


def test_a_companion_created_by_another_is_advanced_as_usual() -> None:
    bench = Bench(DATED)
    context = bench.context()
    session = bench.session(draw("apt", "s", context))
    session.expect(Extend)
    session.answer(Absent()).expect(Create)
    session.answer(Conflict()).expect(Extend)
    session.answer(Absent()).expect(Create)
    assert session.commit().is_over
    assert context.observations.is_calibrated
    context.observations.is_calibrated = False
    assert isinstance(bench.session(draw("apt", "t", context)).run(), Snapshot)
    assert context.observations.is_calibrated


def test_a_store_promises_nothing_that_it_does_not_state() -> None:
    bare = Traits("other", "none", StoreClock.NONE, TokenSource.NONE)
    assert (bare.clock_skew_max, bare.clock_resolution, bare.pace, bare.ttl_recommended) == (0.0, 0.0, 0.0, 1.0)
    assert not bare.foreign
