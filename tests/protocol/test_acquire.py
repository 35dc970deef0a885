"""Acquiring a lock: failures, unsettled outcomes, and what a waiter is told.

Each of these fails with one small change of `acquire` that no other test of the protocol detects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstead.errors import StoreError, StoreUnavailable
from lockstead.protocol.acquire import AcquireRequest, Contended, Grant
from lockstead.protocol.commands import Conflict, Create, Extend, Pause, Paused, Read, Remove, Replace, Traits
from lockstead.protocol.record import Revocation, revocation_text
from lockstead.values import LeaseOutcome, PreviousLease
from tests.protocol.bench import APT, Bench, Session
from tests.protocol.test_expiring import shown
from tests.protocol.test_rules import overdue
from tests.simulation.expiring import EXPIRING
from tests.simulation.store import DATED, SHARED

ALMOST_OVER = 8.5
"""Seconds since the lease of a server was renewed, after which too little of ten seconds is left to begin work."""


def taking_over(bench: Bench, want: AcquireRequest | str = "b", **more: Any) -> Session:
    """Prepare to take over the record of a holder that stopped."""
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, {"ended": "1"}, lease.incarnation))
    session = bench.asking(want, **more).commit().commit()
    session.expect(Replace)
    return session


def heir(bench: Bench) -> AcquireRequest:
    """Return the request of a new process of the owner `pub`, which reclaims."""
    return bench.want("a2", owner="pub", reclaim=True)


def reclaiming(bench: Bench, until: type[Extend | Replace], want: AcquireRequest | None = None) -> Session:
    """A new process of the owner `pub` is about to close the record of the earlier one, or to replace it."""
    bench.granted("a", owner="pub")
    session = bench.asking(want or heir(bench))
    while not isinstance(session.command, until):
        session.commit()
    return session


# --- no grant ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["ended", "closing", "revoked", "identity"])
def test_rule_02_a_record_broken_before_renewal_is_not_granted(field: str) -> None:
    bench = Bench(EXPIRING, ttl=10)
    want = bench.want("a")
    session = bench.asking(want)
    shown(session, renewed_at=bench.now - ALMOST_OVER)
    standing = bench.standing()
    assert standing is not None
    said = {"revoked": revocation_text(Revocation("op", "x")), "identity": "b"}.get(field, "1")
    bench.store.perform(Extend(APT, {field: said}, standing.incarnation))
    session.expect(Extend)
    session.commit().expect(Read)
    assert want.unsettled


def test_rule_12_no_grant_if_overtaken_before_the_token() -> None:
    bench = Bench(DATED, ttl=10)
    session = reclaiming(bench, Replace)
    session.commit().expect(Read)
    overdue(bench)
    bench.granted("c")
    session.commit()  # its own record is gone
    session.expect(Read)
    session.commit().expect(Pause)
    assert bench.holder == "c"


@pytest.mark.parametrize("successor", ["nobody", "c"])
def test_rule_12_a_record_gone_before_closing_has_no_members(successor: str) -> None:
    bench = Bench()
    session = reclaiming(bench, Extend)
    bench.store.erase(APT)
    if successor == "c":
        bench.granted("c")
    session.commit().expect(Read)


def test_rule_12_reclaim_waits_until_a_dead_member_expires() -> None:
    bench = Bench(ttl=10)
    joined = bench.joined(bench.granted("a", owner="pub").lease, "m")
    grant = bench.asking(heir(bench), tries_once=True).run()
    assert isinstance(grant, Grant)
    assert bench.now > joined.registration_deadline


def test_who_says_nothing_of_it_does_not_reclaim() -> None:
    bench = Bench()
    bench.granted("a", owner="pub")
    fields = bench.want("a2", owner="pub").fields
    assert isinstance(bench.asking(AcquireRequest(APT, "a2", "pub", fields), tries_once=True).run(), Contended)


# --- the grant --------------------------------------------------------------------------------------------------------


def test_rule_06_a_takeover_on_an_old_lease_is_renewed_first() -> None:
    bench = Bench(EXPIRING, ttl=10)
    want = bench.want("b")
    session = taking_over(bench, want)
    shown(session, renewed_at=bench.now - ALMOST_OVER)
    token = bench.store.entries[APT].token
    assert session.expect(Extend).lifetime == 10.0
    sent_at = bench.now
    grant = shown(session, after=0.2, token=None).outcome  # an answer to a renewal need not repeat the token
    assert grant.deadline == pytest.approx(sent_at + 9.9)
    assert (grant.token, grant.previous_lease) == (token, PreviousLease(LeaseOutcome.EXPIRED, "a", "a"))
    assert not want.unsettled


@pytest.mark.parametrize(("left", "command"), [(32.0, Extend), (32.25, type(None))])
def test_work_begins_with_more_time_than_a_renewal_and_the_abort(left: float, command: type) -> None:
    bench = Bench(EXPIRING, ttl=128, renew_every=16, drift=0.0, abort_margin=16)  # all sums of these are exact
    assert bench.settings.renew_every == 16.0
    session = bench.asking("a")
    shown(session, renewed_at=bench.now + left - 128)
    assert isinstance(session.command, command)


def test_a_grant_whose_answer_was_slow_is_left_to_the_keeper() -> None:
    grant = Bench(ttl=10).asking("a").commit(after=9.0).outcome
    assert isinstance(grant, Grant)


def test_what_is_adopted_says_for_how_long_it_lives() -> None:
    session = Bench(ttl=10).asking("a").lose().commit()
    assert session.expect(Extend).lifetime == 10.0


def test_rule_10_a_number_in_a_reply_is_no_drawn_token() -> None:
    bench = Bench(DATED)
    assert shown(bench.asking("a"), token=7).outcome.token is None


# --- what is left unsettled -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("traits", [SHARED, DATED, EXPIRING], ids=lambda traits: traits.scheme)
@pytest.mark.parametrize("reclaims", [False, True])
def test_an_answered_takeover_or_reclaim_needs_no_sweep(traits: Traits, reclaims: bool) -> None:
    bench = Bench(traits)
    want = heir(bench) if reclaims else bench.want("b")
    session = reclaiming(bench, Replace, want) if reclaims else taking_over(bench, want)
    assert want.unsettled
    assert isinstance(session.run(), Grant)
    assert not want.unsettled


def test_a_takeover_that_was_never_sent_needs_no_sweep() -> None:
    bench = Bench()
    want = bench.want("b")
    session = taking_over(bench, want, tries_once=True)
    with pytest.raises(StoreUnavailable):
        session.unsent()
    assert not want.unsettled


def test_a_takeover_that_came_too_late_needs_no_sweep() -> None:
    bench = Bench()
    want = bench.want("b")
    taking_over(bench, want).answer(Conflict()).expect(Read)
    assert not want.unsettled


def test_a_takeover_out_of_turn_says_that_others_asked_first() -> None:
    outcome = taking_over(Bench(EXPIRING), tries_once=True).answer(Conflict(is_queued=True)).outcome
    assert isinstance(outcome, Contended)
    assert outcome.is_queued


def test_a_gone_or_taken_record_is_dropped_from_observations() -> None:
    bench = Bench(ttl=10)
    context = bench.context()
    held = bench.granted("a")
    waiting = bench.asking("b", context).commit().commit()
    assert APT in context.observations.looks
    bench.store.perform(Remove(APT, held.lease.incarnation))
    waiting.wait().commit().expect(Create)
    assert APT not in context.observations.looks
    bench.granted("c")
    overdue(bench)
    waiting.commit().commit().expect(Replace)
    assert APT in context.observations.looks
    assert isinstance(waiting.commit().outcome, Grant)
    assert APT not in context.observations.looks


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_who_waits_is_told_before_each_pause_what_it_waits_for() -> None:
    bench = Bench()
    bench.granted("a")
    told: list[Contended | StoreError] = []
    want = bench.want("b")
    want.on_wait = told.append
    session = bench.asking(want).commit().commit()
    session.expect(Pause)
    (seen,) = told
    assert isinstance(seen, Contended)
    assert seen.record is not None
    assert seen.record.holder == "a"
    error = StoreUnavailable("refused")
    session.wait().unsent(error=error).expect(Pause)
    assert told == [seen, error]


def test_a_wait_whose_time_is_up_looks_once_more_and_ends() -> None:
    bench = Bench()
    bench.granted("a")
    session = bench.asking("b", gives_up_at=bench.now + 2.0).commit().commit()
    session.wait(2.0).expect(Read)
    assert isinstance(session.commit().outcome, Contended)


def test_a_waiter_reads_less_often_until_something_changes() -> None:
    bench = Bench(ttl=1000, backoff_max=5.0)
    bench.granted("a")
    session = bench.asking("b").commit()
    longest = []
    for _ in range(6):
        pause = session.commit().expect(Pause)
        longest.append(pause.at_most)
        session.wait(pause.at_most)
    assert longest == pytest.approx([0.1, 0.3, 0.9, 2.7, 5.0, 5.0])
    session.commit().answer(Paused(5.0, changed=True), 1.0)
    assert session.commit().expect(Pause).at_most == pytest.approx(0.1)


def test_rejected_writes_of_earlier_attempts_slow_no_later_one() -> None:
    bench = Bench(replace(SHARED, pace=1.0))
    session = bench.asking("a")
    session.late()
    session.commit().wait()  # nothing is there, and it would be asked again
    held = bench.granted("b")
    session.commit().expect(Pause)  # but somebody else was faster
    bench.store.perform(Remove(APT, held.lease.incarnation))
    session.wait().commit().expect(Create)
    session.late()
    assert session.commit().expect(Pause).at_least == pytest.approx(0.1)
