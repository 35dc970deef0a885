"""The keeper's schedule: no lease is forgotten or due early, and it stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstead.errors import LossReason
from lockstead.protocol.context import LeaseId
from lockstead.protocol.lifecycle import LeaseState
from lockstead.protocol.schedule import RenewalSchedule
from lockstead.settings import Settings
from lockstead.values import Name

SETTINGS = Settings.make(renew_every=37.5, max_failures=3)
NEVER = float("inf")


def lease_state(renewed_at: float, key: str = "apt") -> LeaseState:
    return LeaseState(LeaseId(Name(key), "a", "1", 300.0), SETTINGS, renewed_at + 297.0, renewed_at)


def test_an_empty_rota_never_wakes() -> None:
    schedule = RenewalSchedule()
    assert schedule.wake_at() == NEVER
    assert schedule.due(1e9) == []
    assert len(schedule) == 0


def test_the_first_duty_of_all_is_when_it_wakes() -> None:
    schedule = RenewalSchedule()
    for renewed_at in (50.0, 10.0, 30.0):
        schedule.plan(lease_state(renewed_at))
    assert schedule.wake_at() == 47.5
    assert [one.renewed_at for one in schedule.due(67.5)] == [10.0, 30.0]
    assert len(schedule) == 1


def test_leases_of_several_keys_are_planned_each_by_itself() -> None:
    schedule, one, other = RenewalSchedule(), lease_state(0.0), lease_state(10.0, key="deb")
    schedule.plan(one)
    schedule.plan(other)
    assert schedule.due(47.5) == [one, other]


def test_who_was_planned_anew_is_due_at_the_new_instant_alone() -> None:
    schedule, one = RenewalSchedule(), lease_state(0.0)
    schedule.plan(one)
    one.renewed(100.0, 397.0, 101.0)
    schedule.plan(one)
    assert schedule.wake_at() == 137.5
    assert schedule.due(100.0) == []
    assert schedule.due(137.5) == [one]


def test_who_was_dropped_is_never_due() -> None:
    schedule, one = RenewalSchedule(), lease_state(0.0)
    schedule.plan(one)
    schedule.drop(one)
    schedule.drop(one)
    assert schedule.due(1e9) == []


def test_a_lost_lease_drops_itself_when_it_is_planned() -> None:
    schedule, one = RenewalSchedule(), lease_state(0.0)
    schedule.plan(one)
    one.lose(LossReason.GONE)
    schedule.plan(one)
    assert len(schedule) == 0
    assert schedule.wake_at() == NEVER


def test_the_heap_does_not_grow_with_what_was_dropped() -> None:
    schedule, stays = RenewalSchedule(), lease_state(0.0)
    schedule.plan(stays)
    for _ in range(10_000):
        passes = lease_state(1.0)
        schedule.plan(passes)
        schedule.drop(passes)
    assert len(schedule._heap) < 100
    assert schedule.due(1e9) == [stays]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["plan", "renew", "drop"]), st.floats(0, 200)), max_size=40)
)
def test_a_rota_gives_out_exactly_what_is_due(steps: list[tuple[int, str, float]]) -> None:
    schedule, all_of_them = RenewalSchedule(), [lease_state(float(number)) for number in range(10)]
    planned: set[int] = set()
    for number, verb, instant in steps:
        one = all_of_them[number]
        if verb == "drop":
            schedule.drop(one)
            planned.discard(number)
            continue
        if verb == "renew":
            one.renewed(instant, instant + 297.0, 0.0)
        schedule.plan(one)
        planned.add(number)
    due = {number for number in planned if all_of_them[number].wake_at() <= 100.0}
    given = {id(one) for one in schedule.due(100.0)}
    assert given == {id(all_of_them[number]) for number in due}
    assert len(schedule) == len(planned - due)


def test_remaining_leases_are_due_in_order_after_many_drops() -> None:
    schedule = RenewalSchedule()
    lease_states = [lease_state(float(number * 37 % 200)) for number in range(200)]
    for one in lease_states:
        schedule.plan(one)
    stay = lease_states[::6]
    for one in lease_states:
        if one not in stay:
            schedule.drop(one)
    assert len(schedule._heap) < len(lease_states), "the heap was made anew"
    for one in sorted(stay, key=LeaseState.wake_at):
        assert schedule.wake_at() == one.wake_at()
        assert schedule.due(one.wake_at()) == [one]
    for one in lease_states:
        schedule.plan(one)
    for one in lease_states:
        schedule.drop(one)
    assert (len(schedule), schedule.wake_at()) == (0, NEVER)
