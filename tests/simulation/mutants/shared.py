"""Faults of readers and writers: groups that are founded, joined, marked, listed, replaced, left and downgraded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol import acquire, groups, members, observations, previous_lease, readers, release
from lockstead.protocol.commands import Extend, Read, Remove, Snapshot, ask
from lockstead.protocol.context import LeaseId
from lockstead.protocol.lifecycle import LeaseState
from lockstead.protocol.renew import Over
from lockstead.runtime.engine import Engine
from lockstead.settings import Settings
from lockstead.values import SHARED
from tests.protocol import test_shared
from tests.simulation.mutants.patching import Patch, everywhere, mutant
from tests.simulation.plan import Scenario
from tests.simulation.store import NONE
from tests.simulation.store import SHARED as ONE_CLOCK

with_readers = partial(mutant, scenario=Scenario.SHARED)

# --- readers ----------------------------------------------------------------------------------------------------------


def _joining_by(attach: Callable[..., Any]) -> list[Patch]:
    return [(readers, "attach", attach)]


@with_readers(
    "the founder of a group is a reader before it registers",
    "a writer lists nobody and takes the lock",
    test_shared.test_s01_the_founder_believes_nothing_before_its_registration,
    traits=ONE_CLOCK,
)
def first_reader_believes_its_grant() -> list[Patch]:
    true = readers._found

    def attempt_shared(request: Any, context: Any, **_: Any) -> Any:
        found = yield from true(request, context)
        if not isinstance(found, LeaseId):
            return found or acquire.Contended(None)
        if found.holder == request.fields["identity"]:
            until = context.deadline((yield from ask(Read(request.name))).sent_at, found.ttl)
            return acquire.Grant(found, until - found.ttl, until, None, previous_lease.NOBODY_BEFORE)
        return acquire.Contended(None)

    return everywhere(readers.attempt_shared, attempt_shared)


@with_readers(
    "a reader does not read the record after its registration",
    "the writer's list was empty before, and it takes the lock",
    test_shared.test_s03_mark_and_list_fall_between_registration_and_read,
    traits=NONE,
)
def joins_without_looking() -> list[Patch]:
    true = members._register

    def attach(lease: Any, nonce: str, fields: Any, context: Any, *, mode: str) -> Any:
        registration, reply = yield from true(members.member_name(lease, nonce), lease.ttl, fields, context)
        until = context.deadline(reply.sent_at, lease.ttl)
        return members.Attached(lease, registration, until, until, reply.sent_at, None, None, mode)

    return _joining_by(attach)


@with_readers(
    "a reader joins a group that a writer waits for",
    "the writer has listed nobody, and takes the lock",
    test_shared.test_s03_mark_and_list_fall_between_registration_and_read,
    traits=ONE_CLOCK,
)
def joins_a_marked_group() -> list[Patch]:
    true = members.attach

    def attach(lease: Any, nonce: str, fields: Any, context: Any, *, mode: str) -> Any:
        class Unmarked(type(context)):  # type: ignore[misc]  # the class is that of the context
            def decode(self, name: Any, seen: Any) -> Any:
                return replace(super().decode(name, seen), wanted="")

        blind = Unmarked(context.traits, context.settings, context.observations)
        return true(lease, nonce, fields, blind, mode=mode)

    return _joining_by(attach)


@with_readers(
    "a reader joins another incarnation than it registered under",
    "the writer lists the registrations of the present group",
    test_shared.test_s03_a_group_with_a_new_incarnation_is_another_group,
    traits=ONE_CLOCK,
)
def join_ignores_the_incarnation() -> list[Patch]:
    true = members._join

    def join(lease: Any, context: Any, mode: str, introduced_by: Any) -> Any:
        reply = yield from ask(Read(lease.name))
        if isinstance(reply.answer, Snapshot):
            lease = replace(lease, incarnation=reply.answer.incarnation)
        return (yield from true(lease, context, mode, introduced_by))

    return [(members, "_join", join)]


@with_readers(
    "a reader reads the record before it registers",
    "the writer marks, lists nobody and takes the lock in between",
    test_shared.test_m01_reader_and_writer_never_both_get_in,
    traits=ONE_CLOCK,
    waits_first=True,
    stands="a group",
)
def reader_reads_before_registering() -> list[Patch]:
    def attach(lease: Any, nonce: str, fields: Any, context: Any, *, mode: str) -> Any:
        joined = yield from members._join(lease, context, mode, None)
        if isinstance(joined, Over):
            return joined
        registration, reply = yield from members._register(
            members.member_name(lease, nonce), lease.ttl, fields, context
        )
        until = context.deadline(reply.sent_at, lease.ttl)
        return members.Attached(lease, registration, until, joined.deadline, reply.sent_at, None, None, mode)

    return _joining_by(attach)


@with_readers(
    "a reader checks its registration only",
    "the record lapsed, and a client that knows no readers took it over",
    test_shared.test_s02_record_lapses,
    traits=ONE_CLOCK,
)
def reader_believes_its_registration_alone() -> list[Patch]:
    def settle(self: Any) -> None:
        self.deadline = self.registration_deadline if self.mode == SHARED else self.record_deadline

    return [(LeaseState, "_settle", settle)]


@with_readers(
    "a reader checks the record only",
    "its registration lapsed while others renewed the record; the writer waits for those",
    test_shared.test_s02_registration_lapses_while_siblings_renew,
    traits=ONE_CLOCK,
)
def reader_believes_the_record_alone() -> list[Patch]:
    def settle(self: Any) -> None:
        self.deadline = self.record_deadline

    return [(LeaseState, "_settle", settle)]


@with_readers(
    "a grant to a reader ends with the later of its two deadlines",
    "the record was renewed before the reader registered",
    test_shared.test_s02_a_join_counts_from_the_earlier_of_its_two_deadlines,
)
def reader_joins_until_the_later_deadline() -> list[Patch]:
    true = readers._granted

    def granted(joined: Any) -> Any:
        return replace(true(joined), deadline=max(joined.registration_deadline, joined.record_deadline))

    return [(readers, "_granted", granted)]


@with_readers(
    "a reader registers again under the name that it withdrew",
    "the first withdrawal is late, and removes the new registration",
    test_shared.test_s03_withdrawal_in_flight_ends_the_belief,
    traits=ONE_CLOCK,
)
def reader_registers_under_the_withdrawn_name() -> list[Patch]:
    return [(acquire.AcquireRequest, "register_anew", lambda _: None)]


@with_readers(
    "the mark of a dead writer stays",
    "readers are kept out until the last old one has left",
    test_shared.test_s07_m04_dead_writers_mark_is_removed_by_who_reads,
    traits=ONE_CLOCK,
)
def a_dead_writers_mark_stays() -> list[Patch]:
    return [(observations.ObservationCache, "is_stale", lambda *_: False)]


@with_readers(
    "a reader removes a mark of whatever revision",
    "another writer has marked the group meanwhile",
    test_shared.test_m02_a_late_removal_of_the_mark_by_a_reader_expects_its_revision,
    traits=ONE_CLOCK,
)
def mark_removed_by_incarnation_alone() -> list[Patch]:
    def loose(name: Any, fields: Any, incarnation: str, revision: str | None = None, *, lifetime: float = 0.0) -> Any:
        del revision
        return Extend(name, fields, incarnation, lifetime=lifetime)

    return [(members, "Extend", loose)]


@with_readers(
    "a ticket is checked before the registration",
    "its issuer leaves in between; the writer lists nobody",
    test_shared.test_s09_issuer_leaves_between_attach_and_list,
    traits=ONE_CLOCK,
)
def ticket_checked_before_registering() -> list[Patch]:
    true_attach, true_check = members.attach, members._is_registered

    def attach(lease: Any, nonce: str, fields: Any, context: Any, *, mode: str, introduced_by: Any = None) -> Any:
        is_introduced = introduced_by is not None and (yield from true_check(lease, introduced_by))

        def remembered(*_: Any) -> Any:
            yield from ()
            return is_introduced

        members._is_registered = remembered
        try:
            return (yield from true_attach(lease, nonce, fields, context, mode=mode, introduced_by=introduced_by))
        finally:
            members._is_registered = true_check

    return [(test_shared, "attach", attach)]


@with_readers(
    "a ticket does not pass the mark of a writer",
    "a task waits for the writer, which waits for the task's group",
    test_shared.test_s09_m11_ticket_passes_the_mark_while_its_issuer_reads,
    traits=ONE_CLOCK,
)
def a_mark_stops_tickets() -> list[Patch]:
    def is_registered(*_: Any) -> Any:
        yield from ()
        return False

    return [(members, "_is_registered", is_registered)]


# --- the last reader ----------------------------------------------------------------------------------------------


def _ending(is_marked: bool, is_exact: bool) -> list[Patch]:
    def end_if_wanted(group: Any, context: Any) -> Any:
        reply = yield from ask(Read(group.name))
        if not isinstance(reply.answer, Snapshot) or reply.answer.incarnation != group.incarnation:
            return
        record = context.decode(group.name, reply.answer)
        if record.is_group and is_marked and not record.wanted:
            return
        if record.is_exclusive or (yield from groups._occupied_for(group, group.holder, context)) is None:
            yield Remove(group.name, group.incarnation, reply.answer.revision if is_exact else None)

    return everywhere(groups.end_if_wanted, end_if_wanted)


@with_readers(
    "the last reader ends a group that nobody waits for",
    "another reader joins between its list and the removal",
    test_shared.test_s08_reader_joins_as_the_last_one_leaves,
    traits=NONE,
    is_wanted=False,
)
def last_reader_ends_an_unmarked_group() -> list[Patch]:
    return _ending(is_marked=False, is_exact=True)


@with_readers(
    "the last reader ends its group by the incarnation alone",
    "the mark is removed and another reader joins between its list and the removal",
    test_shared.test_s08_reader_joins_as_the_last_one_leaves,
    traits=ONE_CLOCK,
    is_wanted=True,
)
def last_reader_ends_by_incarnation_alone() -> list[Patch]:
    return _ending(is_marked=True, is_exact=False)


@with_readers(
    "the last reader leaves a group that a writer waits for",
    "the writer is not woken, and finds the empty list with its next look",
    test_shared.test_s08_the_last_reader_ends_a_group_that_is_wanted,
    traits=ONE_CLOCK,
)
def last_reader_ends_nothing() -> list[Patch]:
    def end_if_wanted(*_: Any) -> Any:
        yield from ()

    return everywhere(groups.end_if_wanted, end_if_wanted)


# --- writers ----------------------------------------------------------------------------------------------------------


@with_readers(
    "a writer replaces whatever revision the group has now",
    "the mark was removed after its list, and a reader joined",
    test_shared.test_s06_mark_removed_and_reader_joined_between_list_and_replace,
    traits=ONE_CLOCK,
    is_doubled=False,
)
def group_replaced_by_incarnation_alone() -> list[Patch]:
    def replace_incarnation(name: Any, fields: Any, incarnation: str, revision: str, *more: Any) -> Any:
        class Loose(str):
            """Equal to every revision."""

            __slots__ = ()
            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                return True

        return acquire_replace(name, fields, incarnation, Loose(revision), *more)

    acquire_replace = acquire.Replace
    return [(acquire, "Replace", replace_incarnation)]


@with_readers(
    "a writer lists without a mark",
    "a reader joins between the list and the replacement",
    test_shared.test_m01_reader_and_writer_never_both_get_in,
    traits=ONE_CLOCK,
    waits_first=True,
    stands="a group",
)
def lists_without_a_mark() -> list[Patch]:
    def marked(request: Any, reply: Any, record: Any, context: Any) -> Any:
        yield from ()
        return reply.answer

    return [(groups, "_marked", marked)]


@with_readers(
    "a writer marks the group after its list",
    "a reader joined in between",
    test_shared.test_s05_list_before_the_mark,
    traits=ONE_CLOCK,
)
def lists_before_the_mark() -> list[Patch]:
    def marked_and_empty(request: Any, reply: Any, record: Any, context: Any) -> Any:
        group = LeaseId(request.name, record.holder, reply.answer.incarnation, record.ttl)
        left = yield from groups._occupied_for(group, request.holder, context)
        return left if left is not None else (yield from groups._marked(request, reply, record, context))

    return everywhere(groups.marked_and_empty, marked_and_empty)


@with_readers(
    "a writer lists before an answer shows its mark",
    "the mark is on its way, and a reader joins",
    test_shared.test_s05_mark_without_an_answer,
    traits=ONE_CLOCK,
)
def lists_without_an_answer_to_the_mark() -> list[Patch]:
    true = groups._marked

    def marked(request: Any, reply: Any, record: Any, context: Any) -> Any:
        try:
            return (yield from true(request, reply, record, context))
        except (StoreUnavailable, OutcomeUnknown):
            return reply.answer

    return [(groups, "_marked", marked)]


@with_readers(
    "a writer takes the lock when its wait times out",
    "a reader takes longer than expected",
    test_shared.test_s05_a_live_reader_at_the_bound_keeps_the_group,
    traits=ONE_CLOCK,
)
def group_replaced_at_the_bound() -> list[Patch]:
    true = acquire._after_readers

    def after_readers(request: Any, reply: Any, record: Any, context: Any) -> Any:
        outcome = yield from true(request, reply, record, context)
        if request.signs > 1 and isinstance(outcome, acquire.Contended):
            latest = yield from ask(Read(request.name))
            return (yield from acquire.take_over(request, latest.answer, record, context))
        return outcome

    return [(acquire, "_after_readers", after_readers)]


@with_readers(
    "a list whose dead registrations were removed counts as empty",
    "one of them renewed in time, or others were in the list",
    test_shared.test_s05_a_dead_reader_renews_as_it_is_removed,
    traits=ONE_CLOCK,
)
def group_not_listed_again() -> list[Patch]:
    def occupied_for(group: Any, salt: str, context: Any) -> Any:
        listed = yield from members.registered(group)
        verdict = yield from members.sift(listed, context, salt)
        return 1.0 if verdict is members.Drain.LIVE else None

    return [(groups, "_occupied_for", occupied_for)]


@with_readers(
    "a dead reader's registration is removed by incarnation alone",
    "it renewed just in time, and reads on unseen",
    test_shared.test_s05_a_dead_reader_renews_as_it_is_removed,
    traits=NONE,
)
def dead_reader_removed_by_incarnation_alone() -> list[Patch]:
    def loose(name: Any, incarnation: str, revision: str | None = None) -> Any:
        del revision
        return Remove(name, incarnation)

    return [(members, "Remove", loose)]


@with_readers(
    "a single try marks the group",
    "readers are kept out by a writer that does not wait",
    test_shared.test_s04_a_try_that_sees_a_reader_leaves_no_mark,
    traits=ONE_CLOCK,
)
def a_try_marks() -> list[Patch]:
    true = groups.marked_and_empty

    def marked_and_empty(request: Any, reply: Any, record: Any, context: Any) -> Any:
        request.has_waited = True
        return true(request, reply, record, context)

    return everywhere(true, marked_and_empty)


@with_readers(
    "a writer that gives up leaves its mark",
    "readers are kept out for another ttl",
    test_shared.test_s07_a_writer_that_gives_up_removes_its_own_mark,
    traits=ONE_CLOCK,
    then="ours",
)
def a_writer_that_gave_up_stays_wanted() -> list[Patch]:
    return [(release, "wanted_text", lambda *_: "nobody")]


@with_readers(
    "a writer behind others in the queue keeps an empty group",
    "an earlier reader cannot join for the mark, the writer cannot pass the reader: both wait forever",
    test_shared.test_m10_an_earlier_reader_in_the_queue_and_a_writer_behind_it_both_get_in,
    traits=ONE_CLOCK,
)
def queued_writer_keeps_an_empty_group() -> list[Patch]:
    def after_readers(request: Any, reply: Any, record: Any, context: Any) -> Any:
        marked = yield from groups.marked_and_empty(request, reply, record, context)
        if isinstance(marked, Snapshot):
            return (yield from acquire.take_over(request, marked, record, context))
        return None if marked is None else acquire.Contended(record, reply.answer, over_in=marked)

    return [(acquire, "_after_readers", after_readers)]


@with_readers(
    "a group of readers can be reclaimed",
    "readers of another piece of work go on",
    test_shared.test_m06_nobody_reclaims_a_group_or_adopts_it,
    traits=ONE_CLOCK,
)
def groups_are_reclaimed() -> list[Patch]:
    def may_reclaim(request: Any, record: Any) -> bool:
        return bool(request.reclaim)

    return [(acquire, "_may_reclaim", may_reclaim)]


# --- downgrade, and what came before ---------------------------------------------------------------------------------


@with_readers(
    "a downgraded lease is released by its incarnation alone",
    "the downgrade lands first, and a reader joins",
    test_shared.test_s10_downgrade_lands_after_the_release,
    traits=ONE_CLOCK,
)
def downgraded_removes_by_incarnation() -> list[Patch]:
    return _ending(is_marked=True, is_exact=False)


@with_readers(
    "a sweep removes a lease by its incarnation alone",
    "a downgrade lands first, and a reader joins",
    test_shared.test_s10_downgrade_lands_during_a_sweep,
    traits=ONE_CLOCK,
    is_clean=True,
)
def sweep_by_incarnation_alone() -> list[Patch]:
    def loose(name: Any, incarnation: str, revision: str | None = None) -> Any:
        del revision
        return Remove(name, incarnation)

    return [(release, "Remove", loose)]


@with_readers(
    "a downgrade that failed is not repeated",
    "readers wait until the holder has released",
    test_shared.test_s10_a_renewal_repeats_a_downgrade_that_failed,
    traits=ONE_CLOCK,
)
def downgrade_is_not_repeated() -> list[Patch]:
    return [(members, "DOWNGRADED", {})]


@with_readers(
    "readers forget how the last writer ended",
    "it crashed half way, and the next writer repairs nothing",
    test_shared.test_s11_m13_expired_travels_through_readers_to_the_next_writer,
    traits=ONE_CLOCK,
    ends_by="time",
)
def readers_forget_a_crash() -> list[Patch]:
    true = previous_lease.previous_for_next

    def previous_for_next(record: Any, holder: str, context: Any) -> Any:
        return previous_lease.NOBODY_BEFORE if record.is_group else true(record, holder, context)

    return everywhere(true, previous_for_next)


@with_readers(
    "a dead reader's registration has a lock-delay",
    "a writer waits for it much longer than for the reader's ttl",
    test_shared.test_s12_a_registration_has_no_lock_delay,
)
def registrations_have_a_lock_delay() -> list[Patch]:
    true = Engine._of_reader

    def of_reader(self: Any, request: Any, settings: Settings) -> Any:
        fields = request.fields
        made = true(self, request, settings)
        made.registration = fields
        return made

    return [(Engine, "_of_reader", of_reader)]


@with_readers(
    "a client remembers fewer registrations than a lease may have",
    "it forgets each before it is judged: a writer waits forever for 10,000 dead readers",
    test_shared.test_m09_ten_thousand_dead_readers_are_forgotten_in_one_wait,
)
def too_few_observations() -> list[Patch]:
    true = observations._enter

    def enter(entries: Any, key: Any, value: Any, most: int = members.MEMBERS_MAX) -> None:
        true(entries, key, value, min(most, members.MEMBERS_MAX))

    return [(observations, "_enter", enter)]
