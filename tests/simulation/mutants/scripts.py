"""Faults of the scripts: acquire, take over, reclaim, renew, release, sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstead import Client
from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol import acquire, context, members, record, release, renew
from lockstead.protocol.commands import Absent, Create, Extend, Pause, Read, Remove, Snapshot, ask
from lockstead.protocol.keeping import Keeping
from lockstead.protocol.lifecycle import Action, LeaseState, State
from lockstead.protocol.record import Record, encode
from lockstead.runtime.engine import Engine
from lockstead.values import LeaseOutcome, PreviousLease
from tests.protocol import test_hazards, test_lifecycle, test_pace, test_record, test_rules
from tests.runtime import test_breaking, test_leaving
from tests.runtime.faulty import Faulty
from tests.simulation.mutants.patching import Patch, everywhere, mutant
from tests.simulation.process import Process
from tests.simulation.store import SHARED


@mutant(
    "no read after an unknown outcome",
    "hidden client retries: our own success looks like a conflict, and the holder waits for itself",
    test_hazards.test_h03_a_create_without_a_reply_is_adopted_at_once,
    traits=SHARED,
)
def no_read_after_an_unknown_outcome() -> list[Patch]:
    def create(want: Any, context: Any) -> Any:
        while True:
            try:
                reply = yield from ask(Create(want.name, want.fields, lifetime=context.settings.ttl))
            except OutcomeUnknown:
                continue
            if not isinstance(reply.answer, Snapshot):
                return None
            return acquire._granted(want, reply, reply.answer, PreviousLease(LeaseOutcome.CLEAN), context)

    def adopt(want: Any, seen: Any, record: Any, context: Any) -> Any:
        yield from ()

    return [(acquire, "create", create), (acquire, "_adopt", adopt)]


@mutant(
    "takeover expects the incarnation alone",
    "takes a lock that was renewed just in time",
    test_hazards.test_h11_a_takeover_loses_against_a_renewal_just_in_time,
)
def generation_alone_on_takeover() -> list[Patch]:
    true = acquire.take_over

    def take_over(want: Any, seen: Any, record: Any, context: Any, **more: Any) -> Any:
        again = yield from ask(Read(want.name))
        if isinstance(again.answer, Snapshot) and again.answer.incarnation == seen.incarnation:
            seen = again.answer
        return (yield from true(want, seen, record, context, **more))

    return [(acquire, "take_over", take_over)]


@mutant(
    "break of an expired lease expects the incarnation alone",
    "frees a lock that was renewed just in time and reports no overlap",
    test_hazards.test_h12_a_break_of_a_lease_renewed_just_in_time_revokes_it,
)
def breaks_what_is_over_by_the_incarnation_alone() -> list[Patch]:
    true = release._end_record

    def cut_off(name: Any, seen: Any, record: Any, revoked: Any, revision: Any = None) -> Any:
        return (yield from true(name, seen, record, revoked))

    return [(release, "_end_record", cut_off)]


@mutant(
    "break treats every lease as expired",
    "frees a live holder's lock without `now=True`",
    test_hazards.test_h12_a_revoked_lock_is_lost_at_its_next_renewal,
)
def a_break_judges_nothing() -> list[Patch]:
    def is_over(*_: Any) -> Any:
        yield from ()
        return True

    return [(release, "is_over", is_over)]


@mutant(
    "break revokes a revoked lease again",
    "each further break blocks waiters for another ttl",
    test_hazards.test_h12_breaking_a_revoked_lease_again_writes_nothing,
    traits=SHARED,
)
def a_break_revokes_again() -> list[Patch]:
    true = release.break_lease

    def break_lease(name: Any, revoked: Any, context: Any, **more: Any) -> Any:
        done = yield from true(name, revoked, context, **more)
        if done is not None and not (done.revoked or done.removed):
            fields = {"revoked": record.revocation_text(revoked)}
            yield from ask(Extend(name, fields, done.seen.incarnation))
        return done

    return everywhere(true, break_lease)


@mutant(
    "a waiter writes",
    "1,000 waiters create every second, and the store answers 429 to the holder's renewal",
    test_hazards.test_h15_waiting_only_reads_and_every_pause_is_bounded,
)
def a_waiter_writes() -> list[Patch]:
    true = acquire.attempt_exclusive

    def attempt(want: Any, context: Any, *, look_first: bool, gives_up_at: float = math.inf) -> Any:
        return (yield from true(want, context, look_first=False, gives_up_at=gives_up_at))

    return [(acquire, "attempt_exclusive", attempt)]


@mutant(
    "an unreadable record counts as free",
    "a damaged or newer record is overwritten in a rolling deployment",
    test_hazards.test_h24_a_damaged_newer_or_foreign_record_is_never_free,
    fields={"v": "1", "ttl": "10"},
)
def unreadable_record_counts_as_free() -> list[Patch]:
    true = context.ProtocolContext.decode

    def decode(self: Any, name: Any, seen: Any) -> Any:
        try:
            return true(self, name, seen)
        except StoreRefused:
            return Record("nobody", 0.0)

    return [(context.ProtocolContext, "decode", decode)]


@mutant(
    "reclaim from a holder in the same process",
    "two threads, one owner: the second takes the lock from the first",
    test_rules.test_rule_12_reclaim_is_refused_for_a_holder_kept_here,
)
def reclaims_from_its_own_process() -> list[Patch]:
    def may_reclaim(want: Any, record: Any) -> bool:
        return not record.is_foreign and not record.tombstone and bool(record.owner == want.owner)

    return [(acquire, "_may_reclaim", may_reclaim)]


@contextmanager
def _client(_: Path) -> Iterator[Mapping[str, Any]]:
    store = Faulty()
    with Client(store) as client:
        yield {"client": client, "store": store}


@mutant(
    "adopts its own record although it is ending",
    "an operator broke what a lost Create wrote: the next holder is the second one",
    test_rules.test_rule_02_our_own_ending_record_is_not_adopted,
    field="revoked",
    read_before=True,
)
def adopts_what_is_ending() -> list[Patch]:
    def adopt(want: Any, seen: Any, record: Any, context: Any) -> Any:
        reply = yield from ask(Extend(want.name, {}, seen.incarnation, lifetime=context.settings.ttl))
        if not isinstance(reply.answer, Snapshot) or context.decode(want.name, reply.answer).holder != want.holder:
            return None
        return acquire._granted(want, reply, reply.answer, PreviousLease(LeaseOutcome.UNKNOWN), context)

    return [(acquire, "_adopt", adopt)]


@mutant(
    "reclaim replaces any record after members have left",
    "somebody took the lock meanwhile: a live holder is replaced",
    test_rules.test_rule_12_reclaim_spares_a_holder_that_came_meanwhile,
)
def reclaim_without_a_second_look() -> list[Patch]:
    true = acquire._reclaim

    def reclaim(want: Any, reply: Any, record: Any, context: Any, gives_up_at: float) -> Any:
        script = true(want, reply, record, context, gives_up_at)
        command = next(script)
        while True:
            reply = yield command
            if isinstance(command, Read) and isinstance(reply.answer, Snapshot):
                latest = context.decode(want.name, reply.answer)
                return (yield from acquire.take_over(want, reply.answer, latest, context, queues=False))
            try:
                command = script.send(reply)
            except StopIteration as stop:
                return stop.value

    return [(acquire, "_reclaim", reclaim)]


@mutant(
    "reclaim of a grant not yet received by a sibling",
    "the first thread's response is in flight when the second asks",
    test_breaking.test_rule_12_reclaim_spares_a_siblings_pending_grant,
    fixtures=_client,
)
def reclaims_what_a_sibling_was_just_granted() -> list[Patch]:
    def engines(self: Any, holder: str) -> bool:
        return bool(self.keeper.keeps(holder))

    def simulators(self: Any, holder: str) -> bool:
        return self._keeping.of_holder(holder) is not None

    return [(Engine, "keeps", engines), (Process, "_keeps", simulators)]


@mutant(
    "reclaim does not wait for members",
    "tasks of the dead run still write",
    test_rules.test_rule_12_reclaim_closes_lists_waits_then_replaces,
)
def reclaim_without_draining() -> list[Patch]:
    def drain(lease: Any, context: Any, *, bound_at: float, salt: str) -> Any:
        yield from ()
        return True

    return [(acquire, "drain", drain)]


@mutant(
    "renewal does not expect the incarnation",
    "a late renewal extends the next holder's lease and its own deadline",
    test_hazards.test_h10_a_late_renewal_leaves_the_next_holder_alone,
)
def renewal_without_the_incarnation() -> list[Patch]:
    def loose(name: Any, fields: Any, incarnation: Any, revision: Any = None, lifetime: float = 0.0) -> Any:
        return Extend(name, fields, None, revision, lifetime)

    def no_loss(lease: Any, answer: Any, context: Any) -> Any:
        return None

    return [(renew, "Extend", loose), (renew, "over", no_loss)]


@mutant(
    "renewal continues after the release",
    "Redisson: a released lock is kept alive indefinitely",
    test_lifecycle.test_only_a_held_lease_is_believed_or_owed_anything,
    state=State.LEFT,
)
def renewal_outlives_release() -> list[Patch]:
    true_duty, true_wake, true_drop = LeaseState.next_action, LeaseState.wake_at, Keeping._drop
    given_back = (State.LEAVING, State.LEFT)

    def next_action(self: Any, now: float) -> Any:
        if self.state not in given_back:
            return true_duty(self, now)
        return Action.NOTHING if self.in_flight or now < self.due_at else Action.RENEW

    def wake_at(self: Any) -> float:
        return true_wake(self) if self.state not in given_back or self.in_flight else self.due_at

    def drop(self: Any, lease_state: Any) -> None:
        if lease_state.state not in given_back:
            true_drop(self, lease_state)

    def sending(self: Any, lease_state: Any, now: float) -> bool:
        lease_state.sending(now)
        self._schedule.plan(lease_state)
        return True

    return [
        (LeaseState, "next_action", next_action),
        (LeaseState, "wake_at", wake_at),
        (Keeping, "_drop", drop),
        (Keeping, "sending", sending),
    ]


@mutant(
    "renewal creates a missing record",
    "upsert: an in-flight renewal recreates the released lock",
    test_hazards.test_h10_a_renewal_after_the_release_brings_nothing_back,
)
def renewal_brings_back_what_is_gone() -> list[Patch]:
    true = renew.renew

    def renewing(lease: Any, fields: Any, context: Any) -> Any:
        outcome = yield from true(lease, fields, context)
        if not isinstance(outcome, renew.Over) or outcome.reason is not LossReason.GONE:
            return outcome
        made = yield from ask(Create(lease.name, encode(Record(lease.holder, lease.ttl)), lifetime=lease.ttl))
        if not isinstance(made.answer, Snapshot):
            return outcome
        return renew.Renewed(context.deadline(made.sent_at, lease.ttl), made.sent_at)

    renewing.__name__ = "renew"
    return everywhere(true, renewing)


@mutant(
    "release removes any record",
    "gcslock's plain DELETE: a late release removes the next holder's lock",
    test_hazards.test_h05_a_late_release_leaves_other_locks_alone,
)
def release_removes_whatever_is_there() -> list[Patch]:
    def remove(lease: Any, context: Any, *, ours_until: float = 0.0) -> Any:
        was_unknown = False
        for _ in range(4):
            reply = yield from ask(Read(lease.name))
            if isinstance(reply.answer, Absent):
                return release.Outcome.REMOVED if was_unknown else release.Outcome.NOT_OURS
            try:
                yield from ask(Remove(lease.name, reply.answer.incarnation))
            except OutcomeUnknown:
                was_unknown = True
            else:
                return release.Outcome.REMOVED
        return release.Outcome.NOT_OURS

    return everywhere(release.remove, remove)


@mutant(
    "absent record counts as removed by us, however late",
    "a cut-off holder reports that it released what two others held since",
    test_hazards.test_h05_absence_is_our_removal_only_while_nobody_had_it,
    shared=False,
    is_late=True,
)
def absent_is_always_what_we_removed() -> list[Patch]:
    true = members.take_back

    def take_back(lease: Any, context: Any, revision: str | None = None, **_: Any) -> Any:
        return (yield from true(lease, context, revision))

    return everywhere(true, take_back)


@mutant(
    "absent record counts as removed by an unsent request",
    "an administrator deleted it; the release claims success",
    test_hazards.test_h05_absence_after_a_request_never_sent_is_anothers_work,
)
def never_sent_counts_as_removed() -> list[Patch]:
    true = members.take_back

    def take_back(lease: Any, context: Any, revision: str | None = None, *, ours_until: float = 0.0) -> Any:
        script = true(lease, context, revision, ours_until=ours_until)
        command = next(script)
        while True:
            try:
                reply = yield command
            except (OutcomeUnknown, StoreUnavailable):
                command = script.throw(OutcomeUnknown("no answer"))
                continue
            try:
                command = script.send(reply)
            except StopIteration as stop:
                return stop.value

    return everywhere(true, take_back)


@mutant(
    "release does not check the clock",
    "a process paused past its deadline removes a lost lease",
    test_leaving.test_h06_leaving_after_the_deadline_sends_nothing,
    shared=False,
)
def leaves_without_a_look_at_the_clock() -> list[Patch]:
    true = Keeping.leave

    def leave(self: Any, kept: Any, now: float) -> Any:
        del now
        return true(self, kept, float("-inf"))

    return [(Keeping, "leave", leave)]


@mutant(
    "the loser cuts the lock-delay short",
    "its in-flight requests land in the next holder's time",
    test_rules.test_rule_05_after_a_loss_with_a_delay_nothing_is_removed,
    lock_delay=5.0,
    may=False,
)
def loser_cuts_the_lock_delay() -> list[Patch]:
    def may_remove_after_loss(lease_state: Any, now: float) -> bool:
        if not lease_state.is_owner:
            return lease_state.reason is not LossReason.FORKED
        return lease_state.reason in (LossReason.REVOKED, LossReason.UNREACHABLE) and bool(now < lease_state.deadline)

    return everywhere(release.may_remove_after_loss, may_remove_after_loss)


@mutant(
    "no sweep after an abandoned acquisition",
    "a late Create blocks everybody for a ttl, repeatedly",
    test_hazards.test_h18_a_cancelled_create_is_unsettled_and_swept,
)
def nothing_is_swept() -> list[Patch]:
    def sweep(name: Any, holder: str, context: Any, used: Any = None) -> Any:
        yield from ask(Read(name))
        return False

    return everywhere(release.sweep, sweep)


@mutant(
    "rejected requests are repeated at once",
    "fifty members send ten requests a second each to an object that accepts one change a second; none succeeds",
    test_pace.test_a_token_that_is_always_rejected_has_an_unknown_outcome,
)
def asks_in_a_volley() -> list[Patch]:
    def retry_pause(self: Any, name: Any, turn: int) -> Any:
        del turn
        return Pause(name, self.settings.backoff_min, self.settings.backoff_min * 2, wake_on_change=False)

    return [(context.ProtocolContext, "retry_pause", retry_pause)]


@mutant(
    "renewal does not move `expires_at`",
    "gcslock or the Ruby gem deletes a lease that is being renewed",
    test_record.test_timestamps_are_added_only_to_what_is_written_at_a_grant,
)
def renewals_leave_expires_at() -> list[Patch]:
    true = record.with_timestamps

    def with_timestamps(command: Any, *more: Any, **others: Any) -> Any:
        return command if isinstance(command, Extend) else true(command, *more, **others)

    return everywhere(true, with_timestamps)
