"""The life of a lease is a table: every state, every event; and the arithmetic of rounds."""

from __future__ import annotations

import pytest

from lockstead.errors import LossReason, OutcomeUnknown
from lockstead.protocol.context import LeaseId
from lockstead.protocol.lifecycle import TABLE, Action, Event, LeaseState, State
from lockstead.renewal import retry_after
from lockstead.settings import Settings
from lockstead.values import Name

LEASE = LeaseId(Name("apt"), "a", "1", 300.0)
SETTINGS = Settings.make(renew_every=37.5, max_failures=3)

BECOMES = {
    State.HELD: {Event.RENEWED: State.HELD, Event.LOSE: State.LOST, Event.LEAVE: State.LEAVING, Event.LEFT: State.LEFT},
    State.LEAVING: {
        Event.RENEWED: State.LEAVING,
        Event.LOSE: State.LEAVING,
        Event.LEAVE: State.LEAVING,
        Event.LEFT: State.LEFT,
    },
    State.LEFT: dict.fromkeys(Event, State.LEFT),
    State.LOST: dict.fromkeys(Event, State.LOST),
}


def held(**fields: object) -> LeaseState:
    return LeaseState(LEASE, SETTINGS, deadline=297.0, renewed_at=0.0, **fields)  # type: ignore[arg-type]


def in_state(state: State) -> LeaseState:
    lease_state = held()
    match state:
        case State.LEAVING:
            lease_state.leave()
        case State.LEFT:
            lease_state.left()
        case State.LOST:
            lease_state.lose(LossReason.TAKEN)
        case State.HELD:
            pass
    return lease_state


def push(lease_state: LeaseState, event: Event) -> None:
    match event:
        case Event.RENEWED:
            lease_state.renewed(10.0, 307.0, 11.0)
        case Event.LOSE:
            lease_state.lose(LossReason.GONE)
        case Event.LEAVE:
            lease_state.leave()
        case Event.LEFT:
            lease_state.left()


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_state_does_what_the_table_says(state: State, event: Event) -> None:
    assert TABLE[state, event] is BECOMES[state][event]
    lease_state = in_state(state)
    push(lease_state, event)
    assert lease_state.state is BECOMES[state][event]


def test_the_table_is_total() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize("state", [State.LEAVING, State.LEFT, State.LOST])
def test_only_a_held_lease_is_believed_or_owed_anything(state: State) -> None:
    lease_state = in_state(state)
    assert not lease_state.believes(0.0)
    assert lease_state.wake_at() == float("inf")
    assert lease_state.next_action(1e9) is Action.NOTHING


def test_a_late_success_never_revives_a_lost_lease() -> None:
    lease_state = in_state(State.LOST)
    lease_state.renewed(100.0, 397.0, 101.0)
    assert (lease_state.state, lease_state.deadline) == (State.LOST, 297.0)


def test_a_loss_is_noted_exactly_once_and_keeps_its_first_reason() -> None:
    lease_state = held()
    assert lease_state.lose(LossReason.REVOKED, "why")
    assert not lease_state.lose(LossReason.GONE)
    assert (lease_state.reason, lease_state.detail) == (LossReason.REVOKED, "why")


def test_a_renewal_is_due_renew_every_after_the_last_send() -> None:
    assert held().due_at == 37.5
    assert held(jitter=1.0).due_at == pytest.approx(37.5 * 0.9)
    lease_state = held()
    lease_state.renewed(40.0, 337.0, 45.0)
    assert lease_state.due_at == 77.5


def test_a_failed_renewal_is_retried_after_a_24th_of_the_ttl() -> None:
    lease_state = held()
    lease_state.sending(37.5)
    lease_state.failed(40.0, OutcomeUnknown("lost"))
    assert lease_state.due_at == 40.0 + retry_after(300)
    assert (lease_state.state, lease_state.deadline) == (State.HELD, 297.0)
    assert lease_state.next_action(lease_state.due_at) is Action.RENEW


def test_three_failed_rounds_are_unreachable_at_half_the_ttl() -> None:
    lease_state, now = held(), 37.5
    while True:
        match lease_state.next_action(now):
            case Action.RENEW:
                lease_state.sending(now)
                lease_state.failed(now + 0.01, OutcomeUnknown("refused"))
            case Action.NOTIFY_LOSS:
                break
            case Action.NOTHING:
                now = lease_state.wake_at()
    assert lease_state.reason is LossReason.UNREACHABLE
    assert now == pytest.approx(150.0, abs=15)


def test_quick_refusals_in_one_round_count_once() -> None:
    lease_state = held()
    for attempt in range(20):
        lease_state.sending(37.5 + attempt)
        lease_state.failed(37.5 + attempt, OutcomeUnknown("refused"))
    assert lease_state.failures == 0
    lease_state.next_action(75.0)
    assert lease_state.failures == 1


def test_h33_a_renewal_that_waits_to_be_sent_begins_no_round() -> None:
    lease_state = held()
    lease_state.queue()
    assert lease_state.next_action(lease_state.due_at) is Action.NOTHING
    for second in range(38, 247):
        assert lease_state.next_action(float(second)) is Action.NOTHING
    assert lease_state.failures == 0


def test_h33_a_retry_that_waits_to_be_sent_ends_the_failed_round() -> None:
    lease_state = held()
    lease_state.sending(37.5)
    lease_state.failed(38.0, OutcomeUnknown("lost"))
    lease_state.queue()
    assert lease_state.next_action(75.0) is Action.NOTHING
    assert (lease_state.failures, lease_state.round_started_at) == (1, None)
    assert lease_state.next_action(200.0) is Action.NOTHING
    assert lease_state.failures == 1
    lease_state.sending(200.0)
    assert lease_state.next_action(237.5) is Action.NOTHING
    assert lease_state.failures == 2


def test_a_round_that_hangs_is_looked_at_when_it_ends() -> None:
    lease_state = held()
    lease_state.sending(37.5)
    assert lease_state.wake_at() == 75.0


@pytest.mark.parametrize("state", [State.LEAVING, State.LEFT, State.LOST])
def test_nothing_is_sent_for_a_lease_that_is_not_held(state: State) -> None:
    lease_state = in_state(state)
    assert lease_state.next_action(lease_state.due_at) is Action.NOTHING


def test_the_next_renewal_counts_from_the_last_success() -> None:
    lease_state = held()
    lease_state.sending(37.5)
    lease_state.renewed(37.5, 334.5, 38.0)
    assert lease_state.renewed_at == 37.5
    assert lease_state.next_action(75.0) is Action.RENEW


def test_a_success_that_renewed_earlier_is_not_retried_at_once() -> None:
    lease_state = held()
    lease_state.sending(100.0)
    lease_state.renewed(60.0, 357.0, 101.0)
    assert lease_state.due_at == 100.0 + retry_after(300)


def test_a_success_ends_the_count_of_failed_rounds() -> None:
    lease_state = held()
    lease_state.sending(37.5)
    lease_state.failed(38.0, OutcomeUnknown("lost"))
    lease_state.next_action(75.0)
    lease_state.renewed(80.0, 377.0, 81.0)
    assert (lease_state.failures, lease_state.round_started_at, lease_state.last_error) == (0, None, None)


def test_one_renewal_at_a_time() -> None:
    lease_state = held()
    assert lease_state.next_action(37.5) is Action.RENEW
    lease_state.sending(37.5)
    assert lease_state.next_action(50.0) is Action.NOTHING


def test_the_loss_is_told_at_the_deadline_less_the_abort_margin() -> None:
    lease_state = held()
    assert lease_state.notify_at == 297.0 - 50.0
    assert lease_state.next_action(lease_state.notify_at - 1e-6) is not Action.NOTIFY_LOSS
    assert held().next_action(lease_state.notify_at) is Action.NOTIFY_LOSS


def test_an_answer_that_is_processed_at_the_deadline_is_ignored() -> None:
    lease_state = held()
    lease_state.renewed(250.0, 547.0, 297.0)
    assert lease_state.reason is LossReason.EXPIRED
    early = held()
    early.renewed(250.0, 547.0, 296.999)
    assert early.believes(500.0)


def test_a_deadline_never_moves_back() -> None:
    lease_state = held()
    lease_state.renewed(1.0, 200.0, 2.0)
    assert lease_state.deadline == 297.0


def test_a_registration_renewed_too_late_extends_nothing() -> None:
    registration = LeaseId(Name("apt"), "m", "2", 300.0)
    lease_state = held(is_owner=False, registration=registration, record_deadline=900.0, registration_deadline=297.0)
    lease_state.registered(500.0, 297.0)
    assert lease_state.deadline == 297.0
    lease_state.registered(500.0, 296.0)
    assert lease_state.deadline == 500.0


def test_a_closing_lease_leaves_a_members_deadline_unchanged() -> None:
    registration = LeaseId(Name("apt"), "m", "2", 300.0)
    lease_state = held(is_owner=False, registration=registration, registration_deadline=500.0)
    lease_state.renewed(50.0, None, 51.0)
    assert (lease_state.state, lease_state.deadline) == (State.HELD, 297.0)


def test_leave_says_whether_the_lease_was_held_until_then() -> None:
    lease_state = held()
    assert lease_state.leave()
    assert not lease_state.leave()
    assert not in_state(State.LOST).leave()
