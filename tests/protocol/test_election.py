"""Directed scenarios of the rules of leadership (e01 to e07), and what a hostile record may say of a leader."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from lockstead.errors import LossReason, StoreRefused
from lockstead.protocol.acquire import AcquireRequest, Contended, Grant
from lockstead.protocol.commands import Absent, Create, Extend, Pause, Read, Remove, Replace, StoreClock, Traits
from lockstead.protocol.context import LeaseId
from lockstead.protocol.election import READS_PER_TTL, Sighting, advertise, left_to, look, newer, until_changed
from lockstead.protocol.fence import draw_token
from lockstead.protocol.lifecycle import LeaseState
from lockstead.protocol.record import (
    FIELDS_BYTES_MAX,
    Record,
    Revocation,
    decode,
    encode,
    progress_text,
    revocation_text,
)
from lockstead.protocol.release import Outcome, break_lease, give_back, may_remove_after_loss
from lockstead.protocol.renew import Over, Renewed
from lockstead.values import HEIR_BYTES_MAX, VALUE_BYTES_MAX, LeaseOutcome
from tests.protocol.bench import APT, Bench, Session
from tests.simulation.store import DATED, NONE, SHARED

EVERY = pytest.mark.parametrize("traits", [SHARED, DATED, NONE], ids=lambda traits: traits.scheme)


def candidate(bench: Bench, owner: str, value: str | None = None, *, reclaim: bool = False) -> AcquireRequest:
    return bench.want(f"{owner}/1", owner=owner, value=value or f"http://{owner}", reclaim=reclaim)


def elected(bench: Bench, owner: str) -> Grant:
    """Elect a leader: acquire with its value, draw its token."""
    grant = bench.asking(candidate(bench, owner)).run()
    assert isinstance(grant, Grant)
    assert bench.session(draw_token(grant.lease, bench.context(), salt=owner)).run() is not None
    return grant


def leader(bench: Bench, context: Any = None) -> Sighting | None:
    found: Sighting | None = bench.session(look(APT, context or bench.context())).run()[0]
    return found


def resigned(bench: Bench, grant: Grant, heir: str | None) -> Outcome:
    state = bench.lease_state(grant)
    state.heir = heir
    assert state.lose(LossReason.ENDED)
    outcome: Outcome = bench.session(give_back(state, bench.context(), bound_at=bench.now)).run()
    return outcome


def observing(bench: Bench, last: object, seen: list[Sighting | None]) -> Session:
    def note(found: Sighting | None) -> Sighting | None:
        seen.append(found)
        return found

    return bench.session(until_changed(APT, bench.context(), last, note))


# --- E1: a campaign is an acquisition, the term is its token ----------------------------------------------------------


@EVERY
def test_e01_the_first_write_has_the_value(traits: Traits) -> None:
    bench = Bench(traits)
    session = bench.asking(candidate(bench, "a", "http://a:1"))
    assert session.expect(Create).fields["value"] == "http://a:1"
    session.run()
    standing = bench.standing()
    assert standing is not None
    assert decode(APT, standing.fields).value == "http://a:1"


@pytest.mark.parametrize("traits", [DATED, NONE], ids=lambda traits: traits.scheme)
def test_e01_no_term_is_seen_before_its_token_is_drawn(traits: Traits) -> None:
    bench = Bench(traits)
    grant = bench.asking(candidate(bench, "a")).run()
    if grant.token is None:
        assert leader(bench) is None
    token = bench.session(draw_token(grant.lease, bench.context(), salt="a")).run()
    found = leader(bench)
    assert found is not None
    assert (found.owner, found.value, found.token) == ("a", "http://a", token)


@EVERY
def test_e01_tokens_grow_with_every_term(traits: Traits) -> None:
    bench = Bench(traits)
    terms = []
    for _ in range(3):
        grant = elected(bench, "a")
        found = leader(bench)
        assert found is not None
        assert found.token is not None
        terms.append(found.token)
        resigned(bench, grant, None)
    assert terms == sorted(set(terms))


# --- E2: the release comes after the body -----------------------------------------------------------------------------


def test_e02_a_term_that_was_ended_is_released_until_its_deadline() -> None:
    bench = Bench(lock_delay=5)
    state = bench.lease_state(elected(bench, "a"))
    state.lose(LossReason.ENDED)
    assert not state.believes(bench.now)
    assert may_remove_after_loss(state, state.deadline - 0.001)
    assert not may_remove_after_loss(state, state.deadline)


def test_e02_a_term_that_was_lost_is_not_turned_into_one_that_was_ended() -> None:
    bench = Bench()
    state = bench.lease_state(elected(bench, "a"))
    state.lose(LossReason.TAKEN)
    assert not state.lose(LossReason.ENDED)
    assert (state.reason, state.is_clean) == (LossReason.TAKEN, False)


# --- E3: advertise expects the incarnation ----------------------------------------------------------------------------


@EVERY
def test_e03_advertise_changes_the_value_and_renews(traits: Traits) -> None:
    bench = Bench(traits)
    grant = elected(bench, "a")
    bench.now += 2
    outcome = bench.session(advertise(grant.lease, "http://b", bench.context())).run()
    assert isinstance(outcome, Renewed)
    assert outcome.deadline == pytest.approx(grant.deadline + 2)
    found = leader(bench)
    assert found is not None
    assert found.value == "http://b"


@EVERY
def test_e03_a_late_advertise_does_not_reach_the_next_term(traits: Traits) -> None:
    bench = Bench(traits)
    old = elected(bench, "a")
    late = bench.session(advertise(old.lease, "http://late", bench.context())).expect(Extend)
    resigned(bench, old, None)
    elected(bench, "b")
    bench.store.perform(late)
    found = leader(bench)
    assert found is not None
    assert (found.owner, found.value) == ("b", "http://b")
    outcome = bench.session(advertise(old.lease, "http://late", bench.context())).run()
    assert isinstance(outcome, Over)


# --- E4: observers ----------------------------------------------------------------------------------------------------


def test_e04_a_record_that_is_over_is_no_leader() -> None:
    bench = Bench(ttl=10)
    elected(bench, "a")
    bench.now += 10.05
    assert leader(bench) is not None, "its last renewal was within ttl * (1 + drift)"
    bench.now += 0.06
    assert leader(bench) is None
    assert isinstance(bench.asking("b", tries_once=True).run(), Grant)


def test_e04_without_a_clock_an_observer_waits_as_long_as_a_contender() -> None:
    bench = Bench(NONE, ttl=10)
    elected(bench, "a")
    bench.now += 100
    context = bench.context()
    assert leader(bench, context) is not None
    bench.now += 10.2
    assert leader(bench, context) is None


@pytest.mark.parametrize(
    "record",
    [
        Record("a/1", 10, owner="a", token=7),
        Record("a/1", 10, owner="a", token=7, value="x", ended=True),
        Record("tombstone/1", 10, owner="a", token=7, value="x", tombstone=True),
        Record("shared/1", 10, token=7, value="x", mode="shared"),
    ],
    ids=["a plain lock", "ended", "a tombstone", "readers"],
)
def test_e04_a_lock_without_a_leader(record: Record) -> None:
    bench = Bench()
    assert leader(bench) is None
    bench.store.perform(Create(APT, encode(record), 10))
    assert leader(bench) is None


def test_e04_a_foreign_lock_has_no_leader() -> None:
    bench = Bench(replace(SHARED, foreign=True))
    bench.store.perform(Create(APT, {"identity": "x", "value": "http://x", "expires_at": "9999999999"}))
    assert leader(bench) is None


@EVERY
def test_e04_an_observer_reads_at_the_eighth_of_the_ttl_and_writes_nothing(traits: Traits) -> None:
    bench = Bench(traits, ttl=8)
    elected(bench, "a")
    seen: list[Sighting | None] = []
    session = observing(bench, object(), seen)
    session.expect(Read)
    found = session.commit().outcome
    assert found is not None
    assert found.owner == "a"
    again = observing(bench, found, seen)
    for _ in range(5):
        again.expect(Read)
        pause = again.commit().expect(Pause)
        assert (pause.at_least, pause.at_most) == (8 / READS_PER_TTL / 2, 8 / READS_PER_TTL)
        assert pause.wake_on_change
        again.wait()


def test_e04_an_observer_looks_when_the_term_can_be_over() -> None:
    bench = Bench(ttl=80)
    elected(bench, "a")
    session = observing(bench, leader(bench), [])
    bench.now += 79
    pause = session.commit().expect(Pause)
    assert pause.over_in == pytest.approx(1.8, abs=0.01)
    assert session.wait(2.0).commit().outcome is None


def test_e04_an_observer_keeps_what_it_saw_while_the_store_is_silent() -> None:
    bench = Bench()
    elected(bench, "a")
    last, seen = leader(bench), list[Any]()
    session = observing(bench, last, seen)
    session.late()
    session.wait().unsent()
    assert not seen
    bench.session(break_lease(APT, Revocation("x", "y"), bench.context(), now=True, incarnation=None, salt="s")).run()
    assert session.run() is None
    assert session.is_over


def test_e04_a_damaged_record_is_refused() -> None:
    bench = Bench()
    bench.store.perform(Create(APT, {"v": "1", "identity": "a", "ttl": "long"}, 10))
    with pytest.raises(StoreRefused, match="damaged"):
        leader(bench)


@pytest.mark.parametrize(
    ("last", "found", "term", "is_new"),
    [
        (7, 8, 7, True),
        (7, 6, 7, False),
        (None, 6, 7, False),
        (None, 7, 7, True),
        (7, None, 7, True),
        (None, None, 7, False),
    ],
)
def test_m20_a_lower_token_never_follows(last: int | None, found: int | None, term: int, is_new: bool) -> None:
    def sighting(token: int | None) -> Sighting | None:
        return None if token is None else Sighting("a", "x", token, None)

    assert newer(sighting(last), sighting(found), term) is is_new


def test_m20_a_value_may_change_within_a_term_and_without_tokens() -> None:
    assert newer(Sighting("a", "x", 7, None), Sighting("a", "y", 7, None), 7)
    assert newer(Sighting("a", "x", None, None), Sighting("b", "y", None, None), 0)


# --- E5: resign, to an heir -------------------------------------------------------------------------------------------


@EVERY
def test_e05_resigning_removes_the_record(traits: Traits) -> None:
    bench = Bench(traits)
    grant = elected(bench, "a")
    assert resigned(bench, grant, None) is Outcome.REMOVED
    assert isinstance(bench.store.perform(Read(APT)), Absent)


@EVERY
def test_e05_others_leave_the_record_to_the_heir_for_one_backoff(traits: Traits) -> None:
    bench = Bench(traits, backoff_max=5)
    assert resigned(bench, elected(bench, "a"), "c") is Outcome.ENDED
    began, context = bench.now, bench.context()
    session = bench.asking(candidate(bench, "b"), context)
    session.commit().commit()
    pause = session.expect(Pause)
    assert pause.over_in == 5
    assert pause.wake_on_change
    grant = session.run()
    assert isinstance(grant, Grant)
    assert 5 <= bench.now - began <= 5 + 4 * max(bench.settings.backoff_min, traits.pace)
    assert grant.previous_lease.ending is LeaseOutcome.CLEAN


@EVERY
def test_e05_the_heir_takes_it_at_once(traits: Traits) -> None:
    bench = Bench(traits, backoff_max=5)
    resigned(bench, elected(bench, "a"), "c")
    began = bench.now
    other = bench.asking(candidate(bench, "b"))
    other.commit().commit().expect(Pause)
    heir = bench.asking(candidate(bench, "c"), tries_once=True)
    assert heir.commit().commit().expect(Replace).waiter_id == "", "it does not wait behind others in a queue"
    grant = heir.run()
    assert isinstance(grant, Grant)
    assert bench.now == began
    assert grant.previous_lease.ending is LeaseOutcome.CLEAN
    assert isinstance(other.wait(0.2).commit().expect(Pause), Pause)
    assert bench.holder == "c/1"


def test_e05_the_heir_is_not_told_of_an_unclean_end_before_its_predecessor() -> None:
    bench = Bench(ttl=10)
    elected(bench, "z")
    bench.now += 100
    grant = elected(bench, "a")
    assert grant.previous_lease.ending is LeaseOutcome.EXPIRED
    resigned(bench, grant, "c")
    assert elected(bench, "c").previous_lease.ending is LeaseOutcome.CLEAN


def test_e05_a_single_try_does_not_take_it_from_the_heir() -> None:
    bench = Bench()
    resigned(bench, elected(bench, "a"), "c")
    assert isinstance(bench.asking(candidate(bench, "b"), tries_once=True).run(), Contended)


def test_m19_a_second_look_does_not_wait_again() -> None:
    bench = Bench(backoff_max=5)
    resigned(bench, elected(bench, "a"), "nobody")
    context = bench.context()
    assert isinstance(bench.asking("b", context, tries_once=True).run(), Contended)
    bench.now += 5
    assert isinstance(bench.asking("b", context, tries_once=True).run(), Grant)


def test_e05_a_place_of_the_heir_in_the_queue_is_left() -> None:
    bench = Bench()
    grant = elected(bench, "a")
    request = candidate(bench, "c")
    session = bench.asking(request)
    session.commit().commit().expect(Pause)
    assert not request.may_keep_place
    resigned(bench, grant, "c")
    assert isinstance(session.run(), Grant)
    assert request.may_keep_place


def test_e05_an_heir_is_written_once_though_the_answer_is_lost() -> None:
    bench = Bench()
    grant = elected(bench, "a")
    state = bench.lease_state(grant)
    state.heir = "c"
    session = bench.session(give_back(state, bench.context(), bound_at=bench.now))
    assert session.expect(Extend).fields == left_to("c")
    session.lose()
    assert session.run() is Outcome.ENDED
    assert isinstance(bench.asking(candidate(bench, "c"), tries_once=True).run(), Grant)
    assert session.command is None


def test_e05_a_late_resignation_does_not_end_the_next_term() -> None:
    bench = Bench()
    grant = elected(bench, "a")
    state = bench.lease_state(grant)
    state.heir = "c"
    late = bench.session(give_back(state, bench.context(), bound_at=bench.now)).late()
    bench.store.perform(Remove(APT, grant.lease.incarnation))
    elected(bench, "b")
    bench.store.perform(late)
    found = leader(bench)
    assert found is not None
    assert found.owner == "b"


# --- E6, E7: the end of a term from inside, an instant retake ---------------------------------------------------------


def test_e06_a_term_that_ended_from_inside_is_clean_for_the_next() -> None:
    bench = Bench()
    resigned(bench, elected(bench, "a"), None)
    assert elected(bench, "b").previous_lease.ending is LeaseOutcome.CLEAN


@EVERY
def test_e07_a_stable_owner_takes_its_term_back_and_fences_the_old_one(traits: Traits) -> None:
    bench = Bench(traits)
    elected(bench, "a")
    before = leader(bench)
    assert before is not None
    request = replace(candidate(bench, "a", reclaim=True), holder="a/2")
    request = replace(request, fields={**request.fields, "identity": "a/2"})
    began = bench.now
    grant = bench.asking(request, gives_up_at=inf).run()
    assert isinstance(grant, Grant)
    assert bench.now - began < bench.settings.ttl
    token = grant.token or bench.session(draw_token(grant.lease, bench.context(), salt="a")).run()
    assert before.token is not None
    assert token > before.token


def test_e07_another_owner_is_not_reclaimed() -> None:
    bench = Bench()
    elected(bench, "a")
    assert isinstance(bench.asking(candidate(bench, "b", reclaim=True), tries_once=True).run(), Contended)


# --- hostile records --------------------------------------------------------------------------------------------------


def test_a_hostile_value_is_one_clean_line_of_bounded_size() -> None:
    fields = encode(Record("a/1", 10, owner="a"))
    said = decode(APT, {**fields, "value": "\x1b[31mred\n" + "é" * 2048, "heir": "\u202e" + "h" * 2048})
    assert said.value is not None
    assert said.heir is not None
    assert said.value.startswith("\ufffd[31mred é")
    assert (said.value[-1], said.heir[-1]) == ("…", "…")
    assert len(said.value.encode()) <= VALUE_BYTES_MAX
    assert len(said.heir.encode()) <= HEIR_BYTES_MAX
    assert said.unknown == {}


def test_values_are_encoded_as_they_are_decoded() -> None:
    record = Record("a/1", 10.0, owner="a", value="http://a:1", heir="b")
    assert decode(APT, encode(record)) == record
    assert "value" not in encode(Record("a/1", 10, owner="a"))
    assert len(encode(Record("a/1", 10, value="v" * 2000))["value"].encode()) <= VALUE_BYTES_MAX


def test_a_full_record_has_room_for_a_longer_value() -> None:
    fields = encode(Record("a/1", 10, value="x", backtrace="b" * 9000, labels={"k": "l" * 2000}))
    later = {"value": "v" * VALUE_BYTES_MAX, "progress": progress_text("p" * 1000)}
    later["revoked"] = revocation_text(Revocation("b" * 200, "r" * 2000))
    full = {**fields, **later, "expires_at": "1795841720.123456", "acquired_at": "1795841720.123456"}
    assert sum(len(name.encode()) + len(text.encode()) for name, text in full.items()) <= FIELDS_BYTES_MAX


def test_a_server_that_expires_records_shows_a_leader_as_long_as_it_has_it() -> None:
    bench = Bench(replace(NONE, clock=StoreClock.SERVER_EXPIRES))
    grant = elected(bench, "a")
    bench.now += 5
    assert leader(bench) is not None
    bench.store.perform(Remove(APT, grant.lease.incarnation))
    assert leader(bench) is None


def test_an_ended_term_is_left_by_a_member_too() -> None:
    state = LeaseState(LeaseId(APT, "a/1", "1", 10), Bench().settings, 10, 0, is_owner=False)
    state.lose(LossReason.ENDED)
    assert may_remove_after_loss(state, 100)
