"""Faults of the keeper's step alone: what is due, what is notified, what is planned anew."""

from __future__ import annotations

import heapq
from typing import Any

from lockstead.errors import LossReason, StoreError
from lockstead.protocol.keeping import Keeping, NotifyLoss, ReportAbandoned
from lockstead.protocol.lifecycle import State
from tests.protocol import test_keeping
from tests.simulation.mutants.patching import Patch, mutant


@mutant(
    "the step never notices that a lease runs out",
    "a section goes on beside the next holder's: nobody tells it that its lease has expired",
    test_keeping.test_h08_a_loss_is_notified_the_margin_before_the_deadline,
)
def expiry_is_never_noticed() -> list[Patch]:
    true = Keeping.round

    def silent(self: Any, now: float, actions: list[Any]) -> None:
        true(self, now, actions)
        actions[:] = [
            one
            for one in actions
            if not (isinstance(one, NotifyLoss) and one.kept.lease_state.reason is LossReason.EXPIRED)
        ]

    return [(Keeping, "round", silent)]


@mutant(
    "the step notices a loss late",
    "the margin in which a task could have been stopped is spent before anybody is told",
    test_keeping.test_h08_a_loss_is_notified_the_margin_before_the_deadline,
)
def losses_are_noticed_late() -> list[Patch]:
    true = Keeping.wake_at

    def wake_at(self: Any) -> float:
        late = 0.5 if any(one.lease_state.in_flight for one in self) else 0.0
        return float(true(self)) + late

    return [(Keeping, "wake_at", wake_at)]


@mutant(
    "a lease whose renewal failed is planned no more",
    "one answer is lost, and the lease is neither renewed nor told as lost",
    test_keeping.test_h08_a_failed_renewal_is_retried_and_its_loss_notified,
)
def failed_renewals_end_the_schedule() -> list[Patch]:
    true = Keeping.answered

    def answered(self: Any, kept: Any, outcome: Any, now: float, *, is_ours: bool = True) -> Any:
        action = true(self, kept, outcome, now, is_ours=is_ours)
        if isinstance(outcome, StoreError):
            self._schedule.drop(kept.lease_state)
        return action

    return [(Keeping, "answered", answered)]


@mutant(
    "a renewed lease is planned no more",
    "every lock is lost after one renewal, by those who work for long alone",
    test_keeping.test_h08_a_renewed_lease_is_renewed_again,
)
def renewed_leases_end_the_schedule() -> list[Patch]:
    true = Keeping.answered

    def answered(self: Any, kept: Any, outcome: Any, now: float, *, is_ours: bool = True) -> Any:
        action = true(self, kept, outcome, now, is_ours=is_ours)
        if not isinstance(outcome, StoreError):
            self._schedule.drop(kept.lease_state)
        return action

    return [(Keeping, "answered", answered)]


@mutant(
    "what was queued is sent, whatever happened meanwhile",
    "a crew that was busy renews a lease after its deadline, and keeps the next one out for a ttl",
    test_keeping.test_h08_no_renewal_after_the_deadline_or_a_release,
)
def renews_after_the_deadline() -> list[Patch]:
    def sending(self: Any, lease_state: Any, now: float) -> bool:
        if not lease_state.is_queued:
            return False
        lease_state.sending(now)
        self._schedule.plan(lease_state)
        return True

    return [(Keeping, "sending", sending)]


@mutant(
    "a queued renewal is sent by every worker that takes it",
    "two renewals of one lease at once: the later answer may be the older one",
    test_keeping.test_a_renewal_is_sent_when_it_is_due_and_once,
)
def renewals_are_sent_twice() -> list[Patch]:
    true = Keeping._send

    def send(self: Any, due: list[Any], now: float, actions: list[Any]) -> None:
        true(self, due, now, actions)
        for one in due:
            heapq.heappush(self._queue, (one.lease_state.deadline, next(self._count), one))
        actions.extend(list(actions))

    def sending(self: Any, lease_state: Any, now: float) -> bool:
        if not lease_state.believes(now):
            return False
        lease_state.sending(now)
        self._schedule.plan(lease_state)
        return True

    return [(Keeping, "_send", send), (Keeping, "sending", sending)]


@mutant(
    "a loss that was found elsewhere is noted and notified to nobody",
    "an attachment finds the lock revoked, and the section goes on until its deadline",
    test_keeping.test_a_loss_found_elsewhere_is_notified_by_the_next_round,
)
def found_losses_are_kept_quiet() -> list[Patch]:
    def lose(self: Any, kept: Any, reason: Any, detail: str = "") -> Any:
        is_lost = kept.lease_state.lose(reason, detail)
        if is_lost:
            self._drop(kept.lease_state)
        return is_lost

    return [(Keeping, "lose", lose)]


@mutant(
    "a loss that a renewal finds is notified to nobody",
    "the store says that the lock was taken, and the section works on beside its new holder",
    test_keeping.test_a_loss_found_by_a_renewal_is_notified_and_dropped,
)
def losses_by_renewal_are_kept_quiet() -> list[Patch]:
    true = Keeping.answered

    def answered(self: Any, kept: Any, outcome: Any, now: float, *, is_ours: bool = True) -> Any:
        action = true(self, kept, outcome, now, is_ours=is_ours)
        return None if isinstance(action, NotifyLoss) else action

    return [(Keeping, "answered", answered)]


@mutant(
    "a loss is notified as often as it is found",
    "a callback that stops a service is called for one loss again and again",
    test_keeping.test_a_loss_found_elsewhere_is_notified_by_the_next_round,
)
def losses_are_notified_again() -> list[Patch]:
    true = Keeping.round

    def twice(self: Any, now: float, actions: list[Any]) -> None:
        true(self, now, actions)
        actions.extend([one for one in actions if isinstance(one, NotifyLoss)])

    return [(Keeping, "may_notify", lambda self, lease_state: True), (Keeping, "round", twice)]


@mutant(
    "a lease that a renewal found lost is kept",
    "renewals of a lost lease go out for as long as the process lives",
    test_keeping.test_a_loss_found_by_a_renewal_is_notified_and_dropped,
)
def lost_leases_are_kept() -> list[Patch]:
    def replan(self: Any, lease_state: Any) -> None:
        self._schedule.plan(lease_state)

    return [(Keeping, "_replan", replan)]


@mutant(
    "a lease that nobody refers to is renewed forever",
    "an exception kept a lease from being given back: its key is free only when the process ends",
    test_keeping.test_h33_an_orphan_is_not_renewed_and_soon_abandoned,
)
def orphans_are_renewed() -> list[Patch]:
    return [(Keeping, "orphaned", lambda self, kept, now: None)]


@mutant(
    "a lease that nobody refers to is abandoned before its block can give it back",
    "the collector closes the block of a lease, which has been given up already: its key is free a ttl later",
    test_keeping.test_an_orphan_kept_again_is_renewed_and_not_abandoned,
)
def orphans_are_abandoned_whoever_has_them() -> list[Patch]:
    true = Keeping.keep

    def keep(self: Any, kept: Any) -> float:
        orphan = self._orphans.get(id(kept.lease_state))
        due_at = float(true(self, kept))
        if orphan is not None:
            self._orphans[id(kept.lease_state)] = orphan
        return due_at

    return [(Keeping, "keep", keep)]


@mutant(
    "an abandoned lease is believed on",
    "a lease that was left to expire counts as held in its process, for whoever asks",
    test_keeping.test_h33_an_orphan_is_not_renewed_and_soon_abandoned,
)
def abandoned_leases_are_believed() -> list[Patch]:
    def abandon(self: Any, now: float, actions: list[Any]) -> None:
        for at, kept in [*self._orphans.values()]:
            if at <= now:
                self._drop(kept.lease_state)
                actions.append(ReportAbandoned(kept))

    return [(Keeping, "_abandon", abandon)]


@mutant(
    "a worker renews the lease that has most time left",
    "behind a store that is slow, short leases are lost while long ones are renewed",
    test_keeping.test_the_lease_with_least_time_left_is_sent_first,
)
def most_time_left_goes_first() -> list[Patch]:
    def take_queued(self: Any) -> Any:
        if not self._queue:
            return None
        self._queue.sort()
        return self._queue.pop()[2]

    return [(Keeping, "take_queued", take_queued)]


@mutant(
    "a batch takes leases whose renewal is under way",
    "two renewals of one lease at once: the later answer may be the older one",
    test_keeping.test_a_batch_takes_what_is_due_now_or_soon_up_to_its_size,
)
def batches_take_what_is_under_way() -> list[Patch]:
    true = Keeping._send

    def send(self: Any, due: list[Any], now: float, actions: list[Any]) -> None:
        if self.batch_max > 1:
            others = [one for one in self if one not in due and one.lease_state.state is State.HELD]
            for one in others:
                one.lease_state.queue()
            due = [*due, *others]
        true(self, due, now, actions)

    return [(Keeping, "_send", send)]


@mutant(
    "a renewal that no worker took is planned no more",
    "for a moment the system has no thread, and every lease that was due then is lost",
    test_keeping.test_a_renewal_that_no_worker_takes_has_failed,
)
def unsent_renewals_are_forgotten() -> list[Patch]:
    return [(Keeping, "not_sent", lambda self, lease_state, error, now: None)]


@mutant(
    "after a fault of our own, what was queued is never sent",
    "one odd lease makes a round fail, and those beside it are not renewed any more",
    test_keeping.test_after_a_fault_of_our_own_what_was_queued_is_queued_anew,
)
def recovery_forgets_what_was_queued() -> list[Patch]:
    def recover(self: Any) -> None:
        for one in self:
            self._schedule.plan(one.lease_state)

    return [(Keeping, "recover", recover)]
