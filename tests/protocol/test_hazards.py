"""One directed scenario, or more, for every hazard that needs no particular server and no real process.

H13, H19, H21 to H23, H25, H26 and H29 need a fork, a signal, a server or a driver: their scenarios are in other
files.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.acquire import Contended, Grant, OutOfTime
from lockstead.protocol.commands import (
    Command,
    Create,
    Extend,
    Pause,
    Paused,
    Read,
    Remove,
    Replace,
    StoreClock,
    Traits,
)
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.fence import draw_token, verify
from lockstead.protocol.lifecycle import Action, LeaseState, State
from lockstead.protocol.members import renew_member
from lockstead.protocol.previous_lease import ENDED, ENDED_LIVES
from lockstead.protocol.record import Revocation, with_timestamps
from lockstead.protocol.release import (
    Broken,
    Outcome,
    break_lease,
    end,
    give_back,
    may_remove_after_loss,
    release,
    remove,
    sweep,
)
from lockstead.protocol.renew import Over, Renewed, renew
from lockstead.values import LeaseOutcome, PreviousLease, Sequencer
from tests.protocol.bench import APT, Bench
from tests.simulation.store import DATED, NONE, SHARED

EVERY = pytest.mark.parametrize("traits", [SHARED, DATED, NONE], ids=lambda traits: traits.scheme)


def overdue(bench: Bench) -> None:
    settings = bench.settings
    bench.now += settings.ttl * (1 + settings.drift) + bench.traits.clock_skew_max + settings.lock_delay + 0.001


@EVERY
def test_h01_a_crashed_holders_lock_is_had_within_the_promise(traits: Traits) -> None:
    bench = Bench(traits, ttl=10)
    crashed_at = bench.granted("a").sent_at
    assert isinstance(bench.asking("b").run(2000), Grant)
    # who waits does not sleep past that instant; Date stands still for up to a step
    latest = 10.1 + traits.clock_skew_max + traits.clock_resolution + 2 * max(bench.settings.backoff_min, traits.pace)
    assert 10.1 < bench.now - crashed_at <= latest


def test_h01_no_time_to_read_again_where_the_server_expires() -> None:
    # how long a record has been standing there says nothing: a renewal need not change it
    bench = Bench(replace(NONE, clock=StoreClock.SERVER_EXPIRES))
    bench.granted("a")
    assert bench.asking("b").commit().commit().expect(Pause).over_in == inf


@pytest.mark.parametrize("traits", [SHARED, DATED], ids=lambda traits: traits.scheme)
def test_h01_a_holder_dead_by_the_clock_is_overtaken_at_once(traits: Traits) -> None:
    bench = Bench(traits, ttl=10)
    bench.granted("a")
    bench.now += 3600
    asked_at = bench.now
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)
    assert bench.now == asked_at


@EVERY
@pytest.mark.parametrize("late", ["delete", "refresh", "replace", "end"])
def test_h02_a_delayed_request_does_not_hit_the_next_holder(traits: Traits, late: str) -> None:
    bench = Bench(traits, ttl=10)
    old = bench.granted("a").lease
    revision = bench.store.perform(Read(APT)).revision
    commands: dict[str, Command[Any]] = {
        "delete": Remove(APT, old.incarnation),
        "refresh": Extend(APT, {"progress": "late"}, old.incarnation, lifetime=10.0),
        "replace": Replace(APT, {"v": "1"}, old.incarnation, revision),
        "end": Extend(APT, ENDED, old.incarnation, lifetime=ENDED_LIVES),
    }
    bench.session(remove(old, bench.context())).run()
    bench.granted("b")
    standing = bench.standing()
    assert standing is not None
    before = (standing.incarnation, standing.revision, dict(standing.fields))
    bench.store.perform(commands[late])  # the revision is 1 again, so only the incarnation tells them apart
    after = bench.standing()
    assert after is not None
    assert (after.incarnation, after.revision, dict(after.fields)) == before


@EVERY
def test_h03_a_create_without_a_reply_is_adopted_at_once(traits: Traits) -> None:
    bench = Bench(traits)
    session = bench.asking("a").lose(after=1.0)
    lost_at = bench.now
    assert isinstance(session.run(), Grant)
    assert bench.now == lost_at


def test_h03_a_replace_without_a_reply_is_adopted_at_once() -> None:
    bench = Bench()
    bench.granted("a")
    overdue(bench)
    session = bench.asking("b").commit().commit()
    session.expect(Replace)
    session.lose()
    lost_at = bench.now
    assert isinstance(session.run(), Grant)
    assert bench.now == lost_at


def test_h04_a_renewal_without_a_reply_is_no_loss() -> None:
    bench = Bench()
    grant = bench.granted("a")
    lease_state = bench.lease_state(grant)
    lease_state.sending(bench.now)
    bench.store.perform(Extend(APT, {}, grant.lease.incarnation, lifetime=10.0))
    lease_state.failed(bench.now, OutcomeUnknown("lost"))
    assert lease_state.state is State.HELD
    assert lease_state.deadline == grant.deadline
    bench.now += 1
    again = bench.session(renew(grant.lease, {}, bench.context())).run()
    lease_state.renewed(again.sent_at, again.deadline, bench.now)
    assert lease_state.deadline > grant.deadline


def test_h05_a_release_without_a_reply_is_retried() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.session(remove(lease, bench.context())).lose()
    session.wait()
    assert session.commit().outcome is Outcome.REMOVED
    assert bench.standing() is None


def test_h05_a_release_that_was_never_applied_is_asked_again() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.session(remove(lease, bench.context()))
    session.late()
    session.wait()
    assert session.commit().outcome is Outcome.REMOVED


def test_h05_a_release_asked_again_touches_no_other_holders_lock() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.session(remove(lease, bench.context())).lose()
    bench.granted("b")
    session.wait()
    assert session.commit().outcome is Outcome.NOT_OURS
    assert bench.holder == "b"


def test_h05_a_late_release_leaves_other_locks_alone() -> None:
    bench = Bench(ttl=10)
    session = bench.session(remove(bench.granted("a").lease, bench.context()))
    overdue(bench)
    bench.granted("b")
    assert session.run() is Outcome.NOT_OURS
    assert bench.holder == "b"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_h05_absence_is_our_removal_only_while_nobody_had_it(shared: bool, is_late: bool) -> None:
    bench = Bench(ttl=10)
    context = bench.context()
    grant = bench.granted("a", context)
    lease_state = bench.lease_state(grant, shared=shared)
    lease_state.leave()
    session = bench.session(give_back(lease_state, context, bound_at=bench.now + 30))
    if shared:
        session.commit().commit()
    session.expect(Remove)
    session.late()  # never arrives
    if is_late:
        overdue(bench)
    entry = bench.standing()
    assert entry is not None
    # somebody else takes it and gives it back; or, while the lease lasts, our own request arrives after all
    bench.store.perform(Remove(APT, entry.incarnation))
    session.wait()
    assert session.run() is (Outcome.NOT_OURS if is_late else Outcome.REMOVED)


def test_h05_absence_after_a_request_never_sent_is_anothers_work() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.session(remove(lease, bench.context())).unsent()
    bench.store.perform(Remove(APT, lease.incarnation))  # by an administrator, say
    session.wait()
    assert session.commit().outcome is Outcome.NOT_OURS


@pytest.mark.parametrize("is_late", [False, True])
def test_h05_an_absent_registration_is_ours_only_to_its_deadline(is_late: bool) -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    lease_state = LeaseState(lease, bench.settings, joined.record_deadline, joined.sent_at, is_owner=False)
    lease_state.registration = joined.registration
    lease_state.registered(joined.registration_deadline, bench.now)
    lease_state.leave()
    session = bench.session(give_back(lease_state, bench.context(), bound_at=bench.now + 30)).lose()
    if is_late:
        overdue(bench)
    session.wait()
    assert session.commit().outcome is (Outcome.NOT_OURS if is_late else Outcome.REMOVED)


def test_h05_a_release_that_gets_no_answer_ends() -> None:
    bench = Bench()
    session = bench.session(remove(bench.granted("a").lease, bench.context()))
    with pytest.raises(OutcomeUnknown):
        for _ in range(20):
            session.wait() if isinstance(session.command, Pause) else session.late()


def test_h06_a_process_paused_past_its_deadline_removes_nothing() -> None:
    bench = Bench()
    lease_state = bench.lease_state(bench.granted("a"))
    woken_at = lease_state.deadline
    assert lease_state.believes(woken_at - 1e-6)
    assert not lease_state.believes(woken_at)
    assert lease_state.lose(LossReason.EXPIRED)
    assert not may_remove_after_loss(lease_state, woken_at)


def test_h06_a_renewal_answered_during_the_pause_revives_nothing() -> None:
    bench = Bench(ttl=10)
    grant = bench.granted("a")
    lease_state = bench.lease_state(grant)
    lease_state.sending(bench.now + 5)
    lease_state.renewed(grant.sent_at + 5, grant.sent_at + 14.9, grant.deadline)
    assert lease_state.state is State.LOST
    assert not lease_state.believes(grant.deadline)


def test_h06_h17_a_process_superseded_while_paused_gets_no_token() -> None:
    for traits in (SHARED, DATED, NONE):
        bench = Bench(traits)
        lease = bench.granted("a").lease
        bench.session(remove(lease, bench.context())).run()
        bench.granted("b")
        assert bench.session(draw_token(lease, bench.context(), salt="s")).run() is None


@pytest.mark.parametrize("hours", [-30, 30])
def test_h07_wrong_wall_clocks_change_only_what_is_displayed(hours: int) -> None:
    bench = Bench()
    session = bench.asking("a")
    skewed = with_timestamps(session.expect(Create), 1.7e9 + 3600 * hours)
    session.answer(bench.store.perform(skewed))
    assert isinstance(bench.asking("b", tries_once=True).run(), Contended)
    overdue(bench)
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)


def test_h08_h09_a_lease_ends_in_time_while_a_renewal_hangs() -> None:
    bench = Bench(ttl=10)
    lease_state = bench.lease_state(bench.granted("a"))
    lease_state.sending(lease_state.due_at)
    assert lease_state.next_action(lease_state.notify_at - 1e-6) is Action.NOTHING
    assert lease_state.wake_at() <= lease_state.notify_at
    assert lease_state.next_action(lease_state.notify_at) is Action.NOTIFY_LOSS
    assert lease_state.reason is LossReason.EXPIRED
    assert lease_state.deadline - lease_state.notify_at == pytest.approx(bench.settings.abort_margin)


def test_h10_a_renewal_after_the_release_brings_nothing_back() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    renewal = bench.session(renew(lease, {}, bench.context()))
    bench.session(remove(lease, bench.context())).run()
    assert renewal.run() == Over(LossReason.GONE)
    assert bench.standing() is None


def test_h10_a_late_renewal_leaves_the_next_holder_alone() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    renewal = bench.session(renew(lease, {}, bench.context()))
    bench.session(remove(lease, bench.context())).run()
    bench.granted("b")
    outcome = renewal.run()
    assert isinstance(outcome, Over)
    assert outcome.reason is LossReason.TAKEN
    assert bench.store.perform(Read(APT)).revision == "1"


@EVERY
def test_h11_of_two_who_take_over_the_same_expired_lock_one_wins(traits: Traits) -> None:
    bench = Bench(traits, ttl=10)
    bench.granted("a")
    books = [bench.context(), bench.context()]
    for number, context in enumerate(books):
        bench.asking(f"early{number}", context, tries_once=True).run()
    overdue(bench)
    contenders = [bench.asking(f"b{n}", context, tries_once=True) for n, context in enumerate(books)]
    for session in contenders:
        while not isinstance(session.command, Replace):
            session.commit()
    outcomes = [session.run() for session in contenders]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Contended", "Grant"]


def test_h11_a_takeover_loses_against_a_renewal_just_in_time() -> None:
    bench = Bench(ttl=10)
    grant = bench.granted("a")
    overdue(bench)
    session = bench.asking("b", tries_once=True).commit().commit()
    session.expect(Replace)
    assert isinstance(bench.session(renew(grant.lease, {}, bench.context())).run(), Renewed)
    assert isinstance(session.run(), Contended)
    assert bench.holder == "a"


@EVERY
def test_h12_an_ended_lease_stays_free_whatever_is_still_sent(
    traits: Traits,
) -> None:
    bench = Bench(traits, ttl=10)
    old = bench.granted("a").lease
    assert bench.session(end(old, bench.context())).run() is Outcome.ENDED
    bench.store.perform(Extend(APT, {"progress": "late"}, old.incarnation, lifetime=10.0))
    assert isinstance(bench.session(renew(old, {}, bench.context())).run(), Over)
    assert bench.session(draw_token(old, bench.context(), salt="s")).run() is None
    began_at = bench.now
    granted = bench.asking("b", tries_once=True).run()
    assert isinstance(granted, Grant)
    assert bench.now == began_at
    assert granted.previous_lease == PreviousLease(LeaseOutcome.EXPIRED, "a", "a")
    assert bench.session(end(old, bench.context())).run() is Outcome.NOT_OURS


def test_h12_a_deleted_lock_is_gone_and_gives_no_later_token() -> None:
    bench = Bench(DATED)
    lease = bench.granted("a").lease
    del bench.store.entries[APT]
    assert bench.session(renew(lease, {}, bench.context())).run() == Over(LossReason.GONE)
    assert bench.session(draw_token(lease, bench.context(), salt="s")).run() is None
    assert bench.standing() is None


def test_h12_a_revoked_lock_is_lost_at_its_next_renewal() -> None:
    bench = Bench(ttl=10)
    grant = bench.granted("a")
    script = break_lease(APT, Revocation("op", "stuck"), bench.context(), now=False, incarnation=None, salt="s")
    assert bench.session(script).run().revoked
    assert isinstance(bench.asking("b", tries_once=True).run(), Contended)  # no overlap
    lost = bench.session(renew(grant.lease, {}, bench.context())).run()
    assert lost.reason is LossReason.REVOKED
    assert "op" in lost.detail
    overdue(bench)
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)


def test_h12_a_break_at_once_returns_the_overlap() -> None:
    bench = Bench(DATED, ttl=10)
    grant = bench.granted("a")
    renewal = bench.session(renew(grant.lease, {}, bench.context()))
    renewed = renewal.run()
    script = break_lease(APT, Revocation("op", "stuck"), bench.context(), now=True, incarnation=None, salt="s")
    broken = bench.session(script).run()
    assert broken.removed
    assert bench.now + broken.max_overlap >= renewed.deadline
    assert broken.max_overlap == pytest.approx(10 * 1.01 + 2.0)


@EVERY
def test_h12_a_break_ends_only_an_expired_lease(traits: Traits) -> None:
    bench = Bench(traits, ttl=10, lock_delay=3)
    operator = bench.context()
    bench.granted("a")

    def breaks(context: ProtocolContext) -> Broken:
        broken = bench.session(break_lease(APT, Revocation("op", "w"), context, now=False, incarnation=None, salt="s"))
        return broken.run()  # type: ignore[no-any-return]  # a session gives what its script returns

    assert isinstance(bench.asking("x", operator, tries_once=True).run(), Contended)
    bench.now += 10 * 1.01 + 2.0  # the lock-delay is not over
    seen_late = breaks(operator)
    assert (seen_late.revoked, seen_late.removed) == (True, False)
    assert isinstance(bench.asking("x", operator, tries_once=True).run(), Contended)
    overdue(bench)
    if traits is NONE:  # who never saw it before cannot know that it stood still
        unknown = breaks(bench.context())
        assert (unknown.revoked, unknown.removed) == (False, False)
    ended = breaks(operator)
    assert (ended.revoked, ended.removed, ended.max_overlap) == (False, True, 0.0)
    granted = bench.asking("b", tries_once=True).run()
    assert isinstance(granted, Grant)
    assert granted.previous_lease == PreviousLease(LeaseOutcome.REVOKED, "a", "a")


@EVERY
def test_h12_breaking_a_revoked_lease_again_writes_nothing(traits: Traits) -> None:
    bench = Bench(traits, ttl=10)
    waits = bench.context()
    bench.granted("a")

    def breaks(by: str) -> Broken:
        script = break_lease(APT, Revocation(by, "w"), bench.context(), now=False, incarnation=None, salt="s")
        return bench.session(script).run()  # type: ignore[no-any-return]  # a session gives what its script returns

    assert breaks("first").revoked
    revoked = bench.standing()
    assert isinstance(bench.asking("x", waits, tries_once=True).run(), Contended)
    bench.now += 9
    again = breaks("second")
    assert (again.revoked, again.removed, again.record.revoked) == (False, False, Revocation("first", "w"))
    standing = bench.standing()
    assert revoked is not None
    assert standing is not None
    assert (standing.revision, standing.fields) == (revoked.revision, revoked.fields)
    overdue(bench)
    bench.now -= 9  # these have passed already
    assert isinstance(bench.asking("b", waits, tries_once=True).run(), Grant)


def ends_what_it_judged_and_nothing_later(*, is_taken: bool) -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    overdue(bench)
    script = break_lease(APT, Revocation("op", "w"), bench.context(), now=False, incarnation=None, salt="s")
    operator = bench.session(script).commit()
    ends = operator.expect(Extend)
    assert "ended" in ends.fields
    if is_taken:
        assert isinstance(bench.asking("b", tries_once=True).run(), Grant)
        assert operator.run() is None
        assert bench.holder == "b"
        return
    bench.store.perform(
        Extend(APT, {}, lease.incarnation, lifetime=10.0)
    )  # a renewal that was sent in time, and is late
    broken = operator.run()
    assert (broken.revoked, broken.removed) == (True, False)
    assert isinstance(bench.asking("b", tries_once=True).run(), Contended)


def test_h12_a_break_of_an_expired_lease_spares_a_new_holder() -> None:
    ends_what_it_judged_and_nothing_later(is_taken=True)


def test_h12_a_break_of_a_lease_renewed_just_in_time_revokes_it() -> None:
    ends_what_it_judged_and_nothing_later(is_taken=False)


def test_h12_a_break_expects_the_incarnation_not_the_revision() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    for at_once in (False, True):
        script = break_lease(APT, Revocation("o", "w"), bench.context(), now=at_once, incarnation=None, salt="s")
        session = bench.session(script).commit()
        bench.session(renew(lease, {}, bench.context()))  # the holder renews under the operator's eyes
        bench.store.perform(Extend(APT, {}, lease.incarnation))
        assert session.run() is not None
    script = break_lease(APT, Revocation("o", "w"), bench.context(), now=True, incarnation="other", salt="s")
    bench.granted("b")
    assert bench.session(script).run() is None
    assert bench.holder == "b"


def test_h14_two_acquisitions_of_one_owner_are_two_holders() -> None:
    bench = Bench()
    bench.granted("pub/1", owner="pub")
    assert isinstance(bench.asking(bench.want("pub/2", owner="pub"), tries_once=True).run(), Contended)


def test_h15_waiting_only_reads_and_every_pause_is_bounded() -> None:
    for traits in (SHARED, DATED, NONE):
        bench = Bench(traits, ttl=300)
        bench.granted("a")
        session = bench.asking("b").commit()
        settings = bench.settings
        for _ in range(100):
            if isinstance(session.command, Pause):
                pause = session.command
                assert settings.backoff_min <= pause.at_least <= pause.at_most <= settings.backoff_max
                session.wait(pause.at_most)
            else:
                session.expect(Read)
                session.commit()


def test_h15_who_waited_in_line_reads_before_it_writes() -> None:
    bench = Bench()
    bench.granted("a")
    session = bench.asking("b", look_first=True)
    session.expect(Read)


def test_h15_a_change_of_the_key_restarts_the_backoff() -> None:
    bench = Bench(ttl=300)
    bench.granted("a")
    session = bench.asking("b").commit().commit()
    for _ in range(10):
        session.wait(session.expect(Pause).at_most).commit()
    assert session.expect(Pause).at_most == bench.settings.backoff_max
    session.answer(Paused(5.0, changed=True)).commit()
    assert session.expect(Pause).at_most == bench.settings.backoff_min


def test_h16_a_waiter_recovers_from_an_outage_in_backoff_max() -> None:
    bench = Bench()
    session = bench.asking("a")
    for _ in range(200):
        if isinstance(session.command, Pause):
            assert session.command.at_most <= bench.settings.backoff_max
            session.wait(session.command.at_most)
        else:
            session.unsent(after=0.1)
    recovered_at = bench.now
    assert isinstance(session.run(), Grant)
    assert bench.now <= recovered_at + bench.settings.backoff_max


def test_h17_a_superseded_token_is_refused_by_verify() -> None:
    bench = Bench()
    old = bench.granted("a")
    assert bench.session(verify(Sequencer("apt", old.token or 0), bench.context())).run()
    bench.session(remove(old.lease, bench.context())).run()
    assert not bench.session(verify(Sequencer("apt", old.token or 0), bench.context())).run()
    new = bench.granted("b")
    assert (new.token or 0) > (old.token or 0)
    assert not bench.session(verify(Sequencer("apt", old.token or 0), bench.context())).run()
    assert bench.session(verify(Sequencer("apt", new.token or 0), bench.context())).run()
    overdue(bench)
    assert not bench.session(verify(Sequencer("apt", new.token or 0), bench.context())).run()


def test_h18_a_cancelled_create_is_unsettled_and_swept() -> None:
    bench = Bench()
    want = bench.want("a")
    session = bench.asking(want)
    command = session.expect(Create)
    session.script.close()
    assert want.unsettled
    bench.store.perform(command)
    assert bench.session(sweep(APT, "a", bench.context())).run() is True
    assert bench.standing() is None


def test_h18_a_cancelled_replace_is_unsettled() -> None:
    bench = Bench()
    bench.granted("a")
    overdue(bench)
    want = bench.want("b")
    session = bench.asking(want).commit().commit()
    session.expect(Replace)
    session.script.close()
    assert want.unsettled


def test_h18_an_unsent_or_refused_request_needs_no_sweep() -> None:
    bench = Bench()
    bench.granted("a")
    want = bench.want("b")
    session = bench.asking(want, tries_once=True)
    assert isinstance(session.run(), Contended)
    assert not want.unsettled
    again = bench.want("c")
    with pytest.raises(StoreUnavailable):
        bench.asking(again, tries_once=True).unsent()
    assert not again.unsettled


def test_h18_a_timeout_after_an_unknown_create_is_unknown() -> None:
    """StoreUnavailable would say: certainly not applied."""
    bench = Bench()
    want = bench.want("a")
    session = bench.asking(want, tries_once=True)
    session.late()
    session.expect(Read)
    with pytest.raises(OutcomeUnknown, match="apt"):
        session.unsent(error=OutOfTime("the time to wait is over"))
    assert want.unsettled


def test_h18_an_outage_after_an_unknown_create_is_unknown() -> None:
    bench = Bench()
    session = bench.asking("a", gives_up_at=bench.now + 3)
    session.late()
    session.unsent()
    session.wait(4.0)
    with pytest.raises(OutcomeUnknown):
        session.unsent()


def test_h18_out_of_time_after_silence_says_what_the_silence_was() -> None:
    bench = Bench()
    session = bench.asking("a", gives_up_at=bench.now + 3).unsent()
    session.wait(4.0)
    with pytest.raises(StoreUnavailable, match="refused"):
        session.unsent(error=OutOfTime("the time to wait is over"))


def test_h18_out_of_time_while_others_hold_it_is_contended() -> None:
    bench = Bench()
    bench.granted("a")
    session = bench.asking("b", gives_up_at=bench.now + 3).commit().commit()
    session.wait(4.0)
    session.unsent(error=OutOfTime("the time to wait is over"))
    assert isinstance(session.outcome, Contended)
    assert session.outcome.record is not None
    assert session.outcome.record.holder == "a"


def test_h18_one_last_try_when_the_time_runs_out_during_a_pause() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.asking("b", gives_up_at=bench.now + 3).commit().commit()
    bench.session(remove(lease, bench.context())).run()
    session.wait(4.0)
    assert isinstance(session.run(), Grant)


def test_h20_duplicated_requests_of_a_whole_life_change_nothing() -> None:
    bench = Bench(ttl=10)
    creating = bench.asking("a")
    create = creating.expect(Create)
    lease = creating.run().lease
    extend = Extend(APT, {}, lease.incarnation, lifetime=10.0)
    bench.store.perform(extend)
    bench.session(remove(lease, bench.context())).run()
    bench.granted("b")
    for late in (create, extend, Remove(APT, lease.incarnation), create):
        bench.store.perform(late)
    assert bench.holder == "b"
    assert bench.store.perform(Read(APT)).revision == "1"


def test_h20_a_duplicate_create_after_the_release_expires() -> None:
    bench = Bench(ttl=10)
    creating = bench.asking("a")
    create = creating.expect(Create)
    bench.session(remove(creating.run().lease, bench.context())).run()
    bench.store.perform(create)
    overdue(bench)
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)


@pytest.mark.parametrize(
    "fields",
    [
        {"v": "2", "identity": "x", "ttl": "10"},
        {"v": "1", "ttl": "10"},
        {"v": "1", "identity": "x"},
        {"v": "1", "identity": "x", "ttl": "soon"},
        {"v": "", "identity": "x", "ttl": "10"},
        {"hello": "world"},
        {},
    ],
)
def test_h24_a_damaged_newer_or_foreign_record_is_never_free(fields: dict[str, str]) -> None:
    bench = Bench()
    bench.store.perform(Create(APT, fields))
    bench.now += 1e6
    with pytest.raises(StoreRefused, match="apt"):
        bench.asking("a").run()
    with pytest.raises(StoreRefused, match="apt"):
        bench.session(sweep(APT, "a", bench.context())).run()
    assert bench.standing().fields == fields  # type: ignore[union-attr]


def test_h24_a_record_changed_by_hand_is_read_as_it_is() -> None:
    bench = Bench()
    bench.granted("a")
    context = bench.context()
    assert isinstance(bench.asking("b", context, tries_once=True).run(), Contended)
    entry = bench.standing()
    assert entry is not None
    entry.fields = {"v": "1", "identity": "a"}
    with pytest.raises(StoreRefused, match="apt"):
        bench.asking("b", context, tries_once=True).run()


def test_h24_a_damaged_registration_counts_as_live() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    bench.store.entries[joined.registration.name].fields = {"v": "1"}
    outcome = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 20, salt="a")).run(2000)
    assert outcome is Outcome.LEFT
    assert bench.holder == "a"


def test_h27_a_release_waits_for_running_members() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    bench.joined(lease, "m")
    owner = bench.session(release(lease, bench.context(), shared=True, bound_at=bench.now + 30, salt="a"))
    owner.commit().commit()
    owner.expect(Pause)
    assert isinstance(bench.asking("b", tries_once=True).run(), Contended)


def test_h27_a_members_deadline_is_the_earlier_of_its_two() -> None:
    bench = Bench(ttl=10)
    grant = bench.granted("a")
    bench.now += 3
    joined = bench.joined(grant.lease, "m")
    lease_state = bench.lease_state(
        grant,
        is_owner=False,
        registration=joined.registration,
        record_deadline=joined.record_deadline,
        registration_deadline=joined.registration_deadline,
    )
    lease_state.registered(joined.registration_deadline + 5, bench.now)
    assert lease_state.deadline == joined.record_deadline
    lease_state.renewed(bench.now, joined.registration_deadline + 50, bench.now)
    assert lease_state.deadline == joined.registration_deadline + 5


def test_h27_a_member_whose_registration_was_removed_is_lost() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    joined = bench.joined(lease, "m")
    bench.store.perform(Remove(joined.registration.name, joined.registration.incarnation))
    outcome = bench.session(renew_member(lease, joined.registration, {}, bench.context())).run()
    assert isinstance(outcome, Over)


def test_h27_a_member_extends_only_a_lease_not_renewed_lately() -> None:
    bench = Bench(ttl=100, renew_every=12.5)
    lease = bench.granted("a").lease
    context = bench.context()
    joined = bench.joined(lease, "m", context)
    revision = bench.store.perform(Read(APT)).revision
    bench.now += 12
    bench.session(renew_member(lease, joined.registration, {}, context)).run()
    assert bench.store.perform(Read(APT)).revision == revision
    bench.now += 12
    bench.session(renew_member(lease, joined.registration, {}, context)).run()
    assert bench.store.perform(Read(APT)).revision != revision


def test_h28_a_late_create_is_swept_by_the_second_look() -> None:
    bench = Bench()
    want = bench.want("a")
    session = bench.asking(want, tries_once=True)
    late = session.late()
    with pytest.raises(OutcomeUnknown):
        session.unsent()
    assert bench.session(sweep(APT, "a", bench.context())).run() is False
    bench.store.perform(late)
    assert bench.session(sweep(APT, "a", bench.context())).run() is True
    assert bench.standing() is None


def test_h28_a_create_that_commits_while_waited_for_is_adopted() -> None:
    bench = Bench()
    other = bench.granted("b").lease
    session = bench.asking("a")
    late = session.late()
    session.commit()
    session.expect(Pause)
    bench.session(remove(other, bench.context())).run()
    bench.store.perform(late)
    grant = session.run()
    assert isinstance(grant, Grant)
    assert bench.holder == "a"


def test_h28_a_grant_after_an_unknown_outcome_stays_unsettled() -> None:
    bench = Bench()
    want = bench.want("a")
    session = bench.asking(want)
    late = session.late()
    grant = session.run()
    assert want.unsettled
    bench.session(remove(grant.lease, bench.context())).run()
    bench.store.perform(late)
    assert bench.session(sweep(APT, "a", bench.context())).run() is True


def test_h28_a_sweep_never_takes_another_holders_lock() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    session = bench.session(sweep(APT, "a", bench.context())).commit()
    session.expect(Remove)
    bench.session(remove(lease, bench.context())).run()
    bench.granted("b")
    assert session.run() is False
    assert bench.holder == "b"


def test_h30_fields_of_a_newer_minor_version_are_kept() -> None:
    bench = Bench(ttl=10)
    bench.store.perform(Create(APT, {"v": "1.7", "identity": "new", "ttl": "10", "shiny": "yes"}))
    assert isinstance(bench.asking("old", tries_once=True).run(), Contended)
    bench.store.perform(Extend(APT, {"expires_at": "5"}, bench.standing().incarnation))  # type: ignore[union-attr]
    assert bench.standing().fields["shiny"] == "yes"  # type: ignore[union-attr]


def test_h30_a_newer_major_version_is_refused_and_not_taken() -> None:
    bench = Bench(ttl=10)
    bench.store.perform(Create(APT, {"v": "2", "identity": "new", "ttl": "10"}))
    bench.now += 1e6
    with pytest.raises(StoreRefused, match="upgrade"):
        bench.asking("old", tries_once=True).run()
