"""The keeper's plan: nobody is forgotten, nobody is due early, and it stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstead.errors import LossReason
from lockstead.protocol.lifecycle import Tenure
from lockstead.protocol.rota import Rota
from lockstead.protocol.terms import LeaseId
from lockstead.settings import Settings
from lockstead.values import Name

SETTINGS = Settings.make()
NEVER = float("inf")


def tenure(renewed_at: float, key: str = "apt") -> Tenure:
    return Tenure(LeaseId(Name(key), "a", "1", 300.0), SETTINGS, renewed_at + 297.0, renewed_at)


def test_an_empty_rota_never_wakes() -> None:
    rota = Rota()
    assert rota.wake_at() == NEVER
    assert rota.due(1e9) == []
    assert len(rota) == 0


def test_the_first_duty_of_all_is_when_it_wakes() -> None:
    rota = Rota()
    for renewed_at in (50.0, 10.0, 30.0):
        rota.plan(tenure(renewed_at))
    assert rota.wake_at() == 47.5
    assert [one.renewed_at for one in rota.due(67.5)] == [10.0, 30.0]
    assert len(rota) == 1


def test_leases_of_several_keys_are_planned_each_by_itself() -> None:
    rota, one, other = Rota(), tenure(0.0), tenure(10.0, key="deb")
    rota.plan(one)
    rota.plan(other)
    assert rota.due(47.5) == [one, other]


def test_who_was_planned_anew_is_due_at_the_new_instant_alone() -> None:
    rota, one = Rota(), tenure(0.0)
    rota.plan(one)
    one.renewed(100.0, 397.0, 101.0)
    rota.plan(one)
    assert rota.wake_at() == 137.5
    assert rota.due(100.0) == []
    assert rota.due(137.5) == [one]


def test_who_was_dropped_is_never_due() -> None:
    rota, one = Rota(), tenure(0.0)
    rota.plan(one)
    rota.drop(one)
    rota.drop(one)
    assert rota.due(1e9) == []


def test_a_lost_tenure_drops_itself_when_it_is_planned() -> None:
    rota, one = Rota(), tenure(0.0)
    rota.plan(one)
    one.lose(LossReason.GONE)
    rota.plan(one)
    assert len(rota) == 0
    assert rota.wake_at() == NEVER


def test_the_heap_does_not_grow_with_what_was_dropped() -> None:
    rota, stays = Rota(), tenure(0.0)
    rota.plan(stays)
    for _ in range(10_000):
        passes = tenure(1.0)
        rota.plan(passes)
        rota.drop(passes)
    assert len(rota._heap) < 100
    assert rota.due(1e9) == [stays]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["plan", "renew", "drop"]), st.floats(0, 200)), max_size=40)
)
def test_a_rota_gives_out_exactly_what_is_due(steps: list[tuple[int, str, float]]) -> None:
    rota, all_of_them = Rota(), [tenure(float(number)) for number in range(10)]
    planned: set[int] = set()
    for number, verb, instant in steps:
        one = all_of_them[number]
        if verb == "drop":
            rota.drop(one)
            planned.discard(number)
            continue
        if verb == "renew":
            one.renewed(instant, instant + 297.0, 0.0)
        rota.plan(one)
        planned.add(number)
    due = {number for number in planned if all_of_them[number].wake_at() <= 100.0}
    given = {id(one) for one in rota.due(100.0)}
    assert given == {id(all_of_them[number]) for number in due}
    assert len(rota) == len(planned - due)


def test_what_stays_is_due_in_order_after_most_were_dropped_and_nothing_after_all_were() -> None:
    rota = Rota()
    tenures = [tenure(float(number * 37 % 200)) for number in range(200)]
    for one in tenures:
        rota.plan(one)
    stay = tenures[::6]
    for one in tenures:
        if one not in stay:
            rota.drop(one)
    assert len(rota._heap) < len(tenures), "the heap was made anew"
    for one in sorted(stay, key=Tenure.wake_at):
        assert rota.wake_at() == one.wake_at()
        assert rota.due(one.wake_at()) == [one]
    for one in tenures:
        rota.plan(one)
    for one in tenures:
        rota.drop(one)
    assert (len(rota), rota.wake_at()) == (0, NEVER)
