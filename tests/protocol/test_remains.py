"""What mutants showed that no test had seen: each of these fails with one small change of the engine."""

from __future__ import annotations

import math

import pytest

from lockstead.errors import LossReason, OutcomeUnknown
from lockstead.protocol.commands import (
    Absent,
    Conflict,
    Create,
    Extend,
    List,
    OutOfTime,
    Pause,
    Read,
    Reply,
    Snapshot,
)
from lockstead.protocol.context import LeaseId
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.lifecycle import Action, LeaseState
from lockstead.protocol.members import LATE_LOOKS_MAX, Attached, _is_ample, drain, renew_member, take_back
from lockstead.protocol.observations import OBSERVATIONS_MAX, ObservationCache, Reading
from lockstead.protocol.previous_lease import unused
from lockstead.protocol.record import Record, Revocation, revocation_text
from lockstead.protocol.release import Outcome, UsedLease, audit, give_back, may_remove_after_loss, release, sweep
from lockstead.protocol.renew import Over, extensible, renew
from lockstead.protocol.waiting import until_free
from lockstead.settings import Settings
from lockstead.values import LeaseOutcome, Name, PreviousLease, Sequencer, Space
from tests.protocol.bench import APT, Bench, Session
from tests.simulation.store import DATED, NONE, SHARED


def lease_state() -> LeaseState:
    return LeaseState(LeaseId(APT, "a", "1", 300.0), Settings.make(ttl=300), deadline=297.0, renewed_at=0.0)


@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"identity": "b/1", "owner": "bea"}, LossReason.TAKEN, "bea"),
        ({"identity": "b/1", "owner": ""}, LossReason.TAKEN, "b/1"),
        ({"ended": "1"}, LossReason.GONE, ""),
    ],
)
def test_a_loss_names_who_has_the_lock_now_and_nobody_else(
    fields: dict[str, str], reason: LossReason, detail: str
) -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.store.perform(Extend(APT, fields, lease.incarnation))
    assert bench.session(renew(lease, {}, bench.context())).run() == Over(reason, detail)


@pytest.mark.parametrize("field", ["closing", "revoked", "ended"])
def test_a_shared_renewal_does_not_extend_an_ending_lease(field: str) -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    said = '{"by":"op","reason":"x"}' if field == "revoked" else "1"
    bench.store.perform(Extend(APT, {field: said}, lease.incarnation))
    assert isinstance(bench.session(extensible(lease, bench.context())).run(), Over)


def test_a_member_whose_registration_is_marked_closing_is_lost() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    bench.store.perform(Extend(joined.registration.name, {"closing": "1"}, joined.registration.incarnation))
    outcome = bench.session(renew_member(lease, joined.registration, {}, bench.context())).run()
    assert outcome == Over(LossReason.GONE)


def test_observations_forget_the_oldest_record() -> None:
    observations = ObservationCache()
    seen = Snapshot({}, "1", "1")
    names = [Name(f"k{number}") for number in range(OBSERVATIONS_MAX)]
    for name in names:
        observations.observe(name, seen, Reply(seen, 1.0, 2.0))
    observations.observe(names[5], seen, Reply(seen, 3.0, 4.0))
    assert len(observations.looks) == OBSERVATIONS_MAX
    assert names[0] in observations.looks
    observations.observe(Name("one more"), seen, Reply(seen, 5.0, 6.0))
    assert len(observations.looks) == OBSERVATIONS_MAX
    assert names[0] not in observations.looks


def test_a_book_holds_only_what_is_watched_and_still_there() -> None:
    bench = Bench()
    owner, watcher = bench.context(), bench.context()
    lease = bench.granted("a", owner).lease
    bench.session(renew(lease, {}, owner)).run()
    assert not owner.observations.looks
    wait = bench.session(
        until_free(APT, watcher, gives_up_at=math.inf, tries_once=False, on_wait=lambda _: None)
    ).commit()
    assert list(watcher.observations.looks) == [APT]
    bench.store.erase(APT)
    wait.run()
    assert not watcher.observations.looks


def test_a_member_recognizes_its_own_renewal_of_the_lease() -> None:
    bench = Bench(ttl=100)
    lease = bench.granted("a").lease
    context = bench.context()
    joined = bench.joined(lease, "m", context)
    for _ in range(4):
        bench.now += bench.settings.renew_every
        bench.session(renew_member(lease, joined.registration, {}, context)).run()
        standing = bench.standing()
        assert standing is not None
        assert standing.committed_at == bench.now


def test_a_drain_polls_with_growing_pauses_up_to_a_maximum() -> None:
    bench = Bench(ttl=1000, backoff_max=1.0)
    lease = bench.granted("a").lease
    bench.joined(lease, "m")
    session = bench.session(drain(lease, bench.context(), bound_at=bench.now + 60, salt="a"))
    longest = []
    for _ in range(6):
        session.expect(List)
        pause = session.commit().expect(Pause)
        longest.append(pause.at_most)
        session.wait(pause.at_most)
    assert longest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_a_renewal_that_hangs_counts_in_every_round() -> None:
    held = lease_state()
    every, now = held.settings.renew_every, held.due_at
    held.sending(now)
    for _ in range(held.settings.max_failures - 1):
        now += every
        assert held.next_action(now) is Action.NOTHING
    assert held.next_action(now + every) is Action.NOTIFY_LOSS
    assert held.reason is LossReason.UNREACHABLE


def test_a_renewal_may_be_sent_early_after_half_the_wait() -> None:
    held = lease_state()
    soon = held.due_at - held.settings.renew_every / 2
    assert held.may_join(soon)
    assert not held.may_join(soon - 0.001)
    held.sending(soon)
    assert not held.may_join(soon)
    lost = lease_state()
    lost.lose(LossReason.TAKEN)
    assert not lost.may_join(soon)


def test_the_last_error_is_kept_until_a_renewal_succeeds() -> None:
    held, error = lease_state(), OutcomeUnknown("refused")
    held.sending(40.0)
    held.failed(41.0, error)
    assert held.last_error is error
    held.sending(50.0)
    held.renewed(50.0, 347.0, 51.0)
    assert held.last_error is None


def test_a_sequencer_is_verified_where_no_answer_tells_an_age() -> None:
    bench = Bench(NONE, ttl=10)
    token = bench.granted("a").token
    assert token is not None
    bench.now += 1000
    assert bench.session(verify(Sequencer("apt", token), bench.context())).run() is True


def test_a_draw_that_gives_no_number_gives_no_token() -> None:
    bench = Bench(DATED)
    lease = bench.granted("a").lease
    session = bench.session(draw_token(lease, bench.context(), salt="s")).commit()
    assert session.expect(Extend).name.space is Space.COMPANION
    session.answer(Snapshot({"v": "1"}, "1", "2"))
    assert (session.is_over, session.outcome) == (True, None)
    assert "token" not in bench.store.perform(Read(APT)).fields


def test_a_member_is_content_with_what_outlasts_all_failures() -> None:
    context = Bench(ttl=300).context()
    settings = context.settings
    needed = settings.renew_every + settings.max_failures * settings.renew_every + settings.abort_margin
    assert _is_ample(needed, context)
    assert not _is_ample(needed - 0.001, context)


@pytest.mark.parametrize(("after", "is_extended"), [(-0.25, False), (0.0, True)])
def test_a_member_extends_only_what_is_older_than_an_interval(after: float, is_extended: bool) -> None:
    bench = Bench(ttl=128, renew_every=16, drift=0.0)  # all sums of these are exact
    lease, context = bench.granted("a").lease, bench.context()
    joined = bench.joined(lease, "m", context)
    changed_after = bench.now  # when it attached and saw the state before
    bench.now += 8
    bench.store.perform(Extend(APT, {"progress": "half"}, lease.incarnation))
    bench.session(renew_member(lease, joined.registration, {}, context)).run()
    revision = bench.store.perform(Read(APT)).revision
    bench.now = changed_after + context.settings.renew_every + after
    bench.session(renew_member(lease, joined.registration, {}, context)).run()
    assert (bench.store.perform(Read(APT)).revision != revision) is is_extended


def test_a_registration_that_arrives_late_is_found_and_renewed() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.attaching(lease, "m")
    late = session.late()
    session.commit().wait()  # nothing is there yet, so it is asked for again
    bench.store.perform(late)
    session.commit().commit()
    assert session.expect(Extend).name.space is Space.MEMBER
    joined = session.run()
    assert isinstance(joined, Attached)
    assert bench.store.perform(Read(joined.registration.name)).incarnation == joined.registration.incarnation


def test_a_registration_has_its_ttl_and_renewal_interval() -> None:
    bench = Bench(ttl=20)
    created = bench.attaching(bench.granted("a").lease, "m").expect(Create)
    assert (created.lifetime, created.renew_every) == (20.0, bench.settings.renew_every)


def test_a_registration_that_vanished_is_made_again() -> None:
    bench = Bench()
    session = bench.attaching(bench.granted("a").lease, "m").lose().commit()
    session.expect(Extend)
    session.answer(Absent()).expect(Create)
    assert isinstance(session.run(), Attached)


def test_attaching_with_little_time_left_renews_first() -> None:
    bench = Bench(DATED, ttl=20)
    context = bench.context()
    lease = bench.granted("a", context).lease
    assert context.observations.is_calibrated
    bench.now += 15
    session = bench.attaching(lease, "m", context).commit().commit()
    assert session.expect(Extend).name == APT


def test_a_renewal_says_for_how_long_and_calibrates_the_clocks() -> None:
    bench = Bench(DATED, ttl=20)
    lease, context = bench.granted("a").lease, bench.context()
    session = bench.session(renew(lease, {}, context))
    assert session.expect(Extend).lifetime == 20.0
    session.commit()
    assert context.observations.is_calibrated


def test_a_refused_renewal_of_a_lease_still_ours_is_no_loss() -> None:
    bench = Bench()
    session = bench.session(renew(bench.granted("a").lease, {}, bench.context())).answer(Conflict())
    session.expect(Read)
    with pytest.raises(OutcomeUnknown, match="still ours"):
        session.commit()


@pytest.mark.parametrize("reason", LossReason)
def test_after_a_loss_a_member_withdraws_unless_it_is_a_fork(reason: LossReason) -> None:
    member = lease_state()
    member.is_owner = False
    member.lose(reason)
    assert may_remove_after_loss(member, 400.0) is (reason is not LossReason.FORKED)


@pytest.mark.parametrize("reason", LossReason)
def test_after_a_loss_an_owner_may_remove_before_its_deadline(reason: LossReason) -> None:
    owner = lease_state()
    owner.lose(reason)
    is_possible = reason in (LossReason.REVOKED, LossReason.UNREACHABLE, LossReason.ENDED)
    assert may_remove_after_loss(owner, owner.deadline - 0.001) is is_possible
    assert not may_remove_after_loss(owner, owner.deadline)


def test_a_withdrawal_without_a_reply_does_not_claim_success() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    registration = bench.joined(lease, "m").registration
    member = LeaseState(lease, bench.settings, deadline=bench.now + 5, renewed_at=bench.now, is_owner=False)
    member.registration = registration
    session = bench.session(give_back(member, bench.context(), bound_at=bench.now + 60))
    while not session.is_over:
        session.wait() if isinstance(session.command, Pause) else session.late()
    assert session.outcome is Outcome.NOT_OURS


def test_a_release_by_ticket_retries_until_its_bound() -> None:
    bench = Bench()
    lease = bench.granted("a").lease

    def releasing() -> Session:
        script = release(lease, bench.context(), shared=True, bound_at=bench.now + 5, salt="s", by_ticket=True)
        return bench.session(script)

    bounded = releasing()
    bounded.expect(Read)
    assert not bounded.unsent().expect(Pause).wake_on_change
    bounded.wait(5.0)
    assert bounded.outcome is Outcome.LEFT
    again = releasing().unsent().wait(4.9)
    again.expect(Read)
    assert again.run() is Outcome.REMOVED


@pytest.mark.parametrize("by_ticket", [False, True])
def test_an_unanswered_release_retries_ever_less_to_its_bound(by_ticket: bool) -> None:
    bench = Bench(ttl=1000, backoff_max=1.0)
    lease, bound_at = bench.granted("a").lease, bench.now + 8
    session = bench.session(
        release(lease, bench.context(), shared=True, bound_at=bound_at, salt="s", by_ticket=by_ticket)
    )
    pauses = []
    for _ in range(6):
        session.expect(Read if by_ticket else Extend)
        pauses.append(session.unsent().expect(Pause))
        session.wait(1.0)
    assert [pause.at_least for pause in pauses] == pytest.approx([0.1] * 6)
    assert [pause.at_most for pause in pauses] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert not any(pause.wake_on_change for pause in pauses), "it may be our own request that changes the key"
    session.unsent().wait(bound_at - bench.now)
    assert session.outcome is Outcome.LEFT


def test_a_record_shows_its_age_only_by_a_trustworthy_clock() -> None:
    context = Bench(DATED).context()
    clock_skew_max = context.traits.clock_skew_max + context.traits.clock_resolution
    ahead = Snapshot({}, "1", "1", updated_at=100.0 + clock_skew_max, store_now=100.0)
    assert context.shows_age(APT, ahead)
    assert not context.shows_age(APT, Snapshot({}, "1", "1", updated_at=100.01 + clock_skew_max, store_now=100.0))
    assert not context.shows_age(APT, Snapshot({}, "1", "1", updated_at=None, store_now=100.0))
    assert not context.shows_age(APT, Snapshot({}, "1", "1", updated_at=100.0, store_now=None))
    assert not Bench(NONE).context().shows_age(APT, Snapshot({}, "1", "1", updated_at=99.0, store_now=100.0))
    shared = Bench(SHARED).context()
    for one in (context, shared):
        one.observations.readings[APT.key] = Reading(100.0, 0.0, 0.0, set_at=90.0)
        assert one.shows_age(APT, Snapshot({}, "1", "1", updated_at=90.0, store_now=100.0))
    before = Snapshot({}, "1", "1", updated_at=89.0, store_now=100.0)
    assert not shared.shows_age(APT, before)
    assert context.shows_age(APT, before), "a Date is a hint: a write of our own has to prove it"


def test_a_member_extends_a_record_with_little_time_left() -> None:
    bench = Bench(ttl=100)
    lease, context = bench.granted("a").lease, bench.context()
    joined = bench.joined(lease, "m", context)
    bench.now += 1
    bench.store.perform(Extend(APT, {"progress": "half"}, lease.incarnation))
    revision = bench.store.perform(Read(APT)).revision
    bench.now += 95
    renewed = bench.session(renew_member(lease, joined.registration, {}, context)).run()
    assert bench.store.perform(Read(APT)).revision != revision
    assert renewed.record_deadline == pytest.approx(bench.now + 100, abs=1)


def test_a_member_says_whether_it_saw_the_lease_closing() -> None:
    bench = Bench(ttl=100)
    lease, context = bench.granted("a").lease, bench.context()
    joined = bench.joined(lease, "m", context)

    def renewing(fields: dict[str, str]) -> Session:
        return bench.session(renew_member(lease, joined.registration, fields, context))

    assert renewing({}).run().record_deadline is not None
    assert renewing({"progress": "half"}).run().record_deadline is not None
    session = renewing({"progress": "all"}).commit().commit()
    session.expect(Extend)
    bench.store.perform(Extend(APT, {"closing": "1"}, lease.incarnation))
    assert session.run().record_deadline is None
    assert renewing({}).run().record_deadline is None


@pytest.mark.parametrize("is_late", [False, True])
def test_an_unanswered_withdrawal_is_ours_only_to_the_deadline(is_late: bool) -> None:
    bench = Bench()
    registration = bench.joined(bench.granted("a").lease, "m").registration
    session = bench.session(take_back(registration, bench.context(), ours_until=bench.now + 5))
    session.lose(1.0).wait(6.0 if is_late else 1.0)
    assert session.run() is not is_late


def test_a_drain_that_has_no_time_left_proves_nobody_gone() -> None:
    bench = Bench()
    session = bench.session(drain(bench.granted("a").lease, bench.context(), bound_at=bench.now + 60, salt="s"))
    session.expect(List)
    assert session.unsent(error=OutOfTime("no time")).outcome is False


def test_a_member_found_dead_after_the_bound_gets_few_more_looks() -> None:
    bench = Bench(ttl=10)
    lease, context = bench.granted("a").lease, bench.context()
    session = bench.session(drain(lease, context, bound_at=bench.now + 11, salt="s"))
    lists = 0
    for number in range(20):
        name = bench.joined(lease, f"m{number}").registration.name
        bench.now += 11
        lists += 1
        session.expect(List)
        session.commit()
        while not session.is_over and not isinstance(session.command, List):
            session.commit()
        assert isinstance(bench.store.perform(Read(name)), Absent)
        if session.is_over:
            break
    assert (session.outcome, lists) == (False, LATE_LOOKS_MAX + 1)


def test_leftovers_are_over_at_once_for_foreign_programs() -> None:
    before = PreviousLease(LeaseOutcome.EXPIRED, "a", "a/1")
    command = unused(APT, "7", before, Bench().context())
    assert isinstance(command, Extend)
    assert 0 < command.lifetime < 0.1


def test_who_renews_now_and_then_learns_what_it_has() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    record = bench.session(extensible(lease, bench.context())).run()
    assert isinstance(record, Record)
    assert record.holder == "a"
    bench.store.erase(APT)
    assert bench.session(extensible(lease, bench.context())).run() == Over(LossReason.GONE)


def test_a_refused_renewal_of_what_is_gone_is_a_loss() -> None:
    bench = Bench()
    session = bench.session(renew(bench.granted("a").lease, {}, bench.context())).answer(Conflict())
    bench.store.erase(APT)
    assert session.commit().outcome == Over(LossReason.GONE)


def test_a_loss_to_a_later_broken_lease_names_its_holder() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    said = revocation_text(Revocation("op", "stuck"))
    bench.store.perform(Extend(APT, {"identity": "b/1", "owner": "bea", "revoked": said}, lease.incarnation))
    assert bench.session(renew(lease, {}, bench.context())).run() == Over(LossReason.TAKEN, "bea")


def test_a_sweep_counts_a_lease_as_clean_unless_it_was_lost() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    assert bench.session(sweep(APT, "a", bench.context(), UsedLease(lease.incarnation))).run() is True
    assert bench.standing() is None


def test_an_audit_entry_never_expires() -> None:
    session = Bench().session(audit(APT, "1", {"by": "op"}))
    created = session.expect(Create)
    assert (created.lifetime, created.min_retention, created.renew_every) == (0.0, 0.0, 0.0)
    assert session.commit().outcome is True
