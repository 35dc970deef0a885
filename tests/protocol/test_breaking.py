"""What an operator sees and breaks, what a break leaves behind, and what is reported of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Create, Extend, Pause, Read, Remove, Replace
from lockstead.protocol.expiry import FOREIGN_ALLOWANCE
from lockstead.protocol.members import drain
from lockstead.protocol.record import Record, Revocation, decode, encode
from lockstead.protocol.release import Broken, Outcome, UsedLease, audit_entry, break_lease, end, read_status, sweep
from lockstead.protocol.renew import renew
from tests.protocol.bench import APT, Bench, Session
from tests.simulation.store import NONE, SHARED

OPERATOR = Revocation("op", "stuck")
FOREIGN = replace(SHARED, foreign=True)


def breaking(bench: Bench, *, now: bool, incarnation: str | None = None) -> Session:
    script = break_lease(APT, OPERATOR, bench.context(), now=now, incarnation=incarnation, salt="s")
    return bench.session(script)


def put(bench: Bench, fields: dict[str, str]) -> None:
    bench.store.perform(Create(APT, fields))


def sees(bench: Bench) -> Any:
    return bench.session(read_status(APT, bench.context())).run()


@pytest.mark.parametrize("now", [False, True])
def test_a_break_returns_what_was_done_and_the_max_overlap(now: bool) -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    session = breaking(bench, now=now).commit()
    if now:
        assert 0 < session.expect(Extend).lifetime < 0.01, "other programs find it expired at once"
    broken = session.run()
    assert isinstance(broken, Broken)
    assert (broken.revoked, broken.removed, broken.record.holder) == (not now, now, "a")
    assert broken.max_overlap == pytest.approx(10, abs=0.2)
    standing = bench.standing()
    assert standing is not None
    left = decode(APT, standing.fields)
    assert (left.revoked, left.ended) == (OPERATOR, now)
    assert bench.session(renew(lease, {}, bench.context())).run().reason is LossReason.REVOKED


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("lock_delay", [0.0, 5.0])
def test_a_break_leaves_free_other_and_vanished_leases_alone(now: bool, lock_delay: float) -> None:
    bench = Bench(ttl=10, lock_delay=lock_delay)
    assert breaking(bench, now=now).run() is None
    lease = bench.granted("a").lease
    assert breaking(bench, now=now, incarnation=f"{lease.incarnation}0").run() is None
    meanwhile = breaking(bench, now=now).commit()
    bench.store.erase(APT)
    assert meanwhile.run() is None
    bench.granted("b")
    standing = bench.standing()
    assert standing is not None
    bench.store.perform(Extend(APT, {"ended": "1"}, standing.incarnation))
    assert breaking(bench, now=now).run() is None


def test_an_unreadable_record_is_removed_only_by_a_break_at_once() -> None:
    damaged = {**encode(Record("a", 10.0)), "ttl": "soon"}
    bench = Bench()
    put(bench, damaged)
    with pytest.raises(StoreRefused, match="is damaged"):
        breaking(bench, now=False).run()
    session = breaking(bench, now=True).commit()
    session.expect(Remove)
    broken = session.run()
    assert (broken.removed, broken.record.holder, broken.max_overlap) == (True, "a", None)
    assert bench.standing() is None
    for version in ("2", "theirs", None):
        others = Bench()
        put(others, {name: text for name, text in {**damaged, "v": version}.items() if text is not None})
        with pytest.raises(StoreRefused):
            breaking(others, now=True).run()
        assert others.standing() is not None


def test_a_foreign_lock_broken_at_once_is_removed_unwritten() -> None:
    bench = Bench(FOREIGN)
    put(bench, {"identity": "gem", "expires_at": "5"})
    session = breaking(bench, now=True).commit()
    session.expect(Remove)
    assert session.run().removed
    assert bench.standing() is None


def test_a_tombstone_names_holder_and_breaker_for_the_lock_delay() -> None:
    bench = Bench(ttl=10, lock_delay=0.5)
    bench.granted("a/1", owner="a")
    session = breaking(bench, now=True).commit()
    tomb = session.expect(Replace)
    assert (tomb.lifetime, tomb.min_retention) == (0.5, bench.context().min_retention(0.5))
    broken = session.run()
    assert (broken.revoked, broken.removed) == (False, True)
    standing = bench.standing()
    assert standing is not None
    left = decode(APT, standing.fields)
    assert (left.tombstone, left.owner, left.revoked, left.holder) == (True, "a", OPERATOR, "tombstone/s")


def test_a_lease_renewed_during_a_break_gets_its_tombstone() -> None:
    bench = Bench(ttl=10, lock_delay=5)
    lease = bench.granted("a").lease
    session = breaking(bench, now=True).commit()
    bench.session(renew(lease, {}, bench.context())).run()
    session.commit().expect(Read)
    assert session.run().removed
    assert bench.holder == "tombstone/s"
    other = Bench(ttl=10, lock_delay=5)
    other.granted("a")
    session = breaking(other, now=True).commit()
    other.store.erase(APT)
    other.granted("b")
    session.commit().expect(Read)
    assert session.run() is None
    assert other.holder == "b"


@pytest.mark.parametrize("answer", [Absent(), Conflict()])
def test_a_break_that_the_store_did_not_carry_out_is_none(answer: Any) -> None:
    bench = Bench()
    bench.granted("a")
    assert breaking(bench, now=True).commit().answer(answer).outcome is None
    session = breaking(bench, now=False).commit().answer(answer)
    session.expect(Read)
    assert session.answer(Absent()).is_over
    assert session.outcome is None


def test_of_two_who_revoke_a_lease_one_does_and_the_other_learns_it() -> None:
    bench = Bench(ttl=10)
    bench.granted("a")
    late = breaking(bench, now=False).commit()
    assert late.expect(Extend).revision is not None
    assert breaking(bench, now=False).run().revoked
    revoked_at = bench.standing()
    done = late.run()
    assert (done.revoked, done.removed, done.record.revoked) == (False, False, OPERATOR)
    assert bench.standing() == revoked_at


def test_a_lease_renewed_during_a_break_is_revoked_all_the_same() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    session = breaking(bench, now=False).commit()
    bench.session(renew(lease, {}, bench.context())).run()
    assert session.run().revoked
    standing = bench.standing()
    assert standing is not None
    assert decode(APT, standing.fields).revoked == OPERATOR


def test_a_record_that_never_stands_still_ends_a_break_with_an_error() -> None:
    bench = Bench(ttl=10)
    bench.granted("a")
    session = breaking(bench, now=False)
    with pytest.raises(StoreUnavailable, match="changed with each of 16 looks"):
        for _ in range(16):
            session.commit().answer(Conflict())


@pytest.mark.parametrize("removed", [False, True])
def test_an_audit_entry_says_who_broke_what_and_when(removed: bool) -> None:
    bench = Bench()
    put(bench, encode(Record("a/1", 10.0, owner="a", token=7, acquired_at=3.5)))
    seen = replace(bench.store.perform(Read(APT)), token=9)
    broken = Broken(decode(APT, seen.fields), seen, not removed, removed, None)
    part, entry = audit_entry(broken, OPERATOR, 12.5, "shared")
    assert part.startswith("00000000003500-")
    assert entry == {
        "at": "12.5",
        "by": "op",
        "reason": "stuck",
        "what": "removed" if removed else "revoked",
        "holder": "a/1",
        "owner": "a",
        "incarnation": seen.incarnation,
        "mode": "shared",
        "token": "7",
    }
    native = replace(broken, record=replace(broken.record, token=None))
    assert audit_entry(native, OPERATOR, 12.5, "n")[1]["token"] == "9"
    neither = replace(native, seen=replace(seen, token=None))
    assert "token" not in audit_entry(neither, OPERATOR, 12.5, "n")[1]


def test_an_audit_entry_has_one_name_whoever_writes_it_and_another_for_each_lease() -> None:
    bench = Bench()
    put(bench, encode(Record("a/1", 10.0, owner="a", acquired_at=3.5)))
    seen = bench.store.perform(Read(APT))
    broken = Broken(decode(APT, seen.fields), seen, True, False, None)

    def name(broken: Broken, by: str = "op", wall_now: float = 12.5, mode: str = "exclusive") -> str:
        return audit_entry(broken, Revocation(by, "stuck"), wall_now, mode)[0]

    first = name(broken)
    assert name(replace(broken, revoked=False), "another", 99.0) == first
    others = [
        name(replace(broken, removed=True)),
        name(broken, mode="permit/1"),
        name(replace(broken, seen=replace(seen, incarnation="later"))),
        name(replace(broken, record=replace(broken.record, holder="a/2"))),
        name(replace(broken, record=replace(broken.record, acquired_at=3.75))),
    ]
    assert len({first, *others}) == 6
    foreign = replace(broken, record=replace(broken.record, holder="", ttl=None))
    assert name(foreign, wall_now=1.0) != name(foreign, wall_now=2.0), "another program's incarnations may repeat"


def test_a_look_says_whether_a_record_is_over() -> None:
    bench = Bench(ttl=10)
    assert sees(bench) is None
    bench.granted("a")
    assert (sees(bench).age, sees(bench).is_expired) == (0.0, False)
    bench.now += 9
    assert (sees(bench).age, sees(bench).is_expired) == (9.0, False)
    bench.now += 2
    assert (sees(bench).age, sees(bench).is_expired) == (11.0, True)
    for traits in (SHARED, NONE):
        shown = Bench(traits, ttl=10)
        shown.granted("a")
        dead = shown.session(read_status(APT, shown.context()))
        dead.answer(replace(shown.store.perform(Read(APT)), dead=True))
        assert dead.outcome.is_expired


def test_foreign_locks_are_judged_by_expires_at_or_foreign_ttl() -> None:
    for expires_in, assumed, is_expired in (
        (-FOREIGN_ALLOWANCE - 1, None, True),
        (-FOREIGN_ALLOWANCE + 1, None, False),
        (500.0, 1.0, False),
        (None, 1.0, True),
        (None, 500.0, False),
        (None, None, False),
    ):
        bench = Bench(FOREIGN, foreign_ttl=assumed)
        said = {} if expires_in is None else {"expires_at": str(bench.now + 50 + expires_in)}
        put(bench, {"identity": "gem", **said})
        bench.now += 50
        assert sees(bench).is_expired is is_expired, (expires_in, assumed)


def test_ending_a_lease_in_its_record_is_retried_then_raised() -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    session = bench.session(end(lease, bench.context()))
    assert 0 < session.expect(Extend).lifetime < 0.01
    for _ in range(3):
        session.late()
        session.expect(Pause)
        session.wait()
        session.expect(Extend)
    with pytest.raises(OutcomeUnknown):
        session.late()
    assert bench.session(end(lease, bench.context())).run() is Outcome.ENDED
    assert bench.session(end(replace(lease, incarnation="0"), bench.context())).run() is Outcome.NOT_OURS


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_sweep_removes_released_records_and_marks_lost_ones(is_clean: bool) -> None:
    bench = Bench(ttl=10)
    lease = bench.granted("a").lease
    session = bench.session(sweep(APT, "a", bench.context(), UsedLease(lease.incarnation, is_clean=is_clean))).commit()
    if is_clean:
        session.expect(Remove)
    else:
        assert 0 < session.expect(Extend).lifetime < 0.01
    assert session.run() is True
    assert (bench.standing() is None) is is_clean


def test_a_drain_waits_for_the_owners_and_unreadable_members() -> None:
    bench = Bench(ttl=1000)
    lease = bench.granted("a").lease
    bench.joined(lease, "m1")
    registration = bench.joined(lease, "m2").registration

    def is_empty(owner_filter: str) -> bool:
        script = drain(
            lease, bench.context(), bound_at=bench.now, salt="s", owner_filter=lambda owner: owner == owner_filter
        )
        empty: bool = bench.session(script).run()
        return empty

    assert [is_empty(owner_filter) for owner_filter in ("m1", "m2", "m3")] == [False, False, True]
    bench.store.perform(Extend(registration.name, {"owner": ""}, registration.incarnation))
    assert not is_empty("m2"), "without an owner, its holder says whose it is"
    bench.store.perform(Extend(registration.name, {"ttl": "soon"}, registration.incarnation))
    assert not is_empty("m3")
