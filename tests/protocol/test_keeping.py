"""The keeper's step: what it decides at an instant, and what an answer changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from lockstead.errors import LossReason, OutcomeUnknown, StoreUnavailable
from lockstead.protocol.context import LeaseId
from lockstead.protocol.keeping import (
    DROPPED_FOR,
    Keeping,
    NotifyLoss,
    ReportAbandoned,
    ReportFailed,
    ReportRenewed,
    SendBatch,
    SendNext,
)
from lockstead.protocol.lifecycle import LeaseState, State
from lockstead.protocol.members import Attached, MemberRenewed
from lockstead.protocol.renew import Over, Renewed
from lockstead.settings import Settings
from lockstead.values import Name, Space

SETTINGS = Settings.make(ttl=300)
EVERY = SETTINGS.renew_every
SILENT = OutcomeUnknown("silent")


@dataclass(slots=True, eq=False)
class Lease:
    """A lease as a test refers to it."""

    lease_state: LeaseState


class Bench:
    """A step, its leases and the instant."""

    def __init__(self, batch_max: int = 1) -> None:
        self.now = 1000.0
        self.keeping = Keeping[Lease](batch_max)

    def lease(self, holder: str = "a", settings: Settings = SETTINGS) -> Lease:
        lease = LeaseId(Name("apt"), holder, "1", settings.ttl)
        kept = Lease(LeaseState(lease, settings, deadline=self.now + settings.ttl * 0.99, renewed_at=self.now))
        self.keeping.keep(kept)
        return kept

    def round(self) -> list[Any]:
        actions: list[Any] = []
        self.keeping.round(self.now, actions)
        return actions

    def send(self, kept: Lease) -> None:
        """Have the renewal that is due sent."""
        self.now = kept.lease_state.due_at
        assert self.round() == [SendNext(kept)]
        assert self.keeping.take_queued() is kept
        assert self.keeping.sending(kept.lease_state, self.now)

    def answered(self, kept: Lease, outcome: Any, **said: Any) -> Any:
        return self.keeping.answered(kept, outcome, self.now, **said)


def test_a_renewal_is_sent_when_it_is_due_and_once() -> None:
    bench = Bench()
    kept = bench.lease()
    assert (bench.round(), bench.keeping.wake_at()) == ([], bench.now + EVERY)
    bench.send(kept)
    assert (bench.round(), bench.keeping.wake_at()) == ([], bench.now + EVERY), "by then it has to be answered"
    assert not bench.keeping.sending(kept.lease_state, bench.now)


def test_h08_a_failed_renewal_is_retried_and_its_loss_notified() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.send(kept)
    assert bench.answered(kept, SILENT) == ReportFailed(kept, SILENT, kept.lease_state.deadline - bench.now)
    assert bench.keeping.wake_at() == kept.lease_state.due_at > bench.now
    bench.send(kept)
    bench.answered(kept, SILENT)
    bench.now = kept.lease_state.notify_at
    assert bench.keeping.wake_at() <= bench.now
    assert bench.round() == [NotifyLoss(kept)]


def test_h08_a_renewed_lease_is_renewed_again() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.send(kept)
    renewed = Renewed(bench.now + 297, bench.now)
    assert bench.answered(kept, renewed) == ReportRenewed(kept, bench.now + 297)
    assert bench.keeping.wake_at() == kept.lease_state.due_at == bench.now + EVERY
    bench.send(kept)


def test_h08_a_loss_is_notified_the_margin_before_the_deadline() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.send(kept)
    bench.now = kept.lease_state.notify_at
    while bench.keeping.wake_at() < bench.now:
        kept.lease_state.round_started_at = None  # whatever else would end it sooner
        bench.keeping._schedule.plan(kept.lease_state)
    assert bench.keeping.wake_at() == bench.now
    assert bench.round() == [NotifyLoss(kept)]
    assert (kept.lease_state.reason, len(bench.keeping)) == (LossReason.EXPIRED, 0)
    assert bench.round() == []


def test_h08_no_renewal_after_the_deadline_or_a_release() -> None:
    bench = Bench()
    late, left, lost = (bench.lease(holder) for holder in ("late", "left", "lost"))
    bench.now = late.lease_state.due_at
    assert len(bench.round()) == 3
    bench.keeping.leave(left, bench.now)
    bench.keeping.lose(lost, LossReason.TAKEN)
    bench.now = late.lease_state.deadline
    for kept in (late, left, lost):
        assert not bench.keeping.sending(kept.lease_state, bench.now)
        assert not kept.lease_state.in_flight
    assert NotifyLoss(late) in bench.round()


def test_a_loss_found_elsewhere_is_notified_by_the_next_round() -> None:
    bench = Bench()
    kept = bench.lease()
    assert bench.keeping.lose(kept, LossReason.TAKEN, "by b")
    assert not bench.keeping.lose(kept, LossReason.GONE)
    assert (len(bench.keeping), bench.keeping.of_holder("a")) == (0, None)
    assert bench.round() == [NotifyLoss(kept), NotifyLoss(kept)]
    assert [bench.keeping.may_notify(kept.lease_state) for _ in range(2)] == [True, False]
    assert bench.round() == []


def test_a_loss_found_after_the_lease_was_left_is_not_notified() -> None:
    bench = Bench()
    kept = bench.lease()
    assert bench.keeping.leave(kept, bench.now)
    assert (len(bench.keeping), bench.keeping.wake_at()) == (0, float("inf"))
    assert not bench.keeping.lose(kept, LossReason.TAKEN)
    assert bench.round() == []


def test_losses_of_one_instant_are_notified_by_one_round() -> None:
    bench = Bench()
    first, second = bench.lease("a"), bench.lease("b")
    bench.now = first.lease_state.notify_at
    assert bench.round() == [NotifyLoss(first), NotifyLoss(second)]


def test_a_lease_left_after_its_deadline_is_lost_and_notified() -> None:
    bench = Bench()
    kept = bench.lease()
    assert not bench.keeping.leave(kept, kept.lease_state.deadline)
    assert bench.round() == [NotifyLoss(kept)]
    assert kept.lease_state.reason is LossReason.EXPIRED


def test_a_loss_found_by_a_renewal_is_notified_and_dropped() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.send(kept)
    assert bench.answered(kept, Over(LossReason.TAKEN, "by b")) == NotifyLoss(kept)
    assert (len(bench.keeping), bench.keeping.wake_at()) == (0, float("inf"))
    assert not kept.lease_state.in_flight, "a release waits for what is in flight"
    assert bench.answered(kept, SILENT) is None, "a lost lease is reported once"


def test_an_answer_for_a_lease_that_was_left_brings_it_not_back() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.send(kept)
    assert bench.keeping.leave(kept, bench.now)
    assert bench.answered(kept, Renewed(bench.now + 297, bench.now)) is None
    assert (len(bench.keeping), bench.keeping.wake_at(), kept.lease_state.state) == (0, float("inf"), State.LEAVING)


def test_a_renewal_sent_beside_the_step_leaves_its_own_in_flight() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.send(kept)
    bench.answered(kept, Renewed(bench.now + 297, bench.now), is_ours=False)
    assert kept.lease_state.in_flight
    bench.answered(kept, Renewed(bench.now + 297, bench.now))
    assert not kept.lease_state.in_flight


def test_the_lease_with_least_time_left_is_sent_first() -> None:
    bench = Bench()
    leases = {holder: bench.lease(holder) for holder in ("long", "short", "middle")}
    leases["short"].lease_state.deadline -= 10
    leases["middle"].lease_state.deadline -= 5
    bench.now = leases["long"].lease_state.due_at
    assert len(bench.round()) == 3
    taken = [bench.keeping.take_queued() for _ in range(4)]
    assert taken == [leases["short"], leases["middle"], leases["long"], None]


def test_a_renewal_that_no_worker_takes_has_failed() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.now = kept.lease_state.due_at
    bench.round()
    error = StoreUnavailable("no thread")
    bench.keeping.not_sent(kept.lease_state, error, bench.now)
    assert (kept.lease_state.in_flight, kept.lease_state.last_error) == (False, error)
    assert bench.keeping.wake_at() == kept.lease_state.due_at > bench.now
    bench.send(kept)
    bench.keeping.not_sent(kept.lease_state, error, bench.now)
    assert kept.lease_state.in_flight, "another worker has sent it meanwhile"


def test_a_batch_takes_what_is_due_now_or_soon_up_to_its_size() -> None:
    bench = Bench(batch_max=2)
    hasty = Settings.make(ttl=300, request_timeout=5)
    first = bench.lease("first")
    bench.now += EVERY / 4
    soon, other = bench.lease("soon"), bench.lease("hasty", hasty)
    bench.now += EVERY / 2
    late = bench.lease("late")
    bench.now = first.lease_state.due_at
    assert bench.round() == [SendBatch([first, soon], SETTINGS.request_timeout), SendBatch([other], 5)]
    assert (late.lease_state.in_flight, soon.lease_state.in_flight, soon.lease_state.is_queued) == (False, True, True)
    assert bench.keeping.wake_at() == late.lease_state.due_at
    assert bench.round() == [], "nothing is queued twice"


def test_a_renewal_that_is_due_soon_begins_no_batch() -> None:
    bench = Bench(batch_max=2)
    kept = bench.lease()
    bench.now = kept.lease_state.due_at - EVERY / 4
    assert kept.lease_state.may_join(bench.now)
    assert bench.round() == []


def test_h33_an_orphan_is_not_renewed_and_soon_abandoned() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.keeping.orphaned(kept, bench.now)
    assert (bench.round(), len(bench.keeping), bench.keeping.wake_at()) == ([], 1, bench.now + DROPPED_FOR)
    bench.now += DROPPED_FOR
    assert bench.round() == [ReportAbandoned(kept)]
    assert (bench.round(), len(bench.keeping), kept.lease_state.state) == ([], 0, State.LEFT)
    assert bench.keeping.wake_at() == float("inf")


def test_an_orphan_kept_again_is_renewed_and_not_abandoned() -> None:
    bench = Bench()
    kept = bench.lease()
    bench.keeping.orphaned(kept, bench.now)
    again = Lease(kept.lease_state)
    bench.keeping.keep(again)
    bench.keeping.orphaned(kept, bench.now)
    bench.now += DROPPED_FOR
    assert (bench.round(), bench.keeping.of(kept.lease_state)) == ([], again)
    bench.send(again)


@pytest.mark.parametrize("batch_max", [1, 10])
def test_an_orphan_is_neither_sent_nor_joins_others(batch_max: int) -> None:
    bench = Bench(batch_max)
    kept, other = bench.lease(), bench.lease("b")
    bench.now = kept.lease_state.due_at
    if batch_max == 1:
        bench.round()
    bench.keeping.orphaned(kept, bench.now)
    assert not bench.keeping.sending(kept.lease_state, bench.now)
    if batch_max > 1:
        assert bench.round() == [SendBatch([other], SETTINGS.request_timeout)]


def test_an_answer_for_an_orphan_has_it_renewed_no_more() -> None:
    bench = Bench()
    kept = bench.lease(settings=Settings.make(ttl=2))
    bench.send(kept)
    bench.keeping.orphaned(kept, bench.now)
    abandoned_at = bench.now + DROPPED_FOR
    bench.answered(kept, SILENT)
    assert kept.lease_state.due_at < abandoned_at == bench.keeping.wake_at()


def test_the_renewal_of_a_member_moves_both_deadlines() -> None:
    bench = Bench()
    kept = bench.lease()
    registration = LeaseId(Name("apt", Space.MEMBER, "1/m"), "m", "2", 300.0)
    until = kept.lease_state.deadline
    bench.keeping.registered(
        kept.lease_state, Attached(kept.lease_state.lease, registration, until, until, bench.now), bench.now
    )
    bench.send(kept)
    renewed = MemberRenewed(until + 50, until + 60, bench.now)
    assert bench.answered(kept, renewed) == ReportRenewed(kept, until + 50)
    assert (kept.lease_state.record_deadline, kept.lease_state.in_flight) == (until + 60, False)


def test_an_owner_and_member_is_due_by_the_earlier_deadline() -> None:
    bench = Bench()
    kept = bench.lease()
    registration = LeaseId(Name("apt", Space.MEMBER, "1/m"), "m", "2", 300.0)
    soon = bench.now + SETTINGS.abort_margin + 5
    joined = Attached(kept.lease_state.lease, registration, soon, soon + 100, bench.now)
    bench.keeping.registered(kept.lease_state, joined, bench.now)
    assert bench.keeping.wake_at() == pytest.approx(bench.now + 5)


def test_all_leases_are_left_to_expire_but_those_that_are_spared() -> None:
    bench = Bench()
    kept, spared = bench.lease("a"), bench.lease("b")
    assert bench.keeping.leave_all({id(spared.lease_state)}) == [kept]
    assert ([*bench.keeping], kept.lease_state.state) == ([spared], State.LEFT)


def test_after_a_fault_of_our_own_what_was_queued_is_queued_anew() -> None:
    bench = Bench()
    first, second = bench.lease("a"), bench.lease("b")
    bench.now = first.lease_state.due_at
    true = LeaseState.next_action

    def fails(self: LeaseState, now: float) -> Any:
        if self is second.lease_state:
            raise ValueError("odd")
        return true(self, now)

    with patch.object(LeaseState, "next_action", fails), pytest.raises(ValueError, match="odd"):
        bench.round()
    bench.keeping.recover()
    assert bench.round() == [SendNext(first), SendNext(second)]


def test_after_an_internal_error_orphans_and_sent_are_not_resent() -> None:
    bench = Bench()
    orphan, sent = bench.lease("a"), bench.lease("b")
    bench.now = orphan.lease_state.due_at
    bench.keeping.orphaned(orphan, bench.now)
    bench.keeping.recover()
    bench.send(sent)
    bench.keeping.recover()
    assert (bench.round(), sent.lease_state.in_flight) == ([], True)


def test_the_newest_lease_of_a_holder_is_known() -> None:
    bench = Bench()
    older, newer = bench.lease(), bench.lease()
    bench.keeping.leave(older, bench.now)
    assert bench.keeping.of_holder("a") is newer
