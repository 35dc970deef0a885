"""Faults of time: a holder that believes for too long, a contender that judges too early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstead.errors import LossReason
from lockstead.protocol import acquire, expiry, lifecycle, observations, renew, schedule, terms
from lockstead.protocol.commands import Absent, Create, Read, Reply, StoreClock, ask
from lockstead.protocol.lifecycle import Event, State, Tenure
from lockstead.protocol.record import number
from lockstead.values import LeaseOutcome, PreviousLease
from tests.protocol import test_expiry, test_hazards, test_lifecycle, test_rota, test_rules, test_set_clock
from tests.simulation.mutants.patching import Patch, everywhere, mutant


def _ask_late(command: Any) -> Any:
    reply = yield from ask(command)
    return Reply(reply.answer, reply.received_at, reply.received_at)


@mutant(
    "the deadline counts from the answer",
    "client-go, DistributedLock, filelock: an answer that takes seconds makes a holder that believes seconds too long",
    test_rules.test_a_deadline_counts_from_the_send_of_the_request_that_renewed_the_record,
    request_=Create,
)
def deadline_from_the_answer() -> list[Patch]:
    return [(acquire, "ask", _ask_late), (renew, "ask", _ask_late)]


@mutant(
    "no drift margin on the holder's side",
    "a holder with a slow clock believes while a contender with a fast one takes over",
    test_expiry.test_the_holders_deadline_counts_from_the_send_and_ends_a_drift_early,
)
def no_drift_margin_for_holders() -> list[Patch]:
    return [(expiry, "holder_deadline", lambda sent_at, ttl, drift: sent_at + ttl)]


@mutant(
    "no drift margin on the contender's side",
    "the same, seen from the other side: the contender's clock is fast",
    test_expiry.test_a_records_life_is_the_ttl_a_drift_longer_and_the_lock_delay,
)
def no_drift_margin_for_contenders() -> list[Patch]:
    return [(expiry, "record_life", lambda ttl, lock_delay, drift: ttl + lock_delay)]


@mutant(
    "the deadline of an adopted record counts from a Create, and nothing is extended",
    "the Create that met our own earlier one says nothing of when that one landed",
    test_rules.test_rule_02_an_adopted_create_counts_from_the_extend_that_adopts_it,
)
def adopted_record_counts_from_the_create() -> list[Patch]:
    sent: dict[str, float] = {}

    def create(want: Any, terms: Any) -> Any:
        script = true(want, terms)
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

    def adopt(want: Any, seen: Any, record: Any, terms: Any) -> Any:
        reply = yield from ask(Read(want.name))
        if isinstance(reply.answer, Absent) or reply.answer.incarnation != seen.incarnation:
            return None
        counted = Reply(reply.answer, sent.get(want.holder, reply.sent_at), reply.received_at)
        return acquire._granted(want, counted, reply.answer, PreviousLease(LeaseOutcome.UNKNOWN), terms)

    true = acquire._create
    return [(acquire, "_create", create), (acquire, "_adopt", adopt)]


class _Returned:
    def __init__(self, value: Any) -> None:
        self.value = value


def _over(step: Any) -> Any:
    try:
        return step()
    except StopIteration as stop:
        return _Returned(stop.value)


@mutant(
    "a success that comes late revives a lost lease",
    "the loss was told, the abort has begun, and the lock is 'held' again",
    test_lifecycle.test_a_late_success_never_revives_a_lost_lease_nor_moves_its_deadline,
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

    return [(Tenure, "renewed", renewed)]


@mutant(
    "belief asks whether the keeper lives, not what the clock says",
    "Vault and the Ruby gem: a process that was stopped goes on where it stood",
    test_hazards.test_h08_h09_belief_ends_by_arithmetic_while_a_renewal_hangs_and_the_loss_is_told_before,
)
def loss_is_never_told() -> list[Patch]:
    def duty(self: Any, now: float) -> Any:
        if self.state is not State.HELD or self.in_flight or now < self.due_at:
            return lifecycle.Duty.NOTHING
        return lifecycle.Duty.RENEW

    def wake_at(self: Any) -> float:
        return self.due_at if self.state is State.HELD and not self.in_flight else float("inf")

    def believes(self: Any, now: float) -> bool:
        return self.state is State.HELD

    return [(Tenure, "believes", believes), (Tenure, "duty", duty), (Tenure, "wake_at", wake_at)]


@mutant(
    "a lease that is being released is still believed",
    "the next holder works while the last one still thinks that it may",
    test_lifecycle.test_only_a_held_lease_is_believed_or_owed_anything,
    state=State.LEAVING,
)
def released_lease_goes_on_believing() -> list[Patch]:
    table = {**lifecycle.TABLE, (State.HELD, Event.LEAVE): State.HELD}
    return [(lifecycle, "TABLE", table)]


@mutant(
    "quick failures counted as rounds",
    "25 s of refused connections kill a lease of 300 s",
    test_lifecycle.test_quick_refusals_in_one_round_count_once,
)
def quick_failures_counted_as_rounds() -> list[Patch]:
    true = Tenure.failed

    def failed(self: Any, now: float, error: Any) -> None:
        true(self, now, error)
        self.failures += 1
        if self.failures >= self.settings.max_failures:
            self.lose(LossReason.UNREACHABLE)

    return [(Tenure, "failed", failed)]


@mutant(
    "the ttl is turned back by a late Extend",
    "a renewal writes the ttl of its own settings: contenders judge by that, members believe by the one granted",
    test_rules.test_rule_03_no_renewal_writes_a_ttl_so_a_late_one_cannot_turn_it_back,
)
def ttl_turned_back_by_a_late_extend() -> list[Patch]:
    true = renew.renew

    def renewing(lease: Any, fields: Any, terms: Any) -> Any:
        return (yield from true(lease, {**fields, "ttl": number(terms.settings.ttl)}, terms))

    renewing.__name__ = "renew"
    return everywhere(true, renewing)


@mutant(
    "contenders judge by the ttl of their own settings",
    "two deployments with different settings share a lock",
    test_rules.test_rule_03_a_contender_judges_by_the_records_ttl_not_by_its_own,
)
def contenders_judge_by_their_own_ttl() -> list[Patch]:
    true = terms.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, terms: Any) -> Any:
        return (yield from true(name, replace(record, ttl=terms.settings.ttl), reply, seen, salt, terms))

    return [(acquire, "is_over", is_over)]


@mutant(
    "observation without its margin",
    "the drift is left out where a store has no clock",
    test_expiry.test_by_observation_a_record_is_over_only_after_every_margin,
    lock_delay=0.0,
)
def observation_without_margin() -> list[Patch]:
    def early(first: float, last: float, ttl: float, lock_delay: float, drift: float) -> bool:
        return last - first > ttl + lock_delay

    return [(expiry, "expired_by_observation", early)]


@mutant(
    "observation counts from the send of the first sight",
    "the record may have been renewed between that send and its receipt",
    test_rules.test_rule_09_observation_counts_from_the_receipt_of_the_first_to_the_send_of_the_last,
)
def observation_from_the_send() -> list[Patch]:
    true = terms.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, terms: Any) -> Any:
        return (yield from true(name, record, Reply(reply.answer, reply.sent_at, reply.sent_at), seen, salt, terms))

    return everywhere(true, is_over)


@mutant(
    "observation ignores the revision",
    "a holder that renews all the time is taken for one that stands still",
    test_rules.test_rule_09_a_renewal_starts_the_observation_anew,
)
def observation_ignores_the_revision() -> list[Patch]:
    true = observations.ObservationCache.see

    def see(self: Any, name: Any, seen: Any, reply: Any) -> Any:
        return true(self, name, replace(seen, revision=""), reply)

    return [(observations.ObservationCache, "see", see)]


@mutant(
    "`Date` trusted uncalibrated, by contenders",
    "a front end whose `Date` is a minute ahead gives away a lock that is renewed every few seconds",
    test_rules.test_rule_07_a_date_far_ahead_hints_but_the_companions_updated_decides,
)
def date_trusted_uncalibrated() -> list[Patch]:
    true = terms.is_over

    def is_over(name: Any, record: Any, reply: Any, seen: Any, salt: str, held: Any) -> Any:
        trusting = replace(held, traits=replace(held.traits, clock=StoreClock.ONE_CLOCK))
        return (yield from true(name, record, reply, seen, salt, trusting))

    return everywhere(true, is_over)


@mutant(
    "`Date` trusted uncalibrated, by members",
    "a member believes a renewal to be younger than it is",
    test_rules.test_rule_07_an_uncalibrated_member_extends_instead_of_counting_from_a_read,
)
def members_trust_any_date() -> list[Patch]:
    return [(expiry, "calibrated", lambda *_: True)]


@mutant(
    "another implementation's lock is over the moment its `expires_at` has passed",
    "its writer's wall clock is half a minute behind",
    test_expiry.test_a_foreign_lock_is_over_only_after_the_allowance_for_its_writers_clock,
)
def foreign_lock_without_allowance() -> list[Patch]:
    return [(expiry, "foreign_expired", lambda store_now, expires_at: store_now > expires_at)]


@mutant(
    "a contender believes the age that a clock shows which was set",
    "a Redis that was an hour behind gets its time; every lock that somebody waits for is taken from its holder",
    test_set_clock.test_h31_who_waits_takes_no_live_lease_when_the_clock_is_set_forward,
    seconds=3600.0,
)
def contenders_trust_a_clock_that_was_set() -> list[Patch]:
    return [(observations.ObservationCache, "read_clock", lambda *_: None)]


@mutant(
    "a keeper renews the leases of one key alone",
    "a process that has two locks loses the first as soon as the second is planned, and nobody tells it",
    test_rota.test_leases_of_several_keys_are_planned_each_by_itself,
)
def keeper_renews_one_key_alone() -> list[Patch]:
    true = schedule.RenewalSchedule.plan

    def plan(self: Any, tenure: Any) -> float:
        for _at, _number, other in list(self._heap):
            if other.lease.name != tenure.lease.name:
                self.drop(other)
        return float(true(self, tenure))

    return [(schedule.RenewalSchedule, "plan", plan)]


@mutant(
    "a round is counted from when a renewal is due, not from its send",
    "3,000 leases on a store that takes 0.2 s for each answer: all were told that it cannot be reached",
    test_lifecycle.test_h33_a_renewal_that_waits_to_be_sent_begins_no_round_and_so_never_fails_by_itself,
)
def rounds_count_from_when_they_are_due() -> list[Patch]:
    def queue(self: Any) -> None:
        self.in_flight = True
        if self.round_started_at is None:
            self.round_started_at = self.due_at

    return [(Tenure, "queue", queue)]
