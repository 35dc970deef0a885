"""One directed scenario, or more, for every numbered rule of the protocol that concerns compare-and-swap stores.

Rules 6, 15 and 16 are of stores with native leases and of ZooKeeper; 8 and 13 are of the statements of SQL stores.
"""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.errors import LossReason
from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Create, Extend, List, Pause, Read, Remove, Replace, Script, Snapshot
from lockstead.protocol.context import LeaseId, draw
from lockstead.protocol.fence import draw_token
from lockstead.protocol.members import Attached, drain, member_name, renew_member, take_back
from lockstead.protocol.observations import ObservationCache
from lockstead.protocol.record import Revocation, revocation_text
from lockstead.protocol.release import (
    Outcome,
    UsedLease,
    break_lease,
    give_back,
    may_remove_after_loss,
    release,
    remove,
    sweep,
)
from lockstead.protocol.renew import Over, renew
from lockstead.values import LeaseOutcome, PreviousLease, Space
from tests.protocol.bench import APT, Bench
from tests.simulation.store import DATED, NONE, SHARED

CLOSING = {"closing": "1"}


def overdue(bench: Bench) -> None:
    """Let a ttl with all margins go by."""
    settings = bench.settings
    bench.now += settings.ttl * (1 + settings.drift) + bench.traits.clock_skew_max + settings.lock_delay + 0.001


# --- time, 2: from the send of the last request that renewed this record's life ---------------------------------------


@pytest.mark.parametrize("request_", [Create, Replace, Extend], ids=lambda kind: kind.__name__)
def test_a_deadline_counts_from_the_send_of_the_renewal(
    request_: type[Create | Replace | Extend],
) -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    if request_ is Extend:
        session = bench.session(renew(lease, {}, bench.context()))
    elif request_ is Replace:
        overdue(bench)
        session = bench.asking("b").commit().commit()
    else:
        del bench.store.entries[APT]
        session = bench.asking("b")
    session.expect(request_)
    sent_at = bench.now
    outcome = session.commit(after=1.0).outcome
    assert outcome.sent_at == sent_at
    assert outcome.deadline == pytest.approx(sent_at + 9.9)


# --- 1: the store counts revisions -----------------------------------------------------------------------------------


def test_rule_01_a_renewal_without_changes_moves_the_revision() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    before = bench.store.perform(Read(APT)).revision
    bench.session(renew(lease, {}, bench.context())).run()
    assert bench.store.perform(Read(APT)).revision != before


def test_rule_01_no_command_supplies_a_revision() -> None:
    bench = Bench()
    session = bench.asking("a")
    assert not {"revision", "incarnation"} & set(session.expect(Create).fields)


def test_rule_01_concurrent_siblings_leave_a_revision_each() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    siblings = [bench.session(renew(lease, {}, bench.context())) for _ in range(2)]
    revisions = {bench.store.perform(Read(APT)).revision}
    for sibling in siblings:
        assert sibling.commit().outcome.deadline is not None
        revisions.add(bench.store.perform(Read(APT)).revision)
    assert len(revisions) == 3


# --- 2: an adopted record counts from the Extend ---------------------------------------------------------------------


def test_rule_02_an_adopted_create_counts_from_its_extend() -> None:
    bench = Bench(ttl=10)
    session = bench.asking("a").lose(after=1.0)
    session.expect(Read)
    session.commit(after=0.5)
    session.expect(Extend)
    extended_at = bench.now
    grant = session.commit(after=0.5).outcome
    assert isinstance(grant, Grant)
    assert grant.deadline == pytest.approx(extended_at + 10 * 0.99)


def test_rule_02_an_adoption_by_an_unknown_extend_is_no_grant() -> None:
    bench = Bench(ttl=10)
    session = bench.asking("a").lose().commit()
    session.expect(Extend)
    session.lose()
    session.expect(Pause)
    session.wait()
    assert isinstance(session.expect(Read), Read)
    adopted_at = bench.now
    grant = session.run()
    assert grant.deadline == pytest.approx(adopted_at + 9.9)


def test_rule_02_an_adoption_that_comes_too_late_adopts_nothing() -> None:
    bench = Bench(ttl=10)
    session = bench.asking("a").lose().commit()
    session.expect(Extend)
    overdue(bench)
    other = bench.granted("b")
    session.commit()
    assert session.outcome is None
    assert bench.standing().incarnation == other.lease.incarnation  # type: ignore[union-attr]
    session.commit()
    session.expect(Pause)


@pytest.mark.parametrize("field", ["ended", "closing", "revoked"])
@pytest.mark.parametrize("read_before", [True, False])
def test_rule_02_our_own_ending_record_is_not_adopted(field: str, read_before: bool) -> None:
    """An operator breaks what our Create, whose answer was lost, wrote: seen by the read, or by the Extend alone."""
    bench = Bench(ttl=10)
    session = bench.asking("a").lose()
    own = bench.standing()
    assert own is not None
    said = {field: revocation_text(Revocation("op", "x")) if field == "revoked" else "1"}
    if not read_before:
        session.commit()
    bench.store.perform(Extend(APT, said, own.incarnation))
    if not read_before:
        session.expect(Extend)
        session.commit().expect(Read)
    grant = session.run()
    assert isinstance(grant, Grant)
    assert grant.lease.incarnation != own.incarnation


# --- 3: the ttl belongs to the incarnation ---------------------------------------------------------------------------


def test_rule_03_a_contender_judges_by_the_records_ttl() -> None:
    bench = Bench(ttl=20)
    bench.granted("a")
    hasty = Bench(ttl=2).settings
    bench.now += 10
    assert isinstance(bench.asking("b", bench.context(settings=hasty), tries_once=True).run(), Contended)


def test_rule_03_no_renewal_writes_a_ttl() -> None:
    bench = Bench()
    grant = bench.granted("a")
    session = bench.session(renew(grant.lease, {"progress": "1 of 2"}, bench.context()))
    assert "ttl" not in session.expect(Extend).fields


def test_rule_03_a_renewal_lasts_no_longer_than_the_records_ttl() -> None:
    bench = Bench(ttl=10)
    grant = bench.granted("a")
    forged = LeaseId(APT, "a", grant.lease.incarnation, 1000.0)
    renewed = bench.session(renew(forged, {}, bench.context())).run()
    assert renewed.deadline == pytest.approx(bench.now + 9.9)


def test_rule_03_a_member_with_a_forged_ttl_uses_the_records() -> None:
    bench = Bench(ttl=10)
    grant = bench.granted("a")
    forged = LeaseId(APT, "a", grant.lease.incarnation, 1000.0)
    joined = bench.joined(forged, "m")
    assert joined.record_deadline <= bench.now + 9.9
    renewed = bench.session(renew_member(forged, joined.registration, {}, bench.context())).run()
    assert renewed.record_deadline <= bench.now + 9.9


# --- 4: members ------------------------------------------------------------------------------------------------------


def test_rule_04_a_member_reads_only_after_its_registration() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.attaching(lease, "m")
    assert session.expect(Create).name == member_name(lease, "m")
    session.commit()
    assert session.expect(Read).name == APT


def test_rule_04_who_registers_anew_reads_anew() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.attaching(lease, "m")
    session.late()
    assert session.expect(Read).name == member_name(lease, "m")
    session.commit().wait()
    assert session.expect(Create).name == member_name(lease, "m")
    session.commit()
    assert session.expect(Read).name == APT


def test_rule_04_an_unseen_registration_counts_from_its_extend() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    session = bench.attaching(lease, "m").lose(after=1.0).commit(after=1.0)
    assert session.expect(Extend).lifetime == 10.0
    adopted_at = bench.now
    joined = session.run()
    assert joined.registration_deadline == pytest.approx(adopted_at + 9.9)


@pytest.mark.parametrize("field", ["closing", "revoked"])
def test_rule_04_a_member_withdraws_if_the_read_shows_an_ending(field: str) -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    text = "1" if field == "closing" else revocation_text(Revocation("op", "why"))
    bench.store.perform(Extend(APT, {field: text}, lease.incarnation))
    session = bench.attaching(lease, "m").commit().commit()
    session.expect(Remove)
    assert isinstance(session.run(), Over)
    assert member_name(lease, "m") not in bench.store.entries


def test_rule_04_a_member_withdraws_from_another_incarnation() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    overdue(bench)
    bench.granted("b")
    outcome = bench.attaching(lease, "m").run()
    assert isinstance(outcome, Over)
    assert outcome.reason is LossReason.TAKEN
    assert member_name(lease, "m") not in bench.store.entries


def test_rule_04_a_failed_withdrawal_keeps_the_first_error() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, CLOSING, lease.incarnation))
    session = bench.attaching(lease, "m").commit().commit()
    while not session.is_over:
        session.expect(Remove)
        session.unsent()
        if not session.is_over:
            session.wait()
    assert isinstance(session.outcome, Over)


def test_rule_04_an_attach_just_before_closing_is_waited_for() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    member = bench.attaching(lease, "m").commit()
    member.expect(Read)
    member.commit().expect(Extend)
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    owner.commit().commit()
    owner.expect(Pause)


def test_rule_04_an_attach_whose_renewal_meets_closing_withdraws() -> None:
    """The owner closes between the read of who attaches and its Extend."""
    bench = Bench()
    lease = bench.granted("a").lease
    member = bench.attaching(lease, "m").commit().commit()
    member.expect(Extend)
    bench.store.perform(Extend(APT, CLOSING, lease.incarnation))
    member.commit().expect(Remove)
    outcome = member.run()
    assert isinstance(outcome, Over)
    assert member_name(lease, "m") not in bench.store.entries


def test_rule_04_an_attach_after_the_list_sees_closing() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    member = bench.attaching(lease, "m")
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    owner.commit().commit()
    owner.expect(Remove)
    assert isinstance(member.run(), Over)
    assert owner.run() is Outcome.REMOVED


def test_rule_04_nobody_lists_before_an_answer_shows_closing() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    owner.expect(Extend)
    owner.lose()
    owner.expect(Pause)
    owner.wait()
    owner.expect(Extend)
    owner.commit()
    owner.expect(List)


def test_rule_04_no_list_without_a_reply_that_shows_closing() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    owner.expect(Extend)
    owner.answer(bench.store.perform(Read(APT))).expect(Pause)
    owner.wait().expect(Extend)
    owner.commit().expect(List)


@pytest.mark.parametrize("by_ticket", [False, True])
def test_rule_04_a_reset_incarnation_protects_the_next_holder(
    by_ticket: bool,
) -> None:
    """A store that was emptied may count from the start again: the record there then has the incarnation of ours."""
    bench = Bench()
    other = bench.granted("b").lease
    ours = LeaseId(APT, "a", other.incarnation, other.ttl)
    releasing = release(ours, bench.context(), shared=True, bound_at=bench.now + 30, salt="a", by_ticket=by_ticket)
    assert bench.session(releasing).run() is Outcome.NOT_OURS
    assert bench.holder == "b"
    if by_ticket:  # whoever knows a lease from a ticket alone looks first, and writes nothing
        assert bench.session(renew(other, {}, bench.context())).run().deadline is not None


def test_rule_04_unacknowledged_closing_leaves_the_record() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    while not owner.is_over:
        owner.expect(Extend)
        owner.late()
        owner.wait(5.0)
    assert owner.outcome is Outcome.LEFT
    assert bench.holder == "a"


def test_rule_04_a_live_member_at_the_bound_leaves_the_record() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 12, salt="a"))
    while not owner.is_over:
        if isinstance(owner.command, Pause):
            owner.wait(1.0)
            bench.session(renew(joined.registration, {}, bench.context())).run()
        else:
            owner.commit()
    assert owner.outcome is Outcome.LEFT
    assert bench.holder == "a"


@pytest.mark.parametrize("traits", [SHARED, DATED, NONE])
def test_rule_04_a_dead_registration_expires_within_the_bound(traits: object) -> None:
    bench = Bench(traits, ttl=10)  # type: ignore[arg-type]
    context = bench.context()
    lease = bench.granted("a", context).lease
    bench.joined(lease, "m")
    bound_at = bench.now + context.drain_bound()
    assert bench.session(release(lease, context, shared=True, bound_at=bound_at, salt="a")).run(2000) is Outcome.REMOVED


def test_rule_04_the_last_look_of_a_drain_judges_too() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    bench.joined(lease, "m")
    bound_at = bench.now + 10.2
    session = bench.session(drain(lease, bench.context(), bound_at=bound_at, salt="a")).commit()
    session.wait(11.0)  # one long pause, beyond the bound: the registration is overdue by now
    session.expect(List)
    session.commit()
    session.expect(Remove)
    assert session.run() is True


def test_rule_04_ever_new_dead_members_do_not_delay_a_release() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    session = bench.session(drain(lease, bench.context(), bound_at=bench.now + 1, salt="a"))
    for number in range(50):
        if session.is_over:
            break
        if isinstance(session.command, List):
            bench.joined(lease, f"m{number}")
            overdue(bench)
        session.commit()
    assert session.outcome is False


def test_rule_04_a_dead_registration_is_removed_by_its_revision() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    bench.store.perform(Extend(APT, CLOSING, lease.incarnation))
    overdue(bench)
    owner = bench.session(drain(lease, bench.context(), bound_at=bench.now + 30, salt="a")).commit()
    assert owner.expect(Remove).revision is not None
    bench.session(renew(joined.registration, {}, bench.context())).run()  # just in time
    owner.commit()
    owner.expect(List)
    owner.commit()
    owner.expect(Pause)
    assert joined.registration.name in bench.store.entries


def test_rule_04_a_release_by_ticket_drains_without_attaching() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t"))
    assert session.expect(Extend).fields == CLOSING
    session.commit()
    session.expect(List)
    session.commit()
    assert session.expect(Remove).incarnation == lease.incarnation
    assert session.commit().outcome is Outcome.REMOVED


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("by_ticket", [False, True])
def test_rule_04_a_revoked_shared_lease_is_ended_and_informs(now: bool, by_ticket: bool) -> None:
    """A member has stopped in the middle, though the owner never noticed."""
    bench = Bench()
    lease = bench.granted("a").lease
    member = bench.joined(lease, "m")
    bench.session(broken_by_an_operator(bench, now=now)).run()
    stopped = bench.session(renew_member(lease, member.registration, {}, bench.context())).run()
    assert stopped.reason is LossReason.REVOKED
    bench.session(take_back(member.registration, bench.context())).run()
    releasing = release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t", by_ticket=by_ticket)
    # who comes with a ticket after the lease was ended by the operator gives nothing back
    assert bench.session(releasing).run() is (Outcome.NOT_OURS if now and by_ticket else Outcome.ENDED)
    assert bench.asking("b", tries_once=True).run().previous_lease == PreviousLease(LeaseOutcome.REVOKED, "a", "a")


@pytest.mark.parametrize("now", [False, True])
def test_rule_04_a_broken_lease_is_released_by_its_ticket_once(now: bool) -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.session(broken_by_an_operator(bench, now=now)).run()

    def given_back() -> Outcome:
        releasing = release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t", by_ticket=True)
        return bench.session(releasing).run()

    assert [given_back() for _ in range(3)] == [Outcome.NOT_OURS if now else Outcome.ENDED, *[Outcome.NOT_OURS] * 2]


def test_rule_04_a_tombstone_is_not_released_by_the_old_ticket() -> None:
    bench = Bench(lock_delay=5.0)
    lease = bench.granted("a").lease
    bench.session(broken_by_an_operator(bench, now=True)).run()
    assert bench.holder == "tombstone/s"
    releasing = release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t", by_ticket=True)
    assert bench.session(releasing).run() is Outcome.NOT_OURS
    assert bench.holder == "tombstone/s"


def test_rule_04_a_shared_lease_revoked_during_a_drain_is_ended() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    member = bench.joined(lease, "m")
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t"))
    owner.commit().commit().expect(Pause)
    bench.session(broken_by_an_operator(bench, now=False)).run()
    stopped = bench.session(renew_member(lease, member.registration, {}, bench.context())).run()
    assert stopped.reason is LossReason.REVOKED
    bench.session(take_back(member.registration, bench.context())).run()
    assert owner.run() is Outcome.ENDED
    assert bench.asking("b", tries_once=True).run().previous_lease.ending is LeaseOutcome.REVOKED


@pytest.mark.parametrize("happens", ["late renewal", "taken by another", "deleted"])
def test_rule_04_a_closed_lease_that_changes_is_read_once_more(happens: str) -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t"))
    owner.commit().commit()
    assert owner.expect(Remove).revision is not None
    if happens == "late renewal":
        bench.store.perform(Extend(APT, {}, lease.incarnation, lifetime=10.0))
    else:
        del bench.store.entries[APT]
    if happens == "taken by another":
        bench.granted("b")
    assert owner.run() is (Outcome.REMOVED if happens == "late renewal" else Outcome.NOT_OURS)
    assert bench.holder == ("b" if happens == "taken by another" else None)


@pytest.mark.parametrize("is_late", [False, True])
def test_rule_04_a_changed_lease_is_removed_only_to_the_deadline(is_late: bool) -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="t"))
    owner.commit().commit().expect(Remove)
    bench.store.perform(
        Extend(APT, {}, lease.incarnation, lifetime=10.0)
    )  # a late renewal: the revision is another one
    owner.commit().commit()
    assert owner.expect(Remove).revision is None
    owner.lose()
    if is_late:
        overdue(bench)  # somebody else may have taken it since, and given it back
    assert owner.wait().run() is (Outcome.NOT_OURS if is_late else Outcome.REMOVED)


def broken_by_an_operator(bench: Bench, *, now: bool) -> Script[Any]:
    return break_lease(APT, Revocation("op", "stuck"), bench.context(), now=now, incarnation=None, salt="s")


def test_rule_04_a_member_gives_back_its_registration_alone() -> None:
    bench = Bench()
    grant = bench.granted("a")
    joined = bench.joined(grant.lease, "m")
    lease_state = bench.lease_state(grant, is_owner=False, registration=joined.registration, registration_deadline=1e9)
    assert bench.session(give_back(lease_state, bench.context(), bound_at=bench.now + 30)).run() is Outcome.REMOVED
    assert bench.holder == "a"


def test_rule_04_a_withdrawal_without_a_reply_is_retried_first() -> None:
    bench = Bench()
    grant = bench.granted("a")
    joined = bench.joined(grant.lease, "a2")
    lease_state = bench.lease_state(grant, shared=True, registration=joined.registration, registration_deadline=1e9)
    session = bench.session(give_back(lease_state, bench.context(), bound_at=bench.now + 30))
    session.late()
    session.wait()
    assert session.expect(Remove).name == joined.registration.name
    session.commit()
    session.expect(Extend)


def test_rule_04_a_member_that_reads_closing_extends_nothing() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    bench.store.perform(Extend(APT, CLOSING, lease.incarnation))
    session = bench.session(renew_member(lease, joined.registration, {}, bench.context())).commit().commit()
    assert session.outcome.record_deadline is None


def test_rule_04_a_renewal_that_meets_closing_extends_nothing() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, CLOSING, lease.incarnation))
    assert bench.session(renew(lease, {}, bench.context())).run().deadline is None


def test_rule_04_a_sweep_spares_a_lease_with_members() -> None:
    """An unsettled acquisition was shared; its owner's drain ended with a live member: the sweep must not remove it."""
    bench = Bench()
    lease = bench.granted("a").lease
    bench.joined(lease, "m")
    assert bench.session(sweep(APT, "a", bench.context(), UsedLease(lease.incarnation, is_shared=True))).run() is False
    assert bench.holder == "a"


# --- 5: lock-delay ---------------------------------------------------------------------------------------------------


def test_rule_05_a_lock_delay_does_not_move_the_deadline() -> None:
    bench = Bench(ttl=10, lock_delay=5)
    grant = bench.granted("a")
    assert grant.deadline == pytest.approx(grant.sent_at + 9.9)
    bench.now = grant.sent_at + 15.0
    assert isinstance(bench.asking("b", tries_once=True).run(), Contended)
    bench.now = grant.sent_at + 15.2
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)


@pytest.mark.parametrize(("lock_delay", "may"), [(0.0, True), (5.0, False)])
def test_rule_05_after_a_loss_with_a_delay_nothing_is_removed(lock_delay: float, may: bool) -> None:
    bench = Bench(ttl=10, lock_delay=lock_delay)
    lease_state = bench.lease_state(bench.granted("a"))
    lease_state.lose(LossReason.UNREACHABLE)
    assert may_remove_after_loss(lease_state, bench.now) is may


def test_rule_05_a_break_at_once_leaves_a_tombstone_by_replace() -> None:
    bench = Bench(ttl=10, lock_delay=5)
    grant = bench.granted("a")
    session = bench.session(
        break_lease(APT, Revocation("op", "why"), bench.context(), now=True, incarnation=None, salt="s")
    ).commit()
    session.expect(Replace)
    session.commit()
    assert session.outcome.removed
    assert bench.session(renew(grant.lease, {}, bench.context())).run().reason is LossReason.REVOKED
    bench.now += 5.0
    assert isinstance(bench.asking("b", tries_once=True).run(), Contended)
    bench.now += 0.1
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)


def test_rule_05_a_tombstone_with_our_name_is_not_reclaimed() -> None:
    bench = Bench(ttl=10, lock_delay=5)
    bench.granted("a", owner="pub")
    script = break_lease(APT, Revocation("op", "why"), bench.context(), now=True, incarnation=None, salt="s")
    bench.session(script).run()
    want = bench.want("a2", owner="pub", reclaim=True)
    assert isinstance(bench.asking(want, tries_once=True).run(), Contended)


# --- 7: where Date and updated are two clocks ------------------------------------------------------------------------


def test_rule_07_the_companions_updated_outranks_a_wrong_date() -> None:
    bench = Bench(DATED, skew=3600.0, ttl=10)
    bench.granted("a")
    session = bench.asking("b", tries_once=True).commit().commit()
    assert session.expect(Extend).name.space is Space.COMPANION
    assert isinstance(session.run(), Contended)


def test_rule_07_a_date_far_behind_is_made_up_for_by_observation() -> None:
    bench = Bench(DATED, skew=-3600.0, ttl=10)
    bench.granted("a")
    context = bench.context()
    assert isinstance(bench.asking("b", context, tries_once=True).run(), Contended)
    bench.now += 10.2
    assert isinstance(bench.asking("b", context, tries_once=True).run(), Grant)


def test_rule_07_an_uncalibrated_member_extends_instead() -> None:
    bench = Bench(DATED, skew=-5.0, ttl=20)
    lease = bench.granted("a").lease
    bench.now += 5
    session = bench.attaching(lease, "m").commit().commit()
    assert session.expect(Extend).name == APT


def test_rule_07_a_calibrated_member_counts_from_the_read() -> None:
    bench = Bench(DATED, skew=0.0, ttl=300)
    lease = bench.granted("a").lease
    bench.now += 5
    session = bench.attaching(lease, "m").commit().commit()
    assert isinstance(session.outcome, Attached)
    assert session.outcome.record_deadline < bench.now - 5 + 300 * 0.99


def test_rule_07_a_registration_that_is_adopted_calibrates_too() -> None:
    bench = Bench(DATED, skew=-5.0, ttl=20)
    lease = bench.granted("a").lease
    context = bench.context()
    context.observations.is_calibrated = True  # by an answer of another server, say
    session = bench.attaching(lease, "m", context).lose().commit()
    session.expect(Extend)
    session.commit()
    assert not context.observations.is_calibrated


# --- 9, 14: observation ----------------------------------------------------------------------------------------------


def test_rule_09_observation_is_from_first_receipt_to_last_send() -> None:
    bench = Bench(NONE, ttl=10)
    bench.granted("a")
    context = bench.context()
    first = bench.asking("b", context, tries_once=True).commit()
    first.expect(Read)
    first.commit(after=1.0)
    seen_at = bench.now
    bench.now = seen_at + 10.0
    second = bench.asking("b", context, tries_once=True, look_first=True)
    assert isinstance(second.commit(after=5.0).outcome, Contended)  # sent too early, however late it came
    third = bench.asking("b", context, tries_once=True, look_first=True).commit()
    third.expect(Replace)


def test_rule_09_a_renewal_starts_the_observation_anew() -> None:
    bench = Bench(NONE, ttl=10)
    grant = bench.granted("a")
    context = bench.context()
    bench.asking("b", context, tries_once=True).run()
    bench.now += 10
    bench.session(renew(grant.lease, {}, bench.context())).run()
    bench.now += 10
    assert isinstance(bench.asking("b", context, tries_once=True).run(), Contended)


def test_rule_14_an_observation_outlives_one_acquisition() -> None:
    """Contenders whose wait is shorter than the ttl get a dead holder's lock in the end."""
    bench = Bench(NONE, ttl=10)
    bench.granted("a")
    observations = ObservationCache()
    for attempt in range(5):
        outcome = bench.asking(f"b{attempt}", bench.context(observations), gives_up_at=bench.now + 3).run()
        if isinstance(outcome, Grant):
            break
        bench.now += 0.5
    assert isinstance(outcome, Grant)


# --- 10: tokens ------------------------------------------------------------------------------------------------------


def test_rule_10_a_token_counts_only_once_it_is_published() -> None:
    bench = Bench(DATED)
    lease = bench.granted("a").lease
    session = bench.session(draw_token(lease, bench.context(), salt="s"))
    assert session.expect(Read).name == APT
    session.commit()
    assert session.expect(Extend).name.space is Space.COMPANION
    session.commit()  # absent: it is made
    session.commit()
    published = session.expect(Extend)
    assert (published.name, published.incarnation) == (APT, lease.incarnation)
    assert published.revision == "1"
    token = session.commit().outcome
    assert bench.standing().fields["token"] == str(token)  # type: ignore[union-attr]


def test_rule_10_a_holder_superseded_while_drawing_gets_no_token() -> None:
    bench = Bench(DATED, ttl=10)
    lease = bench.granted("a").lease
    session = bench.session(draw_token(lease, bench.context(), salt="s")).commit().commit().commit()
    assert session.expect(Extend).name == APT
    overdue(bench)
    successor = bench.granted("b")
    assert session.run() is None
    assert bench.session(draw_token(successor.lease, bench.context(), salt="t")).run() is not None


def test_rule_10_a_late_publication_is_the_leases_one_token() -> None:
    bench = Bench(DATED)
    lease = bench.granted("a").lease
    session = bench.session(draw_token(lease, bench.context(), salt="s")).commit().commit().commit()
    late = session.late()
    session.commit().wait()  # the read shows no token yet
    session.commit()  # a second number is drawn
    landed = bench.store.perform(late)
    assert isinstance(landed, Snapshot)
    token = session.run()
    assert landed.fields["token"] == str(token) == bench.standing().fields["token"]  # type: ignore[union-attr]


def test_rule_10_siblings_that_draw_at_once_share_one_token() -> None:
    bench = Bench(DATED)
    lease = bench.granted("a").lease
    one = bench.session(draw_token(lease, bench.context(), salt="1")).commit()
    other = bench.session(draw_token(lease, bench.context(), salt="2")).commit()
    assert one.run() == other.run()


def test_rule_10_tokens_grow_over_a_deleted_companion() -> None:
    bench = Bench(DATED)
    for move in range(5):
        bench.session(draw("apt", f"move {move}", bench.context())).run()
    first = bench.session(draw_token(bench.granted("a").lease, bench.context(), salt="1")).run()
    for name in [name for name in bench.store.entries if name.space is Space.COMPANION]:
        del bench.store.entries[name]
    overdue(bench)
    assert bench.session(draw_token(bench.granted("b").lease, bench.context(), salt="2")).run() > first


# --- 11: reserved names ----------------------------------------------------------------------------------------------


def test_rule_11_members_have_the_incarnation_in_their_name() -> None:
    name = member_name(LeaseId(APT, "a", "77", 10.0), "m")
    assert (name.space, name.key, name.part) == (Space.MEMBER, "apt", "77/m")


# --- 12: reclaim -----------------------------------------------------------------------------------------------------


def test_rule_12_reclaim_closes_lists_waits_then_replaces() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a", owner="pub").lease
    joined = bench.joined(lease, "m")
    session = bench.asking(bench.want("a2", owner="pub", reclaim=True)).commit().commit()
    assert session.expect(Extend).fields == CLOSING
    session.commit()
    session.expect(List)
    session.commit()
    session.expect(Pause)
    bench.store.perform(Remove(joined.registration.name, joined.registration.incarnation))
    session.wait()
    session.commit()
    session.expect(Read)
    session.commit()
    session.expect(Replace)
    assert isinstance(session.run(), Grant)


def test_rule_12_reclaim_spares_a_holder_that_came_meanwhile() -> None:
    bench = Bench(ttl=10)
    old = bench.granted("a", owner="pub").lease
    session = bench.asking(bench.want("a2", owner="pub", reclaim=True), tries_once=True).commit().commit().commit()
    session.expect(List)
    session.commit().expect(Read)
    bench.session(remove(old, bench.context())).run()
    bench.granted("c", owner="somebody else")
    assert isinstance(session.run(), Contended)
    assert bench.holder == "c"


def test_rule_12_reclaim_with_a_live_member_times_out() -> None:
    """The wait for members is part of the wait for the lock: it neither outlasts it nor spins."""
    bench = Bench(ttl=10)
    lease = bench.granted("a", owner="pub").lease
    bench.joined(lease, "m")
    want = bench.want("a2", owner="pub", reclaim=True)
    started_at = bench.now
    outcome = bench.asking(want, gives_up_at=bench.now + 2).run()
    assert isinstance(outcome, Contended)
    assert bench.now <= started_at + 3 * bench.settings.backoff_max
    assert bench.holder == "a"


def test_rule_12_reclaim_tried_once_looks_at_the_members_once() -> None:
    bench = Bench(ttl=10)
    bench.joined(bench.granted("a", owner="pub").lease, "m")
    want = bench.want("a2", owner="pub", reclaim=True)
    session = bench.asking(want, tries_once=True, gives_up_at=bench.now)
    pauses = 0
    while not session.is_over:
        if isinstance(session.command, Pause):
            pauses += 1
            session.wait(0.0)
        else:
            session.commit()
    assert isinstance(session.outcome, Contended)
    assert pauses <= 1


def test_rule_12_reclaim_is_refused_for_a_holder_kept_here() -> None:
    bench = Bench()
    bench.granted("a", owner="pub")
    want = bench.want("a2", owner="pub", reclaim=True)
    want.keeps = lambda holder: holder == "a"
    assert isinstance(bench.asking(want, tries_once=True).run(), Contended)


def test_rule_12_reclaim_is_refused_for_another_owner() -> None:
    bench = Bench()
    bench.granted("a", owner="pub")
    want = bench.want("b", owner="other", reclaim=True)
    assert isinstance(bench.asking(want, tries_once=True).run(), Contended)


def test_rule_12_who_reclaims_has_its_token_before_it_holds() -> None:
    bench = Bench(DATED)
    bench.granted("a", owner="pub")
    grant = bench.asking(bench.want("a2", owner="pub", reclaim=True)).run()
    assert isinstance(grant, Grant)
    assert grant.token is not None
    assert bench.standing().fields["token"] == str(grant.token)  # type: ignore[union-attr]


def test_rule_12_a_reclaim_without_a_draw_draws_when_adopted() -> None:
    bench = Bench(DATED)
    bench.granted("a", owner="pub")
    want = bench.want("a2", owner="pub", reclaim=True)
    session = bench.asking(want)
    while not (isinstance(session.command, Extend) and session.command.name.space is Space.COMPANION):
        session.commit()
    assert want.unsettled
    session.unsent()
    session.expect(Pause)
    grant = session.run()
    assert isinstance(grant, Grant)
    assert grant.token is not None


def test_rule_12_a_live_holder_taken_for_dead_stops_in_time() -> None:
    bench = Bench()
    grant = bench.granted("a", owner="pub")
    lease_state = bench.lease_state(grant)
    bench.store.perform(Extend(APT, CLOSING, grant.lease.incarnation))
    lease_state.sending(bench.now)
    renewed = bench.session(renew(grant.lease, {}, bench.context())).run()
    lease_state.renewed(renewed.sent_at, renewed.deadline, bench.now)
    assert lease_state.reason is LossReason.REVOKED
    assert lease_state.wake_at() == float("inf")


def test_rule_12_an_unknown_replace_is_read_before_contended() -> None:
    bench = Bench()
    bench.granted("a", owner="pub")
    session = bench.asking(bench.want("a2", owner="pub", reclaim=True), tries_once=True)
    while not isinstance(session.command, Replace):
        session.commit()
    session.lose()
    session.expect(Read)
    assert isinstance(session.run(), Grant)
