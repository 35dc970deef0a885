"""H31: a store's clock is set, forward or back, while locks are held and members work under them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Extend, List, Listing, Pause, Read, Reply, Snapshot, Traits
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.members import MemberRenewed, renew_member
from lockstead.protocol.observations import ObservationCache
from lockstead.protocol.release import read_status, release
from lockstead.protocol.renew import renew
from lockstead.protocol.waiting import until_free
from lockstead.values import Name, Sequencer
from tests.protocol.bench import APT, Bench
from tests.simulation.store import DATED, NONE, SHARED

TTL, ROUND = 100.0, 12.5


def asks_once(bench: Bench, context: ProtocolContext, holder: str = "b") -> Grant | Contended:
    outcome = bench.asking(holder, context, tries_once=True).run()
    assert isinstance(outcome, Grant | Contended)
    return outcome


@pytest.mark.parametrize("seconds", [-3600.0, -50.0, -5.0, 5.0, 50.0, 3600.0])
def test_h31_a_member_keeps_a_lease_whatever_the_clock_does(seconds: float) -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    lease = bench.granted("a").lease
    member, contender = bench.context(), bench.context()
    joined = bench.joined(lease, "m", member)
    assert isinstance(asks_once(bench, contender), Contended)
    bench.store.set_clock(seconds)
    deadline = min(joined.record_deadline, joined.registration_deadline)
    for _ in range(24):
        bench.now += ROUND
        assert bench.now < deadline
        renewed = bench.session(renew_member(lease, joined.registration, {}, member)).run()
        assert isinstance(renewed, MemberRenewed)
        assert renewed.record_deadline is not None
        deadline = min(renewed.record_deadline, renewed.registration_deadline)
        assert isinstance(asks_once(bench, contender), Contended)


@pytest.mark.parametrize("seconds", [-60.0, -30.0, 0.0])
def test_h31_a_member_that_attaches_trusts_no_age_by_the_clock(seconds: float) -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    lease = bench.granted("a").lease
    bench.now += 60
    bench.store.set_clock(seconds)  # the record now seems to be younger than it is
    session = bench.attaching(lease, "m").commit().commit()
    session.expect(Extend)


def test_h31_one_of_two_members_counts_from_its_own_look() -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    lease = bench.granted("a").lease
    one, other = bench.context(), bench.context()
    first, second = bench.joined(lease, "m1", one), bench.joined(lease, "m2", other)
    bench.session(renew_member(lease, second.registration, {}, other)).run()
    looked_at = bench.now
    bench.store.set_clock(-3600)
    bench.now += ROUND / 2
    bench.session(renew_member(lease, first.registration, {"progress": "half"}, one)).run()
    revision = bench.store.perform(Read(APT)).revision
    bench.now += ROUND / 2
    renewed = bench.session(renew_member(lease, second.registration, {}, other)).run()
    assert isinstance(renewed, MemberRenewed)
    assert bench.store.perform(Read(APT)).revision == revision
    assert renewed.record_deadline == pytest.approx(looked_at + TTL * 0.99)


def test_h31_of_looks_that_overlap_nobody_says_which_came_first() -> None:
    observations = ObservationCache()

    def seen(revision: str) -> Snapshot:
        return Snapshot({}, "7", revision)

    def looked(snapshot: Snapshot, sent_at: float, received_at: float) -> Any:
        return observations.observe(APT, snapshot, Reply(snapshot, sent_at, received_at))

    assert looked(seen("1"), 0.0, 1.0).changed_after is None
    assert looked(seen("2"), 5.0, 6.0).changed_after == 0.0
    assert looked(seen("1"), 4.0, 7.0).changed_after is None  # an older state, whose answer was slow
    assert looked(seen("2"), 8.0, 9.0).changed_after == 0.0  # and no news
    assert looked(seen("3"), 8.5, 9.5).changed_after is None  # sent before the last answer had come
    assert looked(seen("2"), 7.2, 7.4).changed_after == 0.0  # an older look, whose answer is processed late
    assert looked(seen("3"), 10.0, 11.0).changed_after == 8.0
    assert looked(seen("4"), 11.0, 11.5).changed_after == 10.0  # sent when the last answer had just come
    assert looked(Snapshot({}, "8", "1"), 12.0, 13.0).changed_after is None  # another lease


@pytest.mark.parametrize("seconds", [60.0, 200.0, 86400.0])
def test_h31_a_clock_set_forward_lets_nobody_take_a_live_lease(seconds: float) -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    lease = bench.granted("a").lease
    holder, contender = bench.context(), bench.context()
    assert isinstance(asks_once(bench, contender), Contended)
    bench.now += 55
    bench.store.set_clock(seconds)
    assert isinstance(asks_once(bench, contender), Contended)
    bench.now += 35
    bench.session(renew(lease, {}, holder)).run()
    assert isinstance(asks_once(bench, contender), Contended)


def test_h31_a_lease_renewed_before_the_clock_is_set_is_kept() -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    lease = bench.granted("a").lease
    contender = bench.context()
    assert isinstance(asks_once(bench, contender), Contended)
    bench.now += 5
    bench.session(renew(lease, {}, bench.context())).run()
    bench.store.set_clock(3600)
    bench.now += 5
    assert isinstance(asks_once(bench, contender), Contended)


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_h31_a_dead_holder_is_found_by_observation_then_by_clock(seconds: float) -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    bench.granted("a")
    contender = bench.context()
    assert isinstance(asks_once(bench, contender), Contended)
    bench.store.set_clock(seconds)
    bench.now += TTL * 0.9
    assert isinstance(asks_once(bench, contender), Contended)
    bench.now += TTL * 0.12
    grant = asks_once(bench, contender)
    assert isinstance(grant, Grant)
    if seconds > 0:  # a stamp never goes back: after a step back the clock tells again once it has caught up
        bench.now += TTL * 1.02
        assert isinstance(asks_once(bench, bench.context(), "c"), Grant)


def test_h31_a_wait_survives_a_clock_set_forward() -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    bench.granted("a")
    session = bench.session(
        until_free(APT, bench.context(), gives_up_at=math.inf, tries_once=False, on_wait=lambda _: None)
    ).commit()
    bench.store.set_clock(3600)
    session.wait().commit()
    assert session.expect(Pause).over_in == pytest.approx(TTL * 1.01, abs=1.0)


def test_h31_a_live_registration_survives_a_clock_set_forward() -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    owner = bench.context()
    lease = bench.granted("a", owner).lease
    bench.joined(lease, "m")
    bench.now += 5
    bench.store.set_clock(3600)
    session = bench.session(release(lease, owner, shared=True, bound_at=bench.now + 30, salt="a"))
    session.commit().expect(List)
    session.commit().expect(Pause)


@pytest.mark.parametrize(("seconds", "age"), [(0.0, 5.0), (-3600.0, None)])
def test_h31_a_record_from_the_future_is_shown_without_an_age(seconds: float, age: float | None) -> None:
    bench = Bench(ttl=TTL, renew_every=ROUND)
    bench.granted("a")
    bench.now += 5
    bench.store.set_clock(seconds)
    status = bench.session(read_status(APT, bench.context())).run()
    assert status.age == age
    assert not status.is_expired


def test_h31_a_store_without_a_clock_is_asked_for_none() -> None:
    bench = Bench(replace(NONE, scheme="mute"), ttl=TTL)
    context = bench.context()
    bench.granted("a", context)
    assert isinstance(asks_once(bench, context), Contended)
    assert context.observations.readings == {}


def test_h31_a_date_that_runs_in_steps_was_not_set() -> None:
    bench = Bench(DATED, ttl=TTL)
    bench.granted("a")
    bench.now += TTL / 2 + 0.9
    contender = bench.context()
    assert isinstance(asks_once(bench, contender), Contended)
    bench.now += 0.2  # a second later by `Date`
    assert isinstance(asks_once(bench, contender), Contended)
    bench.now += TTL / 2 + 4
    assert isinstance(asks_once(bench, contender), Grant)


def verifies(bench: Bench, token: int | None, guard: ProtocolContext) -> bool:
    assert token is not None
    verdict = bench.session(verify(Sequencer("apt", token), guard)).run()
    assert isinstance(verdict, bool)
    return verdict


def granted_with_token(bench: Bench) -> tuple[LeaseId, int | None]:
    context = bench.context()
    grant = bench.granted("a", context)
    token = grant.token
    if token is None:
        token = bench.session(draw_token(grant.lease, context, salt="a")).run()
    return grant.lease, token


@pytest.mark.parametrize("traits", [SHARED, DATED])
@pytest.mark.parametrize("seconds", [-3600.0, 120.0, 3600.0])
def test_h31_the_token_of_a_live_holder_survives_a_set_clock(seconds: float, traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL)
    lease, token = granted_with_token(bench)
    guard = bench.context()
    assert verifies(bench, token, guard)
    bench.now += 5
    bench.store.set_clock(seconds)
    status = bench.session(read_status(APT, bench.context(guard.observations))).run()
    assert not status.is_expired or traits is DATED, "a Date alone is a hint"
    assert verifies(bench, token, guard)
    for _ in range(3):
        bench.now += TTL / 2
        bench.session(renew(lease, {}, bench.context())).run()
        assert verifies(bench, token, guard)


@pytest.mark.parametrize("traits", [SHARED, DATED, NONE])
@pytest.mark.parametrize("seconds", [-3600.0, 0.0, 120.0])
def test_h31_the_token_of_an_observed_dead_holder_is_refused(seconds: float, traits: Traits) -> None:
    bench = Bench(traits, ttl=TTL, lock_delay=60.0)
    _, token = granted_with_token(bench)
    guard = bench.context()
    assert verifies(bench, token, guard)
    bench.store.set_clock(seconds)
    bench.now += TTL
    verifies(bench, token, guard)
    bench.now += TTL * 0.02
    assert not verifies(bench, token, guard)


def test_h31_a_token_is_accepted_once_its_lease_is_seen_renewed() -> None:
    bench = Bench(DATED, ttl=TTL, skew=3600.0)
    lease, token = granted_with_token(bench)
    guard = bench.context()
    verifies(bench, token, guard)
    for passes in (TTL / 2, TTL / 3):
        bench.now += passes
        bench.session(renew(lease, {}, bench.context())).run()
        assert verifies(bench, token, guard)
    bench.now += TTL * 0.99
    assert not verifies(bench, token, guard)


def test_h31_the_clock_is_observed_for_each_key() -> None:
    bench = Bench(SHARED, ttl=TTL)
    context = bench.context()
    bench.granted("a", context)
    bench.now += 1
    other = Name("other")
    reply: Reply[Any] = Reply(Listing(()), bench.now, bench.now)
    context.observe(other, reply, Snapshot({}, "1", "1", updated_at=5.0, store_now=6.0))
    assert context.observations.readings["other"].store_now == 6.0
    assert context.observations.readings["apt"].set_at == float("-inf")
