"""Pruning: what is removed and what stays, for each kind of record and each kind of clock."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.acquire import Grant
from lockstead.protocol.commands import Create, Extend, List, Listing, Pause, Read, Remove, StoreClock, Traits
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.election import left_to
from lockstead.protocol.fence import draw_token
from lockstead.protocol.members import attach
from lockstead.protocol.permits import slot_name, turn_name
from lockstead.protocol.pruning import Kept, Leftover, Pruned, PruneRequest, prune
from lockstead.protocol.record import Record, Revocation, encode
from lockstead.protocol.release import break_lease, end
from lockstead.values import SCRATCH_KEY, LeaseOutcome, Name, PreviousLease, Space
from tests.protocol.bench import APT, Bench, Session
from tests.protocol.semaphores import API, SemaphoreBench
from tests.protocol.test_shared import read_by
from tests.simulation.store import DATED, NONE
from tests.simulation.store import SHARED as ONE_CLOCK

JUDGED = pytest.mark.parametrize("traits", [ONE_CLOCK, DATED, NONE], ids=lambda traits: traits.clock.name)
DAY = 86400.0


def pruning(bench: Bench, context: ProtocolContext | None = None, **changes: Any) -> Session:
    wall = 1.7e9 + bench.now
    asked = {
        "older_than": 0.0,
        "history_older_than": 366 * DAY,
        "between": 0.1,
        "wall_now": wall,
        "salt": "p",
        "by": "me",
    }
    return bench.session(prune(PruneRequest(**{**asked, **changes}), context or bench.context()))


def pruned(bench: Bench, context: ProtocolContext | None = None, **changes: Any) -> Pruned:
    """Prune twice with one client, which has watched the records in between if the store shows no age."""
    context = context or bench.context()
    if bench.traits.clock is StoreClock.NONE:
        pruning(bench, context, **{**changes, "is_dry": True}).run()
        bench.now += 2 * bench.settings.ttl
    done: Pruned = pruning(bench, context, **changes).run()
    return done


def is_there(bench: Bench, name: Name) -> bool:
    return name in bench.store.entries


# --- registrations --------------------------------------------------------------------------------------------------


@JUDGED
def test_the_registration_of_a_dead_member_is_removed(traits: Traits) -> None:
    bench = Bench(traits)
    lease = bench.granted("a").lease
    member = bench.joined(lease, "m").registration.name
    bench.store.perform(Remove(APT, lease.incarnation))
    bench.now += 20.0
    assert pruned(bench).removed == {Leftover.REGISTRATION: 1}
    assert not is_there(bench, member)


@JUDGED
def test_h36_a_live_registration_stays_and_so_does_its_lease(traits: Traits) -> None:
    """A writer's wall clock may be years behind: it never decides that a record is over."""
    bench = Bench(traits)
    context = bench.context()
    grant = bench.granted("a")
    member = bench.joined(grant.lease, "m").registration
    for name, incarnation in ((APT, grant.lease.incarnation), (member.name, member.incarnation)):
        bench.store.perform(Extend(name, {"expires_at": "1000"}, incarnation))
    for _ in range(5):
        assert not pruning(bench, context).run().removed
        bench.now += 4.0
        bench.store.perform(Extend(APT, {}, grant.lease.incarnation))
        bench.store.perform(Extend(member.name, {}, member.incarnation))
    assert is_there(bench, APT)
    assert is_there(bench, member.name)


@JUDGED
def test_h36_a_lease_is_judged_by_the_largest_drift_that_a_lock_may_have(traits: Traits) -> None:
    bench = Bench(traits)
    context = bench.context()
    member = bench.joined(bench.granted("a").lease, "m").registration.name
    pruning(bench, context, is_dry=True).run()
    bench.now += 14.9
    assert not pruning(bench, context).run().removed
    assert is_there(bench, member)


def test_h36_a_date_that_is_ahead_decides_nothing() -> None:
    bench = Bench(DATED, skew=60.0)
    member = bench.joined(bench.granted("a").lease, "m").registration.name
    bench.now += 5.0
    assert not pruned(bench).removed
    assert is_there(bench, member)


@JUDGED
def test_h36_a_record_that_changed_since_it_was_listed_is_left_alone(traits: Traits) -> None:
    bench = Bench(traits)
    context = bench.context()
    lease = bench.granted("a").lease
    member = bench.joined(lease, "m").registration
    pruning(bench, context, is_dry=True).run()
    bench.now += 20.0
    session = pruning(bench, context)
    while not isinstance(session.command, Remove) or session.command.name != member.name:
        session.wait() if isinstance(session.command, Pause) else session.commit()
    bench.store.perform(Extend(member.name, {}, member.incarnation))
    assert session.run().kept[Kept.CHANGED] == 1
    assert is_there(bench, member.name)


@JUDGED
def test_what_is_not_old_enough_stays(traits: Traits) -> None:
    bench = Bench(traits)
    lease = bench.granted("a").lease
    bench.joined(lease, "m")
    bench.now += 20.0
    context = bench.context()
    assert not pruned(bench, context, older_than=DAY).removed
    bench.now += DAY
    assert pruned(bench, context, older_than=DAY).removed == {Leftover.REGISTRATION: 1}


def test_without_a_clock_the_first_call_decides_nothing_and_says_when_the_next_one_can() -> None:
    bench = Bench(NONE)
    context = bench.context()
    member = bench.joined(bench.granted("a").lease, "m").registration.name
    bench.now += DAY
    first = pruning(bench, context).run()
    assert not first.removed
    assert first.kept == {Kept.UNDECIDED: 2}
    assert first.again_in is not None
    bench.now += first.again_in + 0.001
    assert pruning(bench, context).run().removed == {Leftover.REGISTRATION: 1}
    assert not is_there(bench, member)


def test_a_dry_run_writes_nothing_and_names_the_same_records() -> None:
    bench = Bench(DATED)
    bench.joined(bench.granted("a").lease, "m")
    bench.now += 20.0
    before = dict(bench.store.entries)
    session = pruning(bench, is_dry=True)
    while not session.is_over:
        assert isinstance(session.command, List | Read | Pause)
        session.wait() if isinstance(session.command, Pause) else session.commit()
    assert session.outcome.names == [(Leftover.REGISTRATION, next(name for name in before if name.part))]
    assert bench.store.entries == before
    assert pruned(bench).names == session.outcome.names


# --- locks and groups -----------------------------------------------------------------------------------------------


@JUDGED
def test_h36_a_record_of_an_unclean_end_stays_for_the_next_holder(traits: Traits) -> None:
    bench = Bench(traits)
    context = bench.context()
    bench.granted("a", owner="ann")
    bench.now += 20.0
    done = pruned(bench, context)
    assert (done.removed, done.kept) == ({}, {Kept.UNCLEAN: 1})
    grant = bench.asking("b", context).run()
    assert grant.previous_lease == PreviousLease(LeaseOutcome.EXPIRED, "ann", "a")


@pytest.mark.parametrize("how", ["broken", "ended", "tombstone", "unused"])
def test_h36_every_record_with_news_of_an_unclean_end_stays(how: str) -> None:
    bench = Bench(lock_delay=5.0 if how == "tombstone" else 0.0)
    lease = bench.granted("a").lease
    if how in ("broken", "tombstone"):
        revoked = Revocation("op", "test")
        bench.session(break_lease(APT, revoked, bench.context(), now=True, incarnation=None, salt="s")).run()
    elif how == "ended":
        bench.session(end(lease, bench.context())).run()
    else:
        before = '{"ending":"EXPIRED","owner":"x","holder":"x/1"}'
        bench.store.perform(Extend(APT, {"ended": "1", "unused": "1", "before": before}, lease.incarnation))
    bench.now += DAY
    assert pruned(bench).kept == {Kept.UNCLEAN: 1}
    assert bench.asking("b").run().previous_lease.ending is not LeaseOutcome.CLEAN


def test_the_record_of_a_leader_that_resigned_to_an_heir_is_removed() -> None:
    bench = Bench()
    lease = bench.granted("a", value="http://a").lease
    bench.session(end(lease, bench.context(), left_to("b"))).run()
    assert pruned(bench).removed == {Leftover.LOCK: 1}
    assert bench.granted("c").previous_lease == PreviousLease(LeaseOutcome.CLEAN)


def test_h36_the_history_has_an_unclean_end_before_its_record_is_gone() -> None:
    bench = Bench()
    lease = bench.granted("a", owner="ann").lease
    bench.now += 20.0
    session = pruning(bench, forgets=True)
    while not isinstance(session.command, Remove):
        session.wait() if isinstance(session.command, Pause) else session.commit()
    entries = [entry.fields for name, entry in bench.store.entries.items() if name.space is Space.AUDIT]
    assert [entry["what"] for entry in entries] == ["forgotten"]
    assert (entries[0]["owner"], entries[0]["incarnation"]) == ("ann", lease.incarnation)
    assert session.run().removed == {Leftover.LOCK: 1}
    assert not is_there(bench, APT)


def test_the_history_has_no_entry_of_a_record_that_was_not_removed() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.now += 20.0
    session = pruning(bench, forgets=True)
    while not isinstance(session.command, Remove):
        session.wait() if isinstance(session.command, Pause) else session.commit()
    bench.store.perform(Extend(APT, {}, lease.incarnation))
    assert not session.run().removed
    assert list(bench.store.entries) == [APT]


def test_a_lapsed_group_and_its_dead_readers_are_removed_and_a_live_group_stays() -> None:
    bench = Bench()
    read_by(bench, "r1")
    assert not pruning(bench).run().removed
    bench.now += 20.0
    assert pruned(bench).removed == {Leftover.REGISTRATION: 1, Leftover.GROUP: 1}
    assert not bench.store.entries


def test_a_group_that_keeps_the_news_of_an_unclean_writer_stays() -> None:
    bench = Bench()
    bench.granted("w")
    bench.now += 20.0
    read_by(bench, "r1")
    bench.now += 20.0
    done = pruned(bench)
    assert (done.removed, done.kept) == ({Leftover.REGISTRATION: 1}, {Kept.UNCLEAN: 1})


def test_records_of_others_and_of_later_versions_stay() -> None:
    bench = Bench(DATED)
    for key, fields in (
        ("foreign", {"identity": "x", "expires_at": "1"}),
        ("newer", {"v": "9", "identity": "x", "ttl": "1"}),
        ("damaged", {"v": "1"}),
        ("mode", {"v": "1", "identity": "x", "ttl": "1", "mode": "later"}),
    ):
        bench.store.perform(Create(Name(key), fields))
    bench.now += DAY
    done = pruned(bench)
    assert (done.removed, done.kept) == ({}, {Kept.UNREADABLE: 2})


# --- semaphores -----------------------------------------------------------------------------------------------------


def test_the_turn_of_a_dead_waiter_is_removed_and_a_dead_permit_informs_its_next_holder() -> None:
    bench = SemaphoreBench()
    bench.taken("h0")
    bench.store.perform(Create(turn_name(API), encode(Record("w/1", 10.0))))
    assert not pruning(bench).run().removed
    bench.now += 20.0
    done = pruned(bench)
    assert (done.removed, done.kept) == ({Leftover.TURN: 1}, {Kept.UNCLEAN: 1})


def test_the_permits_of_a_semaphore_that_was_removed_are_removed_once_they_are_over() -> None:
    bench = SemaphoreBench()
    slot = bench.taken("h0").lease.name
    gate = bench.store.entries[Name(API)]
    bench.store.perform(Remove(Name(API), gate.incarnation))
    assert not pruning(bench).run().removed
    bench.now += 20.0
    assert pruned(bench).removed == {Leftover.PERMIT: 1}
    assert not is_there(bench, slot)


def test_the_limit_of_a_semaphore_stays() -> None:
    bench = SemaphoreBench()
    bench.taken("h0")
    bench.now += 1000 * DAY
    pruned(bench, forgets=True)
    assert is_there(bench, Name(API))
    assert not is_there(bench, slot_name(API, 0))


# --- tokens ---------------------------------------------------------------------------------------------------------


def drawn(bench: Bench, grant: Grant) -> int:
    token: int = bench.session(draw_token(grant.lease, bench.context(), salt="s")).run()
    return token


def test_h36_a_removed_counter_of_tokens_continues_above() -> None:
    bench = Bench(DATED)
    grant = bench.granted("a")
    token = drawn(bench, grant)
    bench.now += 2 * DAY
    done = pruned(bench)
    assert not done.removed[Leftover.COMPANION]  # there is a record of the lock
    bench.store.perform(Remove(APT, grant.lease.incarnation))
    bench.now += 2 * DAY
    assert pruned(bench).removed == {Leftover.COMPANION: 1}
    assert drawn(bench, bench.granted("b")) > token


def test_h36_a_counter_that_would_begin_again_is_never_removed() -> None:
    from dataclasses import replace

    bench = Bench(replace(DATED, draws_by_clock=False))
    bench.store.perform(Create(Name("apt", Space.COMPANION), {"v": "1"}))
    bench.now += 1000 * DAY
    assert not pruned(bench).removed


# --- history, scratch -----------------------------------------------------------------------------------------------


@JUDGED
def test_history_is_removed_past_its_retention_and_not_before(traits: Traits) -> None:
    bench = Bench(traits)
    began = 1.7e9 + bench.now
    name = Name("apt", Space.AUDIT, f"{int(began * 1000):014d}-x")
    bench.store.perform(Create(name, {"v": "1", "at": f"{began:.3f}", "what": "revoked"}))
    bench.now += 365 * DAY
    assert not pruned(bench).removed
    bench.now += 2 * DAY
    assert pruned(bench).removed == {Leftover.HISTORY: 1}


def test_the_age_of_history_is_taken_from_the_store_where_it_tells() -> None:
    bench = Bench()
    bench.store.perform(Create(Name("apt", Space.AUDIT, "00000000000001-x"), {"v": "1", "at": "0", "what": "revoked"}))
    assert not pruned(bench).removed


def test_scratch_records_are_removed_after_an_hour_and_locks_of_the_bench_once_over() -> None:
    bench = Bench()
    scratch, bench_lock = Name(SCRATCH_KEY, Space.MEMBER, "00/1"), Name(f"lockstead-bench-{'0' * 16}-1")
    bench.store.perform(Create(scratch, {"anything": "1"}))
    bench.store.perform(Create(bench_lock, encode(Record("lockstead-bench/1", 10.0))))
    assert not pruned(bench).removed
    bench.now += 20.0
    assert pruned(bench).removed == {Leftover.SCRATCH: 1}
    assert is_there(bench, scratch)
    bench.now += 3600.0
    assert pruned(bench).removed == {Leftover.SCRATCH: 1}
    assert not bench.store.entries


# --- limits and failures --------------------------------------------------------------------------------------------


def dead_members(bench: Bench, count: int) -> None:
    lease = bench.granted("a").lease
    for number in range(count):
        bench.session(attach(lease, f"m{number}", encode(Record(f"m{number}", 10.0)), bench.context())).run()
    bench.now += 20.0


def test_removals_are_paced_and_bounded() -> None:
    bench = Bench()
    dead_members(bench, 5)
    began = bench.now
    done = pruning(bench, removals_max=3, between=2.0).run()
    assert (done.removed[Leftover.REGISTRATION], done.is_complete) == (3, False)
    assert bench.now - began == pytest.approx(6.0)
    assert pruning(bench).run().removed[Leftover.REGISTRATION] == 2


def test_reads_that_decide_on_counters_are_paced_too() -> None:
    bench = Bench(DATED)
    for number in range(3):
        bench.store.perform(Create(Name(f"k{number}"), {"v": "1"}))
        bench.store.perform(Create(Name(f"k{number}", Space.COMPANION), {"v": "1"}))
    bench.now += 2 * DAY
    began = bench.now
    assert not pruning(bench, between=2.0).run().removed
    assert bench.now - began == pytest.approx(6.0)


def test_a_space_that_is_refused_hides_no_other() -> None:
    bench = Bench()
    dead_members(bench, 1)
    session = pruning(bench)
    while not (isinstance(session.command, List) and session.command.space is Space.AUDIT):
        session.wait() if isinstance(session.command, Pause) else session.commit()
    session.unsent(error=StoreRefused("no right to read the history"))
    done = session.run()
    assert done.refused == {Space.AUDIT: "no right to read the history"}
    assert done.removed[Leftover.REGISTRATION] == 1


@pytest.mark.parametrize("error", [OutcomeUnknown, StoreUnavailable])
@pytest.mark.parametrize("is_silent", [False, True])
def test_removals_without_effect_skip_a_space_and_a_silent_store_ends_it(
    error: type[Exception], *, is_silent: bool
) -> None:
    bench = Bench()
    dead_members(bench, 5)
    session = pruning(bench)
    removals = 0

    def play() -> Any:
        nonlocal removals
        while not session.is_over:
            if isinstance(session.command, Pause):
                session.wait()
            elif isinstance(session.command, Remove) or (is_silent and removals):
                removals += isinstance(session.command, Remove)
                session.unsent(error=error("silent"))
            else:
                session.commit()
        return session.outcome

    if is_silent:
        with pytest.raises(error):
            play()
    else:
        assert play().refused == {Space.MEMBER: "the last 3 removals had no effect: silent"}
    assert removals == 3


def test_a_large_store_is_read_in_pages_and_an_outdated_page_is_left_to_the_next_call() -> None:
    bench = Bench()
    dead_members(bench, 3)
    session = pruning(bench)
    first = session.expect(List)
    entries = bench.store.perform(List(first.space)).entries
    session.answer(Listing(entries[:1], "more"))
    while not isinstance(session.command, List):
        session.wait() if isinstance(session.command, Pause) else session.commit()
    assert session.expect(List).cursor == "more"
    session.unsent(error=StoreRefused("out of date"))
    done = session.run()
    assert (done.removed[Leftover.REGISTRATION], done.is_complete) == (1, False)
    assert not done.refused
