"""Faults of sharing: members that register, read, renew and withdraw; owners that close and wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstead.errors import LossReason, OutcomeUnknown, StoreUnavailable
from lockstead.protocol import acquire, context, expiry, members, observations, release, renew
from lockstead.protocol.commands import Extend, Read, Remove, Snapshot, ask
from lockstead.protocol.lifecycle import LeaseState
from lockstead.values import EXCLUSIVE, Name, Space
from tests.protocol import test_expiry, test_hazards, test_rules, test_set_clock
from tests.simulation.mutants.patching import Patch, everywhere, mutant


@mutant(
    "a member's release removes the record",
    "the first of fifty tasks to end releases the lock of the others",
    test_rules.test_rule_04_a_member_gives_back_its_registration_alone,
)
def a_siblings_release_removes() -> list[Patch]:
    true = release.give_back

    def give_back(lease_state: Any, context: Any, *, bound_at: float) -> Any:
        outcome = yield from true(lease_state, context, bound_at=bound_at)
        if not lease_state.is_owner:
            yield from release.remove(lease_state.lease, context)
        return outcome

    return everywhere(true, give_back)


@mutant(
    "attach does not check `closing`",
    "a task joins after the owner listed its members",
    test_rules.test_rule_04_an_attach_after_the_list_sees_closing,
)
def attach_without_looking_for_closing() -> list[Patch]:
    true = context.ProtocolContext.decode

    def decode(self: Any, name: Any, seen: Any) -> Any:
        return replace(true(self, name, seen), closing=False)

    def close(lease: Any, context: Any, bound_at: float) -> Any:
        try:
            reply = yield from ask(Extend(lease.name, {"closing": "1"}, lease.incarnation))
        except (StoreUnavailable, OutcomeUnknown):
            return release.Outcome.LEFT
        return reply if isinstance(reply.answer, Snapshot) else release.Outcome.NOT_OURS

    return [(context.ProtocolContext, "decode", decode), (release, "_close", close)]


@mutant(
    "attach accepts a renewal that shows `closing`",
    "the owner closed in between, listed nobody and removes the record",
    test_rules.test_rule_04_an_attach_whose_renewal_meets_closing_withdraws,
)
def attach_accepts_closing() -> list[Patch]:
    true = renew.renew

    def renewing(lease: Any, fields: Any, context: Any) -> Any:
        renewed = yield from true(lease, fields, context)
        if isinstance(renewed, renew.Renewed) and renewed.deadline is None:
            return replace(renewed, deadline=context.deadline(renewed.sent_at, lease.ttl))
        return renewed

    return [(members, "renew", renewing)]


@mutant(
    "a member reads before it registers",
    "the owner closes, lists nobody and removes in between",
    test_rules.test_rule_04_a_member_reads_only_after_its_registration,
)
def member_reads_before_registering() -> list[Patch]:
    def attach(
        lease: Any,
        nonce: str,
        fields: Mapping[str, str],
        context: Any,
        *,
        mode: str = EXCLUSIVE,
        introduced_by: Any = None,
    ) -> Any:
        joined = yield from members._join(lease, context, mode, introduced_by)
        if isinstance(joined, renew.Over):
            return joined
        name = members.member_name(lease, nonce)
        registration, reply = yield from members._register(name, lease.ttl, fields, context)
        at, until = context.renewed_at(reply), context.deadline(reply.sent_at, lease.ttl)
        return members.Attached(
            lease, registration, until, joined.deadline, at, joined.token, joined.previous_lease, mode
        )

    return everywhere(members.attach, attach)


@mutant(
    "owner lists before `closing` is acknowledged",
    "the closing request is lost; a task attaches after the list",
    test_rules.test_rule_04_nobody_lists_before_an_answer_shows_closing,
)
def release_without_closing() -> list[Patch]:
    def close(lease: Any, context: Any, bound_at: float) -> Any:
        reply = yield from ask(Read(lease.name))
        return reply if isinstance(reply.answer, Snapshot) else release.Outcome.NOT_OURS

    return [(release, "_close", close)]


@mutant(
    "owner does not wait for members",
    "the driver ends before its tasks; the next run overlaps them",
    test_hazards.test_h27_a_release_waits_for_running_members,
)
def release_without_draining() -> list[Patch]:
    def drain(lease: Any, context: Any, *, bound_at: float, salt: str) -> Any:
        yield from ()
        return True

    return [(release, "drain", drain)]


@mutant(
    "owner removes the record when its wait times out",
    "a task takes longer than expected",
    test_rules.test_rule_04_a_live_member_at_the_bound_leaves_the_record,
)
def removed_at_the_drains_bound() -> list[Patch]:
    true = members.drain

    def drain(lease: Any, context: Any, *, bound_at: float, salt: str) -> Any:
        yield from true(lease, context, bound_at=bound_at, salt=salt)
        return True

    return [(release, "drain", drain), (acquire, "drain", drain)]


@mutant(
    "dead registration removed by incarnation alone",
    "a member that renewed just in time works on unseen",
    test_rules.test_rule_04_a_dead_registration_is_removed_by_its_revision,
)
def members_removed_by_incarnation_alone() -> list[Patch]:
    def loose(name: Any, incarnation: str, revision: str | None = None) -> Any:
        return Remove(name, incarnation)

    return [(members, "Remove", loose)]


@mutant(
    "a member checks its registration only",
    "the lease expired; somebody else holds it",
    test_hazards.test_h27_a_members_deadline_is_the_earlier_of_its_two,
)
def member_believes_its_registration_alone() -> list[Patch]:
    def settle(self: Any) -> None:
        self.deadline = self.registration_deadline if self.registration is not None else self.record_deadline

    return [(LeaseState, "_settle", settle)]


@mutant(
    "a member checks the record only",
    "its registration expired; the owner no longer waits for it",
    test_hazards.test_h27_a_members_deadline_is_the_earlier_of_its_two,
)
def member_believes_the_record_alone() -> list[Patch]:
    def settle(self: Any) -> None:
        self.deadline = self.record_deadline

    return [(LeaseState, "_settle", settle)]


@mutant(
    "a member's deadline ignores the age of what it read",
    "the record was renewed almost a ttl ago",
    test_expiry.test_a_members_deadline_assumes_the_greatest_age,
)
def members_read_without_age() -> list[Patch]:
    def by_read(sent_at: float, now: float, updated: float, ttl: float, drift: float, *_: float) -> float:
        return sent_at + ttl * (1 - drift)

    return [(expiry, "deadline_by_read", by_read)]


@mutant(
    "members trust the age by the server's clock",
    "Redis is set back an hour: every member thinks another renews, and nobody does",
    test_set_clock.test_h31_a_member_keeps_a_lease_whatever_the_clock_does,
    seconds=-3600.0,
)
def members_trust_a_clock_that_was_set() -> list[Patch]:
    def by_look(self: Any, look: Any, reply: Any, seen: Any, ttl: float) -> float | None:
        if seen.updated_at is None or seen.store_now is None:
            return None
        age = max(0.0, seen.store_now - seen.updated_at)
        return float(self.deadline(reply.sent_at - age, ttl))

    return [(context.ProtocolContext, "deadline_by_look", by_look)]


@mutant(
    "a member counts a change from the receipt of its previous read",
    "the renewal came while that response was under way",
    test_set_clock.test_h31_of_looks_that_overlap_nobody_says_which_came_first,
)
def looks_count_from_their_receipt() -> list[Patch]:
    true = observations.ObservationCache.observe

    def observe(self: Any, name: Any, seen: Any, reply: Any) -> Any:
        known = self.looks.get(name)
        look = true(self, name, seen, reply)
        if known is not None and look.is_change(reply):
            look = self.looks[name] = look._replace(changed_after=known.received_at)
        return look

    return [(observations.ObservationCache, "observe", observe)]


@mutant(
    "members share one registration",
    "the first thread to leave removes it; the owner waits for neither",
    test_rules.test_rule_11_members_have_the_incarnation_in_their_name,
)
def members_share_a_registration() -> list[Patch]:
    def member_name(lease: Any, nonce: str) -> Name:
        del nonce
        return Name(lease.name.key, Space.MEMBER, f"{lease.incarnation}/all")

    return everywhere(members.member_name, member_name)


@mutant(
    "a member without registration continues",
    "the store came back empty: another process takes the lock",
    test_hazards.test_h27_a_member_whose_registration_was_removed_is_lost,
)
def member_without_registration_goes_on() -> list[Patch]:
    true = members.renew_member

    def renew_member(lease: Any, registration: Any, fields: Any, context: Any, **mode: Any) -> Any:
        outcome = yield from true(lease, registration, fields, context, **mode)
        if isinstance(outcome, renew.Over) and outcome.reason is LossReason.GONE:
            at = context.deadline((yield from ask(Read(lease.name))).sent_at, lease.ttl)
            return members.MemberRenewed(at, at, at - lease.ttl)
        return outcome

    return everywhere(true, renew_member)


@mutant(
    "a difference between overlapping reads counts as a change",
    "a slow response shows an older state: the deadline is too late",
    test_set_clock.test_h31_of_looks_that_overlap_nobody_says_which_came_first,
)
def looks_that_overlap_count() -> list[Patch]:
    true = observations.ObservationCache.observe

    def observe(self: Any, name: Any, seen: Any, reply: Any) -> Any:
        known = self.looks.get(name)
        if known is not None:
            self.looks[name] = known._replace(received_at=min(known.received_at, reply.sent_at))
        return true(self, name, seen, reply)

    return [(observations.ObservationCache, "observe", observe)]


@mutant(
    "a sweep removes a lease with members",
    "the owner has left, its tasks have not",
    test_rules.test_rule_04_a_sweep_spares_a_lease_with_members,
)
def sweep_takes_what_members_hold() -> list[Patch]:
    true = release.sweep

    def sweep(name: Any, holder: str, context: Any, used: Any = None) -> Any:
        return (
            yield from true(name, holder, context, used and release.UsedLease(used.incarnation, is_clean=used.is_clean))
        )

    return everywhere(true, sweep)
