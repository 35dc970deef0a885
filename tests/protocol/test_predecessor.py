"""H32: an unclean end reaches the next holder that works, even if others acquired in between and never worked."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.protocol.acquire import Grant
from lockstead.protocol.commands import Create, Extend, Read, Remove, Replace, Traits
from lockstead.protocol.previous_lease import FORGOTTEN
from lockstead.protocol.record import Record, Revocation, decode, encode
from lockstead.protocol.release import Outcome, UsedLease, break_lease, give_back, release, sweep
from lockstead.values import LeaseOutcome, PreviousLease
from tests.protocol.bench import APT, Bench
from tests.protocol.test_rules import overdue
from tests.simulation.expiring import EXPIRING
from tests.simulation.store import DATED, NONE, SHARED

EVERY = pytest.mark.parametrize("traits", [SHARED, DATED, NONE, EXPIRING], ids=lambda traits: traits.scheme)


def broken(bench: Bench, holder: str = "a") -> PreviousLease:
    """A holder is cut off by an operator; return what the next one must be told, on any kind of store."""
    bench.granted(holder)
    cut = break_lease(APT, Revocation("somebody", "a test"), bench.context(), now=True, incarnation=None, salt="s")
    assert bench.session(cut).run().removed
    return PreviousLease(LeaseOutcome.REVOKED, holder, holder)


def taken_over(bench: Bench, holder: str) -> Grant:
    grant = bench.asking(holder, tries_once=True).run()
    assert isinstance(grant, Grant)
    return grant


def is_told(bench: Bench, holder: str = "next") -> PreviousLease:
    return taken_over(bench, holder).previous_lease


@EVERY
@pytest.mark.parametrize("shared", [False, True])
def test_h32_an_unused_lease_passes_on_its_predecessors_end(traits: Traits, shared: bool) -> None:
    bench = Bench(traits)
    before = broken(bench)
    for holder in ("b", "c"):
        grant = taken_over(bench, holder)
        assert grant.previous_lease == before
        lease_state = bench.lease_state(grant, previous_lease=grant.previous_lease, unused=True, shared=shared)
        giving = bench.session(give_back(lease_state, bench.context(), bound_at=bench.now))
        assert giving.run() is Outcome.ENDED
    assert is_told(bench) == before


@EVERY
@pytest.mark.parametrize("is_known", [False, True])
def test_an_unused_lease_with_nothing_to_pass_on_is_removed(traits: Traits, is_known: bool) -> None:
    bench = Bench(traits)
    grant = bench.granted("a")
    lease_state = bench.lease_state(grant, previous_lease=grant.previous_lease if is_known else None, unused=True)
    assert bench.session(give_back(lease_state, bench.context(), bound_at=bench.now)).run() is Outcome.REMOVED
    assert bench.standing() is None


@EVERY
def test_h32_a_swept_takeover_without_a_reply_passes_it_on(traits: Traits) -> None:
    bench = Bench(traits)
    before = broken(bench)
    session = bench.asking("b", tries_once=True).commit().commit()
    session.expect(Replace)
    session.lose()
    session.script.close()
    assert bench.session(sweep(APT, "b", bench.context())).run() is True
    assert bench.session(sweep(APT, "b", bench.context())).run() is False, "the second look finds it done"
    assert is_told(bench) == before


@EVERY
def test_h32_a_takeover_without_a_reply_is_adopted_informed(traits: Traits) -> None:
    bench = Bench(traits)
    before = broken(bench)
    session = bench.asking("b").commit().commit()
    session.expect(Replace)
    assert session.lose().run().previous_lease == before


def test_h32_an_adopted_revoked_takeover_stays_informed() -> None:
    bench = Bench()
    before = broken(bench)
    session = bench.asking("b").commit().commit()
    session.expect(Replace)
    session.lose()
    entry = bench.standing()
    assert entry is not None
    revoking = break_lease(APT, Revocation("x", "y"), bench.context(), now=False, incarnation=None, salt="s")
    bench.session(revoking).run()
    grant = session.run()
    assert grant.lease.incarnation != entry.incarnation
    assert grant.previous_lease == before


def test_h32_a_revoked_unnoticed_takeover_passes_it_on() -> None:
    bench = Bench()
    before = broken(bench)
    session = bench.asking("b").commit().commit()
    session.expect(Replace)
    session.lose()
    cut = break_lease(APT, Revocation("x", "y"), bench.context(), now=True, incarnation=None, salt="s")
    bench.session(cut).run()
    assert session.run().previous_lease == before


@EVERY
def test_h32_who_worked_and_gave_back_has_put_it_right(traits: Traits) -> None:
    bench = Bench(traits)
    broken(bench)
    lease = taken_over(bench, "b").lease
    assert bench.session(release(lease, bench.context(), shared=False, bound_at=bench.now, salt="b")).run().is_free
    assert is_told(bench).ending is (LeaseOutcome.UNKNOWN if traits is EXPIRING else LeaseOutcome.CLEAN)


def test_h32_who_died_at_work_is_told_instead_of_the_one_before() -> None:
    bench = Bench()
    broken(bench)
    taken_over(bench, "b")
    overdue(bench)
    assert is_told(bench) == PreviousLease(LeaseOutcome.EXPIRED, "b", "b")


@pytest.mark.parametrize("is_clean", [True, False])
def test_h32_a_late_write_of_an_acquisition_is_no_predecessor(is_clean: bool) -> None:
    bench = Bench()
    late = Create(APT, bench.want("a").fields, lifetime=10.0, min_retention=10.0)
    bench.store.perform(late)
    used = UsedLease("an earlier incarnation", is_clean=is_clean)
    command = bench.session(sweep(APT, "a", bench.context(), used)).commit().expect(Remove)
    bench.store.perform(command)
    assert is_told(bench).ending is LeaseOutcome.CLEAN


def test_h32_a_lease_that_was_lost_and_is_swept_says_so() -> None:
    bench = Bench()
    lease = bench.granted("a").lease
    bench.session(sweep(APT, "a", bench.context(), UsedLease(lease.incarnation, is_clean=False))).run()
    assert is_told(bench) == PreviousLease(LeaseOutcome.EXPIRED, "a", "a")


def test_h32_a_store_that_forgot_a_record_informs_two_holders() -> None:
    bench = Bench()
    session = bench.asking("a")
    command = session.expect(Create)
    assert command.forgotten == FORGOTTEN
    grant = session.answer(
        bench.store.perform(Create(APT, {**command.fields, **command.forgotten}, command.lifetime))
    ).outcome
    assert grant.previous_lease.ending is LeaseOutcome.UNKNOWN
    assert bench.session(sweep(APT, "a", bench.context())).run() is True
    assert is_told(bench).ending is LeaseOutcome.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"ending":"NEVER"}',
        '{"ending":["CLEAN"]}',
        pytest.param("[" * 60_000, id="deep"),
        '{"owner":"a"}',
    ],
)
def test_h24_h32_an_unreadable_predecessor_is_unknown(text: str) -> None:
    bench = Bench()
    bench.granted("a")
    overdue(bench)
    entry = bench.standing()
    assert entry is not None
    entry.fields = {**entry.fields, "unused": "1", "before": text}
    assert is_told(bench) == PreviousLease(LeaseOutcome.UNKNOWN)


def test_the_predecessor_in_a_record_is_bounded_and_decoded() -> None:
    before = PreviousLease(LeaseOutcome.EXPIRED, "o" * 5000, "h" * 5000)
    fields = encode(Record("b", 10.0, before=before, unused=True, ended=True))
    read: Any = decode(APT, fields)
    assert read.before == PreviousLease(LeaseOutcome.EXPIRED, "o" * 200, "h" * 200)
    assert read.unused
    bench = Bench()
    bench.store.perform(Create(APT, {**bench.want("x").fields, "owner": "o" * 6000, "ended": "1"}))
    session = bench.asking(bench.want("b", backtrace="b" * 7000)).commit().commit()
    written = session.expect(Replace).fields
    assert sum(len(key) + len(value) for key, value in written.items()) < 8192 - 200
    assert session.commit().outcome.previous_lease.owner == "o" * 6000


def test_who_renews_keeps_what_its_record_says_of_the_one_before() -> None:
    bench = Bench()
    broken(bench)
    lease = taken_over(bench, "b").lease
    bench.store.perform(Extend(APT, {}, lease.incarnation))
    assert "before" in bench.store.perform(Read(APT)).fields
