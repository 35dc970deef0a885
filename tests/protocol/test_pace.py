"""A store limits the changes of one record: a rejected write is repeated later, but not forever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstead.errors import OutcomeUnknown, StoreRefused
from lockstead.protocol.commands import Create, Extend, List, Pause, Read, Remove, Replace, StoreClock
from lockstead.protocol.fence import draw_token
from lockstead.protocol.members import Attached, drain, member_name
from lockstead.protocol.release import Outcome, release, remove
from lockstead.values import Space
from tests.protocol.bench import APT, Bench, Session
from tests.simulation.store import DATED, NONE

PACED = replace(DATED, pace=1.0)


def turned_away(session: Session) -> Session:
    """The store answers 429: not applied, which the client cannot know."""
    session.late(0.01)
    return session


def pauses_until_it_raises(session: Session) -> list[float]:
    """Turn every change away and wait the shortest of every pause; give the pauses."""
    pauses: list[float] = []
    with pytest.raises(OutcomeUnknown):
        while not session.is_over:
            match session.command:
                case Pause():
                    pauses.append(session.command.at_least)
                    session.wait()
                case Read():
                    session.commit()
                case _:
                    turned_away(session)
    return pauses


def test_a_removal_is_retried_until_the_store_must_accept_it() -> None:
    bench = Bench(PACED)
    session = bench.session(remove(bench.granted("a").lease, bench.context()))
    assert pauses_until_it_raises(session) == [0.1, 0.5, 1.0]


def test_without_a_pace_a_removal_is_retried_by_the_settings() -> None:
    bench = Bench()
    session = bench.session(remove(bench.granted("a").lease, bench.context()))
    assert pauses_until_it_raises(session) == [0.1, 0.1, 0.1]


def test_a_removal_that_was_turned_away_twice_is_carried_out() -> None:
    bench = Bench(PACED)
    session = bench.session(remove(bench.granted("a").lease, bench.context()))
    turned_away(turned_away(session).wait()).wait()
    session.expect(Remove)
    assert session.run() is Outcome.REMOVED


def test_a_registration_is_not_retried_in_a_burst_nor_forever() -> None:
    bench = Bench(PACED)
    pauses = pauses_until_it_raises(bench.attaching(bench.granted("a").lease, "m"))
    assert pauses == [0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_draw_keeps_the_stores_pace_and_accepts_a_siblings() -> None:
    bench = Bench(PACED)
    lease = bench.granted("a").lease
    session = bench.session(draw_token(lease, bench.context(), salt="s")).commit()
    assert session.expect(Extend).name.space is Space.COMPANION
    turned_away(session)
    session.expect(Read)
    session.commit().wait()
    turned_away(session)
    bench.store.perform(Extend(APT, {"token": "7"}, lease.incarnation))
    session.expect(Read)
    assert session.run() == 7


def test_a_token_that_is_always_rejected_has_an_unknown_outcome() -> None:
    bench = Bench(PACED)
    session = bench.session(draw_token(bench.granted("a").lease, bench.context(), salt="s"))
    pauses = pauses_until_it_raises(session)
    assert pauses == [0.1, 0.5] + [1.0] * 13


def test_a_free_key_that_rejects_writes_is_not_tried_in_a_burst() -> None:
    bench = Bench(PACED)
    session = bench.asking(bench.want("a"))
    pauses: list[float] = []
    for _ in range(4):
        session.expect(Create)
        turned_away(session).expect(Read)
        session.commit()
        pauses.append(session.expect(Pause).at_least)
        session.wait().expect(Read)
        session.commit()
    assert pauses[:3] == [0.1, 0.5, 1.0]
    assert session.run().lease.name == APT


def test_one_try_for_a_free_key_that_rejects_writes_is_unknown() -> None:
    """None would mean that another client holds it."""
    bench = Bench(PACED)
    session = bench.asking(bench.want("a"), tries_once=True)
    assert pauses_until_it_raises(session) == [0.1, 0.5, 1.0]


def test_one_try_rejected_after_a_release_waits_for_the_pace() -> None:
    bench = Bench(PACED)
    session = bench.asking(bench.want("a"), tries_once=True)
    for _ in range(3):
        turned_away(session).commit().wait().commit()
    session.expect(Create)
    assert session.run().lease.name == APT


@pytest.mark.parametrize("left", [0.0, 0.4])
def test_a_rejected_write_is_not_repeated_without_time_for_the_pause(left: float) -> None:
    """With a deadline close ahead the pauses are cut short; a burst would keep other clients out."""
    bench = Bench(PACED)
    session = turned_away(bench.asking(bench.want("a"), tries_once=True)).commit().wait().commit()
    turned_away(session).commit()
    assert session.expect(Pause).at_least == 0.5
    with pytest.raises(OutcomeUnknown):
        session.wait(left).run()


def test_a_dead_key_that_rejects_writes_is_not_taken_in_a_burst() -> None:
    bench = Bench(replace(PACED, clock=StoreClock.ONE_CLOCK))
    bench.granted("dead")
    bench.now += 1000
    session = bench.asking(bench.want("a"), tries_once=True).commit()
    assert pauses_until_it_raises(session) == [0.1, 0.5, 1.0]


def test_rule_12_a_reclaim_closes_once_and_keeps_the_pace() -> None:
    bench = Bench(replace(PACED, clock=StoreClock.ONE_CLOCK))
    bench.granted("a", owner="pub")
    session = bench.asking(bench.want("a2", owner="pub", reclaim=True), tries_once=True).commit().commit()
    session.expect(Extend)
    session.commit().commit().commit()
    session.expect(Replace)
    pauses: list[float] = []
    with pytest.raises(OutcomeUnknown):
        while True:
            match session.command:
                case Pause():
                    pauses.append(session.command.at_least)
                    session.wait()
                case Replace():
                    turned_away(session)
                case _:
                    assert isinstance(session.command, Read | List)
                    session.commit()
    assert pauses == [0.1, 0.5, 1.0]


def test_unjudged_dead_holders_are_retried_at_the_stores_pace() -> None:
    """On Cloud Storage the verdict is a write to the companion, and it takes one change a second as well."""
    bench = Bench(PACED)
    lease = bench.granted("dead").lease
    bench.joined(lease, "m")
    bench.now += 1000
    asking = bench.asking("a").commit().commit()
    assert asking.expect(Extend).name.space is Space.COMPANION
    assert turned_away(asking).expect(Pause).at_least == 1.0
    draining = bench.session(drain(lease, bench.context(), bound_at=bench.now + 30, salt="a")).commit()
    assert draining.expect(Extend).name.space is Space.COMPANION
    assert turned_away(draining).expect(Pause).at_least == 1.0


def test_closing_is_asked_for_at_the_stores_pace() -> None:
    bench = Bench(PACED)
    lease = bench.granted("a").lease
    session = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    pauses = []
    for _ in range(4):
        pauses.append(turned_away(session).expect(Pause).at_least)
        session.wait()
    assert pauses == [0.1, 0.5, 1.0, 1.0]


# --- attaching where the record itself takes no more changes ---------------------------------------------------------


def uncalibrated(bench: Bench, **settings: Any) -> Session:
    """Attach with a registration whose answer was too slow to calibrate the clocks; the record has been read."""
    session = bench.attaching(bench.granted("a").lease, "m")
    session.expect(Create)
    session.commit(after=2.5).expect(Read)
    session.commit().expect(Extend)
    return session


def test_rule_04_without_renewing_two_different_reads_are_needed() -> None:
    bench = Bench(PACED, ttl=100)
    session = uncalibrated(bench)
    first_read_at = bench.now
    turned_away(session)
    session.wait()
    # another member was let through
    standing = bench.standing()
    assert standing is not None
    bench.store.perform(Extend(APT, {}, standing.incarnation, lifetime=100.0))
    session.expect(Read)
    joined = session.commit(after=0.5).outcome
    assert isinstance(joined, Attached)
    assert joined.record_deadline == pytest.approx(first_read_at + 99.0)


def test_rule_04_a_moved_revision_may_renew_nothing() -> None:
    # what moves it there need not renew its life: a master that lagged is brought up, a field is written beside a lease
    bench = Bench(NONE, ttl=100)
    bench.traits = replace(NONE, clock=StoreClock.SERVER_EXPIRES)  # whose answers carry no time, either
    session = uncalibrated(bench)
    turned_away(session)
    session.wait()
    standing = bench.standing()
    assert standing is not None
    bench.store.perform(Extend(APT, {}, standing.incarnation, lifetime=100.0))
    session.expect(Read)
    session.commit().expect(Extend)


def test_rule_04_an_unchanged_record_gives_no_deadline() -> None:
    bench = Bench(PACED, ttl=100)
    session = uncalibrated(bench)
    turned_away(session)
    session.wait()
    session.commit().expect(Extend)  # nobody was let through, so it has to renew after all


def test_rule_04_an_attach_whose_renewal_is_always_rejected_ends() -> None:
    bench = Bench(PACED, ttl=100)
    assert len(pauses_until_it_raises(uncalibrated(bench))) == 7


@pytest.mark.parametrize("damage", [{"ttl": "soon"}, {"v": "9"}])
def test_h24_attaching_to_an_unreadable_record_leaves_nothing(damage: dict[str, str]) -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, damage, lease.incarnation))
    session = bench.attaching(lease, "m").commit().commit()
    session.expect(Remove)
    with pytest.raises(StoreRefused):
        session.run()
    assert member_name(lease, "m") not in bench.store.entries
