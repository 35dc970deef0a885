"""Faults of time: a holder that believes for too long, a contender that judges too early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstead.errors import LossReason
from lockstead.protocol import acquire, context, expiry, lifecycle, observations, renew, schedule
from lockstead.protocol.commands import Absent, Create, Read, Reply, StoreClock, ask
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.lifecycle import Event, LeaseState, State
from lockstead.protocol.record import number
from lockstead.values import LeaseOutcome, PreviousLease
from tests.protocol import test_expiry, test_hazards, test_lifecycle, test_rules, test_schedule, test_set_clock
from tests.simulation.mutants.patching import Patch, everywhere, mutant


@mutant(
    "deadline counts from the response",
    "client-go, DistributedLock, filelock: a slow response extends the holder's deadline past expiry",
    test_rules.test_a_deadline_counts_from_the_send_of_the_renewal,
    request_=Create,
)
def deadline_from_the_answer() -> list[Patch]:
    return [(ProtocolContext, "renewed_at", lambda self, reply: reply.received_at)]


@mutant(
    "no drift margin for holders",
    "the holder's clock is slow, the contender's fast: two holders",
    test_expiry.test_the_deadline_counts_from_the_send_minus_the_drift,
)
def no_drift_margin_for_holders() -> list[Patch]:
    return [(expiry, "holder_deadline", lambda sent_at, ttl, drift: sent_at + ttl)]


@mutant(
    "no drift margin for contenders",
    "the contender's clock is fast: two holders",
    test_expiry.test_a_record_lives_for_ttl_plus_drift_plus_lock_delay,
)
def no_drift_margin_for_contenders() -> list[Patch]:
    return [(expiry, "record_lifetime", lambda ttl, lock_delay, drift: ttl + lock_delay)]


@mutant(
    "an adopted record's deadline counts from a Create, without an Extend",
    "the conflicting Create says nothing about when the earlier one landed",
    test_rules.test_rule_02_an_adopted_create_counts_from_its_extend,
)
def adopted_record_counts_from_the_create() -> list[Patch]:
    sent: dict[str, float] = {}

    def create(want: Any, context: Any) -> Any:
        script = true(want, context)
        command = next(script)
        while True:
            try:
                reply = yield command
            except Exception as error:
                command = _over(lambda error=error: script.throw(error))
            else:
                sent[want.holder] = reply.sent_at
                command = _over(lambda reply=reply: script.send(reply))
            if isinstance(command, _Returned):
                return command.value

    def adopt(want: Any, seen: Any, record: Any, context: Any) -> Any:
        reply = yield from ask(Read(want.name))
        if isinstance(reply.answer, Absent) or reply.answer.incarnation != seen.incarnation:
            return None
        counted = Reply(reply.answer, sent.get(want.holder, reply.sent_at), reply.received_at)
        return acquire._granted(want, counted, reply.answer, PreviousLease(LeaseOutcome.UNKNOWN), context)

    true = acquire.create
    return [(acquire, "create", create), (acquire, "_adopt", adopt)]


class _Returned:
    def __init__(self, value: Any) -> None:
        self.value = value


def _over(step: Any) -> Any:
    try:
        return step()
    except StopIteration as stop:
        return _Returned(stop.value)


@mutant(
    "a late success revives a lost lease",
    "the loss was reported, the abort has begun, and the lock is 'held' again",
    test_lifecycle.test_a_late_success_never_revives_a_lost_lease,
)
def late_success_revives() -> list[Patch]:
    def renewed(self: Any, sent_at: float, deadline: float | None, received_at: float) -> None:
        self.in_flight = False
        if self.state is State.LOST and deadline is not None:
            self.state = State.HELD
        if deadline is not None:
            self.record_deadline = deadline
        self._settle()
        self.failures, self.round_started_at = 0, None
        self._plan(sent_at)

    return [(LeaseState, "renewed", renewed)]


@mutant(
    "`is_held` asks whether the keeper runs, not the clock",
    "Vault, the Ruby gem: a paused process continues where it stopped",
    test_hazards.test_h08_h09_a_lease_ends_in_time_while_a_renewal_hangs,
)
def loss_is_never_told() -> list[Patch]:
    def next_action(self: Any, now: float) -> Any:
        if self.state is not State.HELD or self.in_flight or now < self.due_at:
            return lifecycle.Action.NOTHING
        return lifecycle.Action.RENEW

    def wake_at(self: Any) -> float:
        return self.due_at if self.state is State.HELD and not self.in_flight else float("inf")

    def believes(self: Any, now: float) -> bool:
        return self.state is State.HELD

    return [
        (LeaseState, "believes", believes),
        (LeaseState, "next_action", next_action),
        (LeaseState, "wake_at", wake_at),
    ]


@mutant(
    "a lease being released still counts as held",
    "two holders work at once",
    test_lifecycle.test_only_a_held_lease_is_believed_or_owed_anything,
    state=State.LEAVING,
)
def released_lease_goes_on_believing() -> list[Patch]:
    table = {**lifecycle.TABLE, (State.HELD, Event.LEAVE): State.HELD}
    return [(lifecycle, "TABLE", table)]


@mutant(
    "quick failures count as rounds",
    "25 s of refused connections lose a lease of 300 s",
    test_lifecycle.test_quick_refusals_in_one_round_count_once,
)
def quick_failures_counted_as_rounds() -> list[Patch]:
    true = LeaseState.failed

    def failed(self: Any, now: float, error: Any) -> None:
        true(self, now, error)
        self.failures += 1
        if self.failures >= self.settings.max_failures:
            self.lose(LossReason.UNREACHABLE)

    return [(LeaseState, "failed", failed)]


@mutant(
    "a renewal writes the ttl of its own settings",
    "contenders use that ttl, members the granted one",
    test_rules.test_rule_03_no_renewal_writes_a_ttl,
)
def ttl_turned_back_by_a_late_extend() -> list[Patch]:
    true = renew.renew

    def renewing(lease: Any, fields: Any, context: Any) -> Any:
        return (yield from true(lease, {**fields, "ttl": number(context.settings.ttl)}, context))

    renewing.__name__ = "renew"
    return everywhere(true, renewing)


@mutant(
    "contenders judge by their own ttl",
    "two deployments with different settings share a lock",
    test_rules.test_rule_03_a_contender_judges_by_the_records_ttl,
)
def contenders_judge_by_their_own_ttl() -> list[Patch]:
    true = context.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, context: Any) -> Any:
        return (yield from true(name, replace(record, ttl=context.settings.ttl), reply, seen, salt, context))

    return [(acquire, "is_over", is_over)]


@mutant(
    "observation without drift margin",
    "a store without a clock: two holders",
    test_expiry.test_by_observation_a_record_is_over_only_after_every_margin,
    lock_delay=0.0,
)
def observation_without_margin() -> list[Patch]:
    def early(first: float, last: float, ttl: float, lock_delay: float, drift: float) -> bool:
        return last - first > ttl + lock_delay

    return [(expiry, "expired_by_observation", early)]


@mutant(
    "observation counts from the send of the first read",
    "the record may be renewed between send and receipt",
    test_rules.test_rule_09_observation_is_from_first_receipt_to_last_send,
)
def observation_from_the_send() -> list[Patch]:
    true = context.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, context: Any) -> Any:
        return (yield from true(name, record, Reply(reply.answer, reply.sent_at, reply.sent_at), seen, salt, context))

    return everywhere(true, is_over)


@mutant(
    "observation ignores the revision",
    "a holder that renews seems to stand still",
    test_rules.test_rule_09_a_renewal_starts_the_observation_anew,
)
def observation_ignores_the_revision() -> list[Patch]:
    true = observations.ObservationCache.observe

    def observe(self: Any, name: Any, seen: Any, reply: Any) -> Any:
        return true(self, name, replace(seen, revision=""), reply)

    return [(observations.ObservationCache, "observe", observe)]


@mutant(
    "contenders trust an uncalibrated `Date`",
    "a front end's `Date` is a minute ahead: a live lock is taken",
    test_rules.test_rule_07_the_companions_updated_outranks_a_wrong_date,
)
def date_trusted_uncalibrated() -> list[Patch]:
    true = context.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, held: Any) -> Any:
        trusting = replace(held, traits=replace(held.traits, clock=StoreClock.ONE_CLOCK))
        return (yield from true(name, record, reply, seen, salt, trusting))

    return everywhere(true, is_over)


@mutant(
    "members trust an uncalibrated `Date`",
    "a renewal seems younger than it is",
    test_rules.test_rule_07_an_uncalibrated_member_extends_instead,
)
def members_trust_any_date() -> list[Patch]:
    return [(expiry, "calibrated", lambda *_: True)]


@mutant(
    "a foreign lock is over at its `expires_at`",
    "its writer's wall clock is 30 s behind",
    test_expiry.test_a_foreign_lock_is_over_only_after_the_allowance,
)
def foreign_lock_without_allowance() -> list[Patch]:
    return [(expiry, "foreign_expired", lambda store_now, expires_at: store_now > expires_at)]


@mutant(
    "contenders trust a server clock that was set",
    "a Redis an hour behind is corrected: waiters take every live lock",
    test_set_clock.test_h31_a_clock_set_forward_lets_nobody_take_a_live_lease,
    seconds=3600.0,
)
def contenders_trust_a_clock_that_was_set() -> list[Patch]:
    return [(observations.ObservationCache, "read_clock", lambda *_: None)]


@mutant(
    "the keeper renews one key only",
    "planning a second lock silently loses the first",
    test_schedule.test_leases_of_several_keys_are_planned_each_by_itself,
)
def keeper_renews_one_key_alone() -> list[Patch]:
    true = schedule.RenewalSchedule.plan

    def plan(self: Any, lease_state: Any) -> float:
        for _at, _number, other in list(self._heap):
            if other.lease.name != lease_state.lease.name:
                self.drop(other)
        return float(true(self, lease_state))

    return [(schedule.RenewalSchedule, "plan", plan)]


@mutant(
    "a round counts from its due time, not its send",
    "3,000 leases, 0.2 s per response: all reported unreachable",
    test_lifecycle.test_h33_a_renewal_that_waits_to_be_sent_begins_no_round,
)
def rounds_count_from_when_they_are_due() -> list[Patch]:
    def queue(self: Any) -> None:
        self.in_flight = True
        if self.round_started_at is None:
            self.round_started_at = self.due_at

    return [(LeaseState, "queue", queue)]
