"""Where the server itself removes unrenewed records: whose deadline counts from what, and that no client judges.

Rule 6: a deadline counts from the send of the last request that renewed this record. Rule 15: what was renewed may
be a server's lease to which the record is attached, and the server may have granted less than requested.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstead.errors import LossReason
from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Conflict, Create, Extend, Pause, Read, Replace, Snapshot
from lockstead.protocol.members import renew_member
from lockstead.protocol.observations import ObservationCache
from lockstead.protocol.renew import renew
from lockstead.values import LeaseOutcome
from tests.protocol.bench import APT, Bench, Session
from tests.simulation.expiring import EXPIRING
from tests.simulation.store import SHARED


def shown(session: Session, after: float = 0.0, **more: Any) -> Session:
    """The store performs the command, and its answer says more than that."""
    answer = session.bench.store.perform(session.command)
    assert isinstance(answer, Snapshot)
    return session.answer(replace(answer, **more), after)


def expiring(**settings: Any) -> Bench:
    return Bench(EXPIRING, **settings)


# --- the deadline -----------------------------------------------------------------------------------------------------


def test_rule_06_a_create_on_a_renewed_lease_counts_from_that() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    session.expect(Create)
    renewed_at = bench.now - 2.0
    grant = shown(session, after=0.5, renewed_at=renewed_at).outcome
    assert grant.sent_at == renewed_at
    assert grant.deadline == pytest.approx(renewed_at + 9.9)


def test_rule_06_a_takeover_on_a_renewed_lease_counts_from_that() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, {"ended": "1"}, lease.incarnation))
    session = bench.asking("b").commit().commit()
    session.expect(Replace)
    renewed_at = bench.now - 2.0
    grant = shown(session, after=0.5, renewed_at=renewed_at).outcome
    assert grant.deadline == pytest.approx(renewed_at + 9.9)


@pytest.mark.parametrize("earlier", [0.0, 0.7, 3.0])
def test_rule_06_a_merged_renewal_counts_from_the_earlier_one(earlier: float) -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    bench.now += 4.0
    session = bench.session(renew(lease, {}, bench.context()))
    sent_at = bench.now
    renewed = shown(session, after=0.5, renewed_at=sent_at - earlier).outcome
    assert renewed.sent_at == pytest.approx(sent_at - earlier)
    assert renewed.deadline == pytest.approx(sent_at - earlier + 9.9)


def test_rule_06_a_renewal_later_than_its_send_extends_nothing() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    sent_at = bench.now
    grant = shown(session, after=0.5, renewed_at=sent_at + 0.4).outcome
    assert grant.deadline == pytest.approx(sent_at + 9.9)


def test_rule_06_an_adopted_record_counts_from_its_extend() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a").lose(after=1.0).commit(after=0.5)
    session.expect(Extend)
    renewed_at = bench.now - 1.0
    grant = shown(session, after=0.5, renewed_at=renewed_at).outcome
    assert grant.deadline == pytest.approx(renewed_at + 9.9)


def test_rule_06_a_member_counts_from_its_registrations_renewal() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    session = bench.attaching(lease, "m")
    session.expect(Create)
    renewed_at = bench.now - 2.0
    joined = shown(session, after=0.5, renewed_at=renewed_at).run()
    assert joined.registration_deadline == pytest.approx(renewed_at + 9.9)
    assert joined.sent_at == renewed_at


def test_rule_15_what_the_server_grants_less_is_believed_less() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    sent_at = bench.now
    grant = shown(session, after=0.5, lifetime=6.0).outcome
    assert grant.deadline == pytest.approx(sent_at + 6.0 / 1.01 * 0.99)
    renewing = bench.session(renew(grant.lease, {}, bench.context()))
    sent_at = bench.now
    assert shown(renewing, after=0.5, lifetime=6.0).outcome.deadline == pytest.approx(sent_at + 6.0 / 1.01 * 0.99)


def test_rule_15_a_longer_grant_does_not_exceed_the_ttl() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    sent_at = bench.now
    assert shown(session, after=0.5, lifetime=60.0).outcome.deadline == pytest.approx(sent_at + 9.9)


def test_rule_05_rule_15_a_short_grant_keeps_the_lock_delay() -> None:
    bench = expiring(ttl=10, lock_delay=4.0)
    session = bench.asking("a")
    sent_at = bench.now
    grant = shown(session, after=0.5, lifetime=9.0).outcome
    assert grant.deadline == pytest.approx(sent_at + 5.0 / 1.01 * 0.99)
    renewing = bench.session(renew(grant.lease, {}, bench.context()))
    sent_at = bench.now
    assert shown(renewing, after=0.5, lifetime=9.0).outcome.deadline == pytest.approx(sent_at + 5.0 / 1.01 * 0.99)


@pytest.mark.parametrize("lock_delay", [0.0, 3.0])
def test_a_record_is_kept_for_ttl_plus_drift_plus_lock_delay(lock_delay: float) -> None:
    bench = expiring(ttl=10, lock_delay=lock_delay)
    session = bench.asking("a")
    assert session.expect(Create).min_retention == pytest.approx(10.1 + lock_delay)
    grant = session.commit().outcome
    assert isinstance(grant, Grant)
    registering = bench.attaching(grant.lease, "m")
    assert registering.expect(Create).min_retention == pytest.approx(10.1)
    bench.now += 10.0 + lock_delay
    assert isinstance(bench.store.perform(Read(APT)), Snapshot)
    bench.now += 0.2
    assert not isinstance(bench.store.perform(Read(APT)), Snapshot)


# --- too little left to begin with ------------------------------------------------------------------------------------


def test_a_grant_on_an_old_lease_is_renewed_before_the_work() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    shown(session, renewed_at=bench.now - 8.5)
    session.expect(Extend)
    sent_at = bench.now
    grant = session.commit(after=0.2).outcome
    assert isinstance(grant, Grant)
    assert grant.deadline == pytest.approx(sent_at + 9.9)
    assert grant.token == bench.store.entries[APT].token
    assert grant.previous_lease.ending is LeaseOutcome.UNKNOWN


def test_h18_giving_up_while_renewing_a_grant_needs_a_sweep() -> None:
    bench = expiring(ttl=10)
    want = bench.want("a")
    session = bench.asking(want)
    shown(session, renewed_at=bench.now - 8.5)
    session.expect(Extend)
    session.script.close()
    assert want.unsettled


def test_a_grant_on_an_old_lease_that_vanished_is_sent_again() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    shown(session, renewed_at=bench.now - 8.5)
    bench.store.erase(APT)
    session.commit()
    session.expect(Read)
    grant = session.run()
    assert isinstance(grant, Grant)
    assert bench.holder == "a"


# --- nobody judges ----------------------------------------------------------------------------------------------------


def test_what_stands_there_is_alive_however_long_it_stands_still() -> None:
    bench = expiring(ttl=10)
    bench.granted("a")
    observations = ObservationCache()
    for _ in range(40):
        # kept alive by something that is not a change of the record
        bench.store.entries[APT].expires_at = bench.now + 10.1
        looking = bench.asking("b", bench.context(observations), tries_once=True).commit()
        looking.expect(Read)
        assert isinstance(looking.commit().outcome, Contended)
        bench.now += 5.0


def test_a_present_record_is_live_whatever_time_replies_show() -> None:
    bench = expiring(ttl=10)
    bench.granted("a")
    looking = bench.asking("b", tries_once=True).commit()
    looking.expect(Read)
    old = shown(looking, updated_at=0.0, store_now=1e9)
    assert isinstance(old.outcome, Contended)


def test_what_was_ended_there_is_free_at_once() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, {"ended": "1"}, lease.incarnation))
    grant = bench.asking("b").run()
    assert isinstance(grant, Grant)
    assert grant.previous_lease.ending is LeaseOutcome.EXPIRED


def test_rule_15_two_different_reads_are_not_always_a_renewal() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    session = bench.attaching(lease, "m").commit().commit()
    session.expect(Extend)
    session.late()
    session.wait()
    bench.store.perform(Extend(APT, {"progress": "1 of 2"}, lease.incarnation))
    session.expect(Read)
    session.commit()
    session.expect(Extend)
    sent_at = bench.now
    joined = session.commit(after=0.3).outcome
    assert joined.record_deadline == pytest.approx(sent_at + 9.9)


def test_a_member_extends_a_record_whose_age_is_unknown() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    session = bench.session(renew_member(lease, joined.registration, {}, bench.context())).commit().commit()
    assert session.expect(Extend).name == APT


def test_h12_a_holder_whose_record_the_server_dropped_is_told_so() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    bench.now += 10.2
    assert bench.session(renew(lease, {}, bench.context())).commit().outcome.reason is LossReason.GONE


# --- how the one before ended -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("traits", "ending"), [(SHARED, LeaseOutcome.CLEAN), (EXPIRING, LeaseOutcome.UNKNOWN)])
def test_a_free_key_has_no_predecessor_where_records_expire(traits: Any, ending: LeaseOutcome) -> None:
    grant = Bench(traits).granted("a")
    assert grant.previous_lease.ending is ending


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_waiter_not_first_in_the_queue_reads_before_it_writes() -> None:
    bench = expiring(ttl=10)
    session = bench.asking("a")
    assert session.expect(Create).waiter_id == "a"
    session.answer(Conflict(is_queued=True))
    assert session.expect(Pause).waiter_id == "a"
    session.wait()
    session.expect(Read)
    session.commit()
    assert session.expect(Create).waiter_id == "a"
    assert isinstance(session.commit().outcome, Grant)


def test_a_try_whose_turn_it_is_not_says_that_others_asked_first() -> None:
    bench = expiring(ttl=10)
    want = bench.want("a")
    outcome = bench.asking(want, tries_once=True).answer(Conflict(is_queued=True)).outcome
    assert isinstance(outcome, Contended)
    assert outcome.is_queued
    assert not want.has_waited


def test_a_takeover_out_of_turn_is_refused_and_queues() -> None:
    bench = expiring(ttl=10)
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, {"ended": "1"}, lease.incarnation))
    want = bench.want("b")
    session = bench.asking(want).commit().commit()
    assert session.expect(Replace).waiter_id == "b"
    session.answer(Conflict(is_queued=True))
    session.expect(Pause)
    assert want.has_waited


def test_who_reclaims_goes_on_with_its_own_and_stands_in_no_line() -> None:
    bench = expiring(ttl=10)
    bench.asking(bench.want("a/1", owner="a")).run()
    session = bench.asking(bench.want("a/2", owner="a", reclaim=True))
    while not isinstance(session.command, Replace):
        session.commit()
    assert session.expect(Replace).waiter_id == ""
    assert isinstance(session.commit().outcome, Grant)


def test_an_unknown_outcome_out_of_turn_is_still_looked_into() -> None:
    bench = expiring(ttl=10)
    want = bench.want("a")
    session = bench.asking(want)
    session.late()
    session.expect(Read)
    session.commit().wait().commit()
    session.expect(Create)
    session.answer(Conflict(is_queued=True))
    assert want.unsettled
