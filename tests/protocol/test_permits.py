"""One directed scenario, or more, for each rule of permits: P1 to P7."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.acquire import Contended, Grant
from lockstead.protocol.commands import Create, Extend, List, Pause, Paused, Read, Remove, Replace, StoreClock, Traits
from lockstead.protocol.permits import Full, remove, slot_name, turn_name
from lockstead.protocol.record import Revocation, decode
from lockstead.protocol.release import break_lease, sweep
from lockstead.protocol.renew import Over, Renewed, renew
from lockstead.values import TURN, LeaseOutcome, Name, PreviousLease
from tests.protocol.semaphores import API, GATE, SemaphoreBench, slot_number
from tests.simulation.expiring import EXPIRING
from tests.simulation.store import DATED, NONE, SHARED

EVERY = pytest.mark.parametrize("traits", [SHARED, DATED, NONE, EXPIRING], ids=lambda traits: traits.scheme)
JUDGED = pytest.mark.parametrize("traits", [SHARED, DATED, NONE], ids=lambda traits: traits.scheme)


def overdue(bench: SemaphoreBench) -> None:
    settings = bench.settings
    bench.now += settings.ttl * (1 + settings.drift) + bench.traits.clock_skew_max + 0.001


# --- P1: take a slot as a lock --------------------------------------------------------------------------------------


@EVERY
def test_p01_as_many_holders_as_permits_each_in_its_own_slot(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    assert {slot_number(bench.taken(f"h{number}")) for number in range(3)} == {0, 1, 2}
    outcome = bench.taking("late", tries_once=True).run()
    assert isinstance(outcome, Full)
    assert (outcome.limit, sorted(outcome.owners)) == (3, ["h0", "h1", "h2"])


@EVERY
def test_p01_a_released_permit_is_had_by_the_next(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    grants = [bench.taken(f"h{number}", 2) for number in range(2)]
    bench.store.perform(Remove(grants[1].lease.name, grants[1].lease.incarnation))
    assert bench.taken("next", 2).lease.name == grants[1].lease.name


@JUDGED
def test_p01_a_dead_holders_permit_is_had_and_its_end_is_told(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    grants = [bench.taken(f"h{number}", 2) for number in range(2)]
    context = bench.context()
    asking = bench.taking(bench.wish("next", 2), context)
    while not isinstance(asking.command, Pause):
        asking.commit()
    overdue(bench)
    grant = asking.run(2000)
    assert isinstance(grant, Grant)
    dead = next(one.lease for one in grants if one.lease.name == grant.lease.name)
    assert grant.previous_lease == PreviousLease(LeaseOutcome.EXPIRED, dead.holder, dead.holder)


def test_p01_a_guessed_slot_takes_two_writes_and_a_read() -> None:
    bench = SemaphoreBench()
    bench.taken("before", slot=0)
    wish = bench.taking(bench.wish("a", guess=1))
    assert wish.expect(Create).name == slot_name(API, 1)
    wish.commit().expect(Read)
    assert isinstance(wish.commit().outcome, Grant)


def test_p01_an_unknown_outcome_is_looked_at_before_any_other_slot() -> None:
    bench = SemaphoreBench()
    asking = bench.taking("a")
    slot = bench.to_slot(asking)
    asking.lose()
    assert asking.expect(Read).name == slot_name(API, slot)
    grant = asking.run()
    assert isinstance(grant, Grant)
    assert slot_number(grant) == slot
    assert bench.abandoned == []


def test_p01_a_slot_whose_gate_is_not_read_is_found_again_after_the_outage() -> None:
    bench = SemaphoreBench()
    asking = bench.taking("a")
    slot = bench.to_slot(asking)
    asking.commit()
    assert asking.expect(Read).name == GATE
    asking.unsent()
    grant = asking.run()
    assert isinstance(grant, Grant)
    assert slot_number(grant) == slot
    assert sum(name.is_slot for name in bench.store.entries) == 1


def test_p01_m15_a_wish_leaves_an_unknown_slot_as_another_holder() -> None:
    """M15: the late write takes effect beside the grant; it is swept, and the grant is not."""
    bench = SemaphoreBench()
    asking = bench.taking("a", permits=2)
    slot = bench.to_slot(asking)
    late = asking.late()
    bench.taken("b", 2, slot)
    grant = asking.run()
    assert isinstance(grant, Grant)
    assert slot_number(grant) == 1 - slot
    assert grant.lease.holder != "a"
    (left,) = bench.abandoned
    held = bench.slot(slot)
    assert held is not None
    bench.store.perform(Remove(slot_name(API, slot), held.incarnation))
    bench.store.perform(late)
    assert bench.session(sweep(left.name, left.holder, bench.context())).run()
    assert bench.slot(slot) is None
    assert not bench.session(sweep(grant.lease.name, left.holder, bench.context())).run()
    assert bench.slot(1 - slot) is not None


def test_p01_many_abandoned_writes_have_different_holders() -> None:
    bench = SemaphoreBench()
    wish = bench.wish("host.example/1/a", 3)
    for slot in (0, 1, 2):
        wish.at(slot).unsettled = True
    assert [one.holder for one in bench.abandoned] == ["host.example/1/a", "host.example/1/a.1"]
    assert wish.request.holder == "host.example/1/a.2"
    assert wish.request.fields["identity"] == wish.request.holder


def test_p01_an_unreadable_slot_is_never_free_and_blocks_no_other() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 2, 0)
    bench.store.damage(slot_name(API, 0), {"v": "1", "identity": "a", "ttl": "soon"})
    assert slot_number(bench.taken("b", 2)) == 1
    assert isinstance(bench.taking("c", permits=2, tries_once=True).run(), Full)


def test_p01_if_all_slots_are_unreadable_that_is_the_error() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 1)
    bench.store.damage(slot_name(API, 0), {"v": "1", "identity": "a", "ttl": "soon"})
    with pytest.raises(StoreRefused, match="the record of 'api' is damaged: ttl is 'soon'"):
        bench.taking("b", permits=1).run()


def test_p01_records_that_are_no_slots_are_passed_over() -> None:
    bench = SemaphoreBench()
    for part in ("01", "-1", "+1", "1.0", "x", "10000", "9" * 30, "٣"):
        bench.store.perform(Create(Name(API, bench_space(), part), {"v": "1", "identity": "x", "ttl": "1000"}))
    assert {slot_number(bench.taken(f"h{number}", 2)) for number in range(2)} == {0, 1}


def bench_space() -> Any:
    return slot_name(API, 0).space


# --- P2: then read the gate -----------------------------------------------------------------------------------------


@EVERY
def test_p02_shrunk_between_gate_and_slot(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    asking = bench.taking("b", permits=None, tries_once=True)
    assert bench.to_slot(asking) == 1
    assert bench.resized(1, "z")
    outcome = asking.run()
    assert isinstance(outcome, Full)
    assert bench.slot(1) is None or bench.slot(1).fields.get("ended")  # type: ignore[union-attr]


@EVERY
def test_p02_adopted_after_the_shrink(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    asking = bench.taking("b", permits=None, tries_once=True)
    assert bench.to_slot(asking) == 1
    create = asking.late()
    assert bench.resized(1, "z")
    bench.store.perform(create)
    asking.expect(Read)
    assert asking.commit().expect(Extend).name == slot_name(API, 1)
    assert asking.commit().expect(Read).name == GATE
    assert isinstance(asking.run(), Full)


def test_p02_a_guess_above_the_limit_is_given_back() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 1, 0)
    assert isinstance(bench.taking(bench.wish("b", 1, guess=1), tries_once=True).run(), Full)
    assert bench.slot(1) is None


@JUDGED
def test_p02_giving_back_keeps_how_the_slots_last_lease_ended(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    context = bench.context()
    crashed = bench.taken("crashed", 2, 1)
    asking = bench.taking(bench.wish("b", None), context)
    while not isinstance(asking.command, Pause):
        asking.commit()
    overdue(bench)
    bench.session(renew(_lease_of(bench, 0), {}, bench.context())).run()
    while not (isinstance(asking.command, Replace) and asking.command.name.is_slot):
        asking.wait(0.0) if isinstance(asking.command, Pause) else asking.commit()
    bench.session(_set(bench, 1)).run()
    while isinstance(asking.command, Replace | Read):
        asking.commit()
    asking.commit()
    bench.resized(2, "again")
    grant = bench.taken("next", 2, 1)
    assert grant.previous_lease == PreviousLease(LeaseOutcome.EXPIRED, "crashed", crashed.lease.holder)


def _lease_of(bench: SemaphoreBench, slot: int) -> Any:
    from lockstead.protocol.context import LeaseId

    entry = bench.slot(slot)
    assert entry is not None
    return LeaseId(slot_name(API, slot), entry.fields["identity"], entry.incarnation, bench.settings.ttl)


def _set(bench: SemaphoreBench, limit: int) -> Any:
    from lockstead.protocol.permits import _set_limit

    return _set_limit(API, limit, f"set-{limit}", bench.context())


@pytest.mark.parametrize("is_sent", [True, False])
def test_p02_a_slot_that_was_given_back_without_an_answer_is_not_adopted(is_sent: bool) -> None:
    """The removal may take effect when the limit has grown again, and the slot would be believed."""
    bench = SemaphoreBench()
    bench.taken("a", 2, 0)
    bench.resized(1, "z")
    asking = bench.taking(bench.wish("b", None, guess=1)).commit().commit()
    removal = asking.expect(Remove)
    assert removal.name == slot_name(API, 1)
    asking.late() if is_sent else asking.unsent()
    bench.resized(2, "z2")
    assert [one.holder for one in bench.abandoned] == ["b"]
    while bench.turn is None:
        assert not isinstance(asking.command, Extend)
        asking.wait() if isinstance(asking.command, Pause) else asking.commit()
    bench.store.perform(removal)
    grant = asking.run()
    assert isinstance(grant, Grant)
    held = bench.slot(1)
    assert held is not None
    assert held.incarnation == grant.lease.incarnation


def test_p02_m17_a_deleted_gate_is_created_again_and_counts() -> None:
    """M17: the next gate may have another limit."""
    bench = SemaphoreBench()
    bench.taken("a", 3, 0)
    asking = bench.taking(bench.wish("b", 1, guess=1))
    bench.store.erase(GATE)
    asking.commit()
    assert asking.expect(Read).name == GATE
    while not isinstance(asking.command, Pause):
        asking.commit()
    assert (bench.limit, bench.slot(1)) == ("1", None)


def test_p02_a_mismatch_behind_the_slot_leaves_its_record_to_be_swept() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 3, 0)
    wish = bench.wish("b", 3, guess=1)
    asking = bench.taking(wish).commit()
    bench.resized(5, "z")
    with pytest.raises(StoreRefused, match="has 5 permits"):
        asking.commit()
    assert wish.request.unsettled
    assert wish.request.name == slot_name(API, 1)
    assert bench.session(sweep(wish.request.name, wish.request.holder, bench.context())).run()


# --- P3: the limit changes by the revision --------------------------------------------------------------------------


@EVERY
def test_p03_late_growth_after_a_shrink(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    growing = bench.resizing(3, "grower").commit()
    growth = growing.expect(Extend)
    assert bench.resized(1, "shrinker")
    bench.store.perform(growth)
    assert bench.limit == "1"


@EVERY
def test_p03_late_growth_after_the_present_limit_was_set(traits: Traits) -> None:
    """Setting what the gate says already is a promise, too: the revision must move."""
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    growth = bench.resizing(3, "grower").commit().expect(Extend)
    assert bench.resized(2, "shrinker")
    before = bench.store.entries[GATE].fields
    bench.store.perform(growth)
    assert bench.limit == "2"
    assert before["set_by"] == "shrinker"


def test_p03_a_change_with_an_unknown_outcome_is_recognised() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 2, 0)
    setting = bench.resizing(5, "z").commit()
    setting.lose()
    assert setting.run() is True
    assert bench.limit == "5"


def test_p03_a_change_that_never_takes_effect_is_sent_again_and_ends() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 2, 0)
    setting = bench.resizing(5, "z")
    with pytest.raises(OutcomeUnknown):
        for _ in range(30):
            if isinstance(setting.command, Extend):
                setting.late()
            elif isinstance(setting.command, Pause):
                setting.wait()
            else:
                setting.commit()
    assert bench.limit == "2"


def test_p03_growth_counts_at_once() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 1)
    waiting = bench.taking("b", permits=None)
    while not isinstance(waiting.command, Pause):
        waiting.commit()
    assert bench.resized(2, "z")
    assert isinstance(waiting.run(), Grant)


# --- P4: when a shrinkage is in effect ------------------------------------------------------------------------------


@EVERY
def test_p04_m14_taker_registers_as_the_limit_sinks(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    asking = bench.taking("b", permits=None, tries_once=True)
    assert bench.to_slot(asking) == 1
    setting = bench.resizing(1, "z")
    setting.commit()
    setting.expect(Extend)
    asking.commit()  # slot 1 is taken, and the gate is read before the limit sinks
    asking.commit()
    assert isinstance(asking.outcome, Grant)
    setting.commit().expect(List)
    assert setting.run() is False


def test_p04_the_list_comes_after_the_answer() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 2, 0)
    setting = bench.resizing(1, "z")
    setting.expect(Read)
    setting.commit().expect(Extend)
    setting.late()
    while not isinstance(setting.command, Extend):  # never a list before an answer shows the limit
        assert not isinstance(setting.command, List)
        setting.wait() if isinstance(setting.command, Pause) else setting.commit()
    setting.commit().expect(List)
    assert setting.commit().outcome is True


@EVERY
def test_p04_a_shrinkage_waits_for_the_holders_above(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    above = bench.taken("b", 2, 1)
    setting = bench.resizing(1, "z", wait_until=bench.now + 5)
    while not isinstance(setting.command, Pause):
        setting.commit()
    assert setting.expect(Pause).name.is_slot
    bench.store.perform(Remove(above.lease.name, above.lease.incarnation))
    assert setting.run() is True


def test_p04_a_shrinkage_waits_no_longer_than_it_may() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 2, 1)
    begun = bench.now
    assert bench.resizing(1, "z", wait_until=bench.now + 3).run() is False
    assert begun + 3 <= bench.now <= begun + 3 + 2 * bench.settings.backoff_min


@JUDGED
def test_p04_a_dead_lease_above_the_limit_cannot_be_extended_by_its_ticket(traits: Traits) -> None:
    bench = SemaphoreBench(traits, foreign_ttl=None)
    bench.taken("a", 2, 0)
    above = bench.taken("b", 2, 1)
    setting = bench.resizing(1, "z", wait_until=inf)
    assert setting.run(2000) is True
    assert isinstance(bench.session(renew(above.lease, {}, bench.context())).run(), Over)


@JUDGED
def test_p04_a_lease_that_is_extended_as_it_is_ended_counts(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    bench.taken("a", 2, 0)
    above = bench.taken("b", 2, 1)
    setting = bench.resizing(1, "z", wait_until=inf)
    for _ in range(2000):
        if isinstance(setting.command, Extend) and setting.command.name == above.lease.name:
            break
        setting.wait() if isinstance(setting.command, Pause) else setting.commit()
    assert isinstance(bench.session(renew(above.lease, {}, bench.context())).run(), Renewed)
    setting.commit()
    assert not setting.is_over
    bench.store.perform(Remove(above.lease.name, above.lease.incarnation))
    assert setting.run() is True


def test_p04_breaking_a_permit_hurries_its_holder() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 2, 1)
    broken = break_lease(
        slot_name(API, 1), Revocation("me", "why"), bench.context(), now=True, incarnation=None, salt="s"
    )
    assert bench.session(broken).run().removed
    assert bench.resized(1, "z")


# --- P5: the gate rules, the code asks ------------------------------------------------------------------------------


def test_p05_the_gate_is_refused_by_clients_that_know_locks_only() -> None:
    bench = SemaphoreBench()
    bench.taken("a")
    fields = bench.store.entries[GATE].fields
    assert (fields["v"], fields["mode"], fields["limit"], fields["identity"]) == ("2", "permits", "3", "permits")
    assert "ttl" not in fields
    with pytest.raises(StoreRefused) as refused:
        decode(GATE, fields, foreign=True)
    assert str(refused.value) == (
        "'api' is a semaphore with 3 permits; use lockstead.Semaphore (at the command line run -n, "
        "break --slot, permits), or another key"
    )


@pytest.mark.parametrize("traits", [SHARED, EXPIRING], ids=lambda traits: traits.scheme)
def test_p05_a_gate_never_expires(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    grant = bench.taken("a", 1)
    bench.now += 10**8
    assert bench.limit == "1"
    with pytest.raises(StoreRefused, match="has 1 permit, this process expects 2"):
        bench.taking("b", permits=2).run()
    assert grant.deadline < bench.now


def test_p05_another_number_is_refused_with_both() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 3)
    with pytest.raises(StoreRefused) as refused:
        bench.taking("b", permits=5, tries_once=True).run()
    assert str(refused.value) == (
        "the semaphore 'api' has 3 permits, this process expects 5; change one of the two (semaphore.resize(n), "
        "lockstead permits --set N), or pass on_mismatch='follow'"
    )


def test_p05_another_number_is_followed_with_a_warning() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 1)
    outcome = bench.taking(bench.wish("b", 5, "follow"), tries_once=True).run()
    assert isinstance(outcome, Full)
    assert bench.seen == [1]


def test_p05_another_number_is_set() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 1)
    assert isinstance(bench.taking(bench.wish("b", 2, "resize"), tries_once=True).run(), Grant)
    assert bench.limit == "2"


@pytest.mark.parametrize("on_mismatch", ["refuse", "follow", "resize"])
def test_p05_limit_zero_closes_for_everybody(on_mismatch: str) -> None:
    bench = SemaphoreBench()
    grant = bench.taken("a", 3)
    assert bench.resized(0, "z") is False
    bench.store.perform(Remove(grant.lease.name, grant.lease.incarnation))
    outcome = bench.taking(bench.wish("b", 3, on_mismatch), tries_once=True).run()
    assert isinstance(outcome, Full)
    assert (outcome.limit, outcome.owners, bench.limit) == (0, (), "0")


def test_p05_no_number_follows_but_creates_nothing() -> None:
    bench = SemaphoreBench()
    with pytest.raises(StoreRefused, match="there is no semaphore 'api'"):
        bench.taking("a", permits=None).run()
    with pytest.raises(StoreRefused, match="there is no semaphore 'api'"):
        bench.resized(3, "z")
    assert bench.store.entries == {}


@EVERY
def test_p05_a_live_lock_is_refused(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    fields = {"v": "1", "identity": "x/1", "owner": "x", "ttl": "10"}
    bench.store.perform(Create(GATE, fields, 10.0, "", 11.0))
    for script in (bench.wish("a"), bench.wish("a", None)):
        with pytest.raises(StoreRefused, match="'api' is a lock, held by 'x'; a semaphore needs another key"):
            bench.taking(script).run()
    with pytest.raises(StoreRefused, match="'api' is a lock"):
        bench.resized(3, "z")


@JUDGED
def test_p05_a_lock_whose_lease_is_over_makes_room(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    fields = {"v": "1", "identity": "x/1", "owner": "x", "ttl": "10", "ended": "1"}
    bench.store.perform(Create(GATE, fields, 10.0, "", 11.0))
    assert slot_number(bench.taken("a")) in range(3)
    assert bench.limit == "3"


def test_p05_two_that_create_the_gate_agree_on_one() -> None:
    bench = SemaphoreBench()
    first = bench.taking(bench.wish("a", 3)).commit()
    second = bench.taking(bench.wish("b", 2)).commit()
    assert first.expect(Create).name == second.expect(Create).name == GATE
    first.commit()
    with pytest.raises(StoreRefused, match="has 3 permits, this process expects 2"):
        second.commit().commit()


@pytest.mark.parametrize("limit", ["abc", "1" + "0" * 30, "10001", "-1", "3.5", "", "٣", "1e1", None])
def test_p05_a_damaged_gate_is_one_clear_line_and_can_be_set(limit: str | None) -> None:
    bench = SemaphoreBench()
    bench.taken("a", 3, 0)
    fields = {"v": "2", "mode": "permits", "identity": "permits"} | ({} if limit is None else {"limit": limit})
    bench.store.damage(GATE, fields)
    line = "the semaphore 'api' is damaged: its limit is .*; set its limit: semaphore.resize"
    with pytest.raises(StoreRefused, match=line):
        bench.taking("b").run()
    with pytest.raises(StoreRefused, match=line):
        decode(GATE, fields)
    bench.resized(2, "z")
    assert bench.limit == "2"


@pytest.mark.parametrize(("version", "mode"), [("3", "permits"), ("2", "elections"), ("2", "")])
def test_p05_what_is_newer_is_refused_as_newer(version: str, mode: str) -> None:
    bench = SemaphoreBench()
    bench.store.perform(Create(GATE, {"v": version, "mode": mode, "limit": "3"}))
    with pytest.raises(StoreRefused, match=f"has version {version}, this lockstead reads 1: upgrade this process"):
        bench.taking("a").run()


def test_p05_a_newer_minor_version_of_the_gate_is_read() -> None:
    bench = SemaphoreBench()
    bench.store.perform(Create(GATE, {"v": "2.7", "mode": "permits", "limit": "3", "colour": "red"}))
    bench.taken("a")
    bench.resized(2, "z")
    assert bench.store.entries[GATE].fields["colour"] == "red"


def removing(bench: SemaphoreBench, wait_until: float | None = None) -> Any:
    return bench.session(remove(API, "z", bench.context(), wait_until=wait_until))


@EVERY
def test_p05_a_semaphore_is_removed_when_no_permit_is_held(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    grant = bench.taken("a")
    assert removing(bench).run() is False
    assert bench.limit == "0"
    bench.store.perform(Extend(grant.lease.name, {"ended": "1"}, grant.lease.incarnation))
    assert removing(bench).run() is True
    assert {name for name in bench.store.entries if name.space.value != "companion"} == set()


def test_p05_a_semaphore_that_is_opened_again_meanwhile_stays() -> None:
    bench = SemaphoreBench()
    bench.taken("a", 3, 0)
    bench.session(
        break_lease(slot_name(API, 0), Revocation("m", "w"), bench.context(), now=True, incarnation=None, salt="s")
    ).run()
    removal = removing(bench)
    while not (isinstance(removal.command, Remove) and removal.command.name == GATE):
        removal.commit()
    bench.resized(3, "other")
    assert removal.run() is False
    assert bench.limit == "3"


# --- P6, P7: the turn -----------------------------------------------------------------------------------------------


def waiting(bench: SemaphoreBench, holder: str, **more: Any) -> Any:
    """A wish that found nothing free and waits."""
    session = bench.taking(bench.wish(holder, 1, **more))
    while not isinstance(session.command, Pause):
        session.commit()
    return session


@EVERY
def test_p06_one_waiter_watches_the_slots_the_others_wait_for_the_turn(traits: Traits) -> None:
    bench = SemaphoreBench(traits)
    held = bench.taken("holder", 1)
    first, second = waiting(bench, "first"), waiting(bench, "second")
    assert first.expect(Pause).name.topic == slot_name(API, 0).topic
    assert first.expect(Pause).waiter_id == ""
    assert second.expect(Pause).name.part == TURN
    assert second.expect(Pause).waiter_id == "second/turn"
    assert bench.turn == "first/turn"
    bench.store.perform(Remove(held.lease.name, held.lease.incarnation))
    first.answer(Paused(0.1, changed=True), 0.1)
    grant = first.run()
    assert isinstance(grant, Grant)
    assert bench.turn is None
    second.answer(Paused(0.1, changed=True), 0.1)
    while not isinstance(second.command, Pause):
        second.commit()
    assert bench.turn == "second/turn"
    assert second.expect(Pause).name.is_slot


def test_p06_the_turn_is_given_back_when_the_time_is_over() -> None:
    bench = SemaphoreBench()
    bench.taken("holder", 1)
    waiter = bench.taking(bench.wish("first", 1), gives_up_at=bench.now + 3)
    assert isinstance(waiter.run(), Full)
    assert bench.turn is None


def test_p06_one_that_never_had_the_turn_gives_up_without_touching_it() -> None:
    bench = SemaphoreBench()
    bench.taken("holder", 1)
    waiting(bench, "first")
    outcome = bench.taking(bench.wish("second", 1), gives_up_at=bench.now + 3).run()
    assert isinstance(outcome, Full)
    assert outcome.owners == ("holder",)
    assert bench.turn == "first/turn"


@EVERY
def test_p06_the_turn_is_renewed_while_its_holder_waits(traits: Traits) -> None:
    bench = SemaphoreBench(traits, ttl=3600, backoff_max=5)
    bench.taken("holder", 1)
    first, second = waiting(bench, "first"), waiting(bench, "second")
    end = bench.now + 300
    while bench.now < end:
        behind, other = (first, second) if first.sent_at <= second.sent_at else (second, first)
        del other
        if isinstance(behind.command, Pause):
            behind.wait(min(behind.command.at_most, behind.command.over_in))
        else:
            behind.commit()
        assert bench.turn == "first/turn"


@JUDGED
def test_p06_m16_a_dead_waiters_turn_is_had_within_its_ttl(traits: Traits) -> None:
    """M16."""
    bench = SemaphoreBench(traits, ttl=3600)
    bench.taken("holder", 1)
    waiting(bench, "dead")
    second = waiting(bench, "second")
    begun = bench.now
    for _ in range(5000):
        if bench.turn == "second/turn":
            break
        second.wait(second.command.draw(lambda: 1.0)) if isinstance(second.command, Pause) else second.commit()
    assert bench.turn == "second/turn"
    assert bench.now - begun < 30 * 1.02 + bench.traits.clock_skew_max + 2 * 5


@EVERY
@pytest.mark.parametrize(
    "hostile",
    [{"ttl": "3e9"}, {"ttl": "30", "lock_delay": "60"}, {"ttl": "3e9", "mode": "shared"}, {"ttl": "3e9", "mode": "x"}],
)
def test_p06_m16_a_turn_blocks_nobody_for_longer_than_a_turn_may_live(traits: Traits, hostile: dict[str, str]) -> None:
    """M16. The turn was written by somebody who can write anything."""
    bench = SemaphoreBench(traits, ttl=3600)
    bench.taken("holder", 1)
    bench.store.perform(Create(turn_name(API), {"v": "1", "identity": "x", **hostile}, lifetime=3e6, min_retention=3e6))
    second = waiting(bench, "second")
    begun = bench.now
    for _ in range(5000):
        if bench.turn == "second/turn":
            break
        second.wait(second.command.draw(lambda: 1.0)) if isinstance(second.command, Pause) else second.commit()
    assert bench.turn == "second/turn"
    assert bench.now - begun < 30 * 1.02 + bench.traits.clock_skew_max + 2 * 5


def test_p06_a_newcomer_takes_a_free_permit_while_a_waiter_sleeps() -> None:
    bench = SemaphoreBench()
    held = bench.taken("holder", 1)
    first = waiting(bench, "first")
    bench.store.perform(Remove(held.lease.name, held.lease.incarnation))
    bench.taken("newcomer", 1)
    first.answer(Paused(0.1, changed=True), 0.1)
    while not isinstance(first.command, Pause):
        first.commit()
    assert bench.turn == "first/turn"


def test_p06_where_waiters_queue_a_newcomer_does_not_overtake() -> None:
    bench = SemaphoreBench()
    held = bench.taken("holder", 1)
    waiting(bench, "first")
    bench.store.perform(Remove(held.lease.name, held.lease.incarnation))
    outcome = bench.taking(bench.wish("newcomer", 1, in_order=True), tries_once=True).run()
    assert outcome == Contended(None, is_queued=True)
    newcomer = waiting(bench, "other", in_order=True)
    assert newcomer.expect(Pause).name.part == TURN


def test_p06_a_dead_or_damaged_turn_holds_no_newcomer_up() -> None:
    bench = SemaphoreBench()
    held = bench.taken("holder", 1)
    waiting(bench, "dead")
    bench.store.perform(Remove(held.lease.name, held.lease.incarnation))
    bench.now += 31
    assert isinstance(bench.taking(bench.wish("a", 1, in_order=True, guess=0), tries_once=True).run(), Grant)
    bench.store.damage(turn_name(API), {"v": "1"})
    assert isinstance(bench.taking(bench.wish("b", 1, in_order=True), tries_once=True).run(), Full)


def test_p06_a_damaged_turn_costs_the_order_alone() -> None:
    bench = SemaphoreBench()
    held = bench.taken("holder", 1)
    bench.store.perform(Create(turn_name(API), {"v": "1", "identity": "x"}))
    waiter = waiting(bench, "first")
    assert waiter.expect(Pause).name.is_slot
    bench.store.perform(Remove(held.lease.name, held.lease.incarnation))
    assert isinstance(waiter.run(), Grant)


def test_p06_a_lost_turn_is_taken_again() -> None:
    bench = SemaphoreBench(ttl=3600)
    bench.taken("holder", 1)
    first = waiting(bench, "first")
    bench.store.erase(turn_name(API))
    for _ in range(50):
        if isinstance(first.command, Create):
            break
        first.wait(first.command.draw(lambda: 1.0)) if isinstance(first.command, Pause) else first.commit()
    first.commit()
    assert bench.turn == "first/turn"


def test_p06_a_turn_that_cannot_be_given_back_is_left_to_be_swept() -> None:
    bench = SemaphoreBench()
    held = bench.taken("holder", 1)
    wish = bench.wish("first", 1)
    first = bench.taking(wish)
    while not isinstance(first.command, Pause):
        first.commit()
    assert wish.turn.unsettled
    bench.store.perform(Remove(held.lease.name, held.lease.incarnation))
    first.wait()
    while not isinstance(first.command, Remove):
        first.commit()
    first.unsent()
    assert isinstance(first.outcome, Grant)
    assert wish.turn.unsettled
    assert bench.session(sweep(wish.turn.name, wish.turn.holder, bench.context())).run()
    assert bench.turn is None


def test_p06_an_outage_is_waited_for_and_at_the_end_it_is_the_error() -> None:
    bench = SemaphoreBench()
    asking = bench.taking("a", gives_up_at=bench.now + 3)
    with pytest.raises(StoreUnavailable):
        while True:
            asking.wait() if isinstance(asking.command, Pause) else asking.unsent()
    asking = bench.taking("a", gives_up_at=bench.now + 100)
    asking.unsent()
    asking.expect(Pause)
    assert isinstance(asking.run(), Grant)


def test_p07_a_waiter_wakes_no_later_than_the_first_lease_can_be_over() -> None:
    bench = SemaphoreBench(ttl=10)
    bench.taken("a", 2)
    bench.now += 8
    bench.taken("b", 2)
    waiter = bench.taking("c", permits=2)
    while not isinstance(waiter.command, Pause):
        waiter.commit()
    assert 2.0 < waiter.expect(Pause).over_in < 2.2


def test_p07_where_the_server_expires_leases_the_turn_alone_bounds_the_pause() -> None:
    bench = SemaphoreBench(replace(NONE, clock=StoreClock.SERVER_EXPIRES))
    bench.taken("a", 1)
    assert waiting(bench, "b").expect(Pause).over_in == 30 / 8
