"""What a lease reports and how it is released, with a clock that does not advance: no request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.errors import LeaseLost, LossReason, StoreUnavailable
from lockstead.protocol.release import UsedLease
from lockstead.protocol.renew import Over
from lockstead.runtime.held import HeldLease, lost_by_ticket
from lockstead.values import LeaseOutcome, LeaseTicket, PreviousLease
from tests.runtime.keeping import Alone


class Held(HeldLease):
    """A lease that was just granted, and what is checked after its release."""

    def __init__(self, alone: Alone, token: int | None = 7) -> None:
        kept = alone.granted(alone.want(), token)
        super().__init__(alone.engine, kept, alone.engine.note_acquired(kept))
        self.lease_state, self.swept = kept.lease_state, list[Any]()
        alone.engine.sweep = lambda *words: self.swept.append(words)  # type: ignore[method-assign] # noted, not done

    def lose(self, reason: LossReason, detail: str = "") -> None:
        self._engine.keeper.lose(self._kept, reason, detail)


def test_a_lease_is_held_until_the_instant_of_its_deadline(alone: Alone) -> None:
    lease = Held(alone)
    assert (lease.key, lease.ttl, lease.token, lease.is_member) == ("apt", 300.0, 7, False)
    assert lease.previous_lease == PreviousLease(LeaseOutcome.CLEAN)
    assert (lease.is_held, lease.time_left, lease.lost_reason) == (True, 296.0, None)
    lease.check()
    with pytest.raises(RuntimeError, match=f"the lease of '{lease.holder}' on 'apt' is held"):
        lease.lost_error()
    alone.clock.at += 295.5
    assert (lease.is_held, lease.time_left) == (True, 0.5)
    alone.clock.at += 0.5
    assert (lease.is_held, lease.time_left) == (False, 0.0)
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    assert caught.value.reason is lease.lost_reason is LossReason.EXPIRED
    lease.lease_state.previous_lease = None
    assert lease.previous_lease == PreviousLease(LeaseOutcome.UNKNOWN)
    lease.lease_state.is_owner = False
    assert lease.is_member


def test_the_error_names_the_lost_lease_and_the_reason(alone: Alone) -> None:
    plain, drawn, ended = (Held(alone, token) for token in (None, 7, None))
    failure = StoreUnavailable("silent")
    plain.lease_state.last_error = failure
    plain.lose(LossReason.GONE)
    assert (plain.is_held, plain.time_left) == (False, 0.0)
    drawn.lose(LossReason.TAKEN, "by b")
    error = plain.lost_error()
    assert str(error) == f"the lease of '{plain.holder}' on 'apt' is lost, GONE: its record is gone"
    assert (error.reason, error.key, error.holder, error.token) == (LossReason.GONE, "apt", plain.holder, None)
    assert error.__cause__ is failure
    error = drawn.lost_error()
    assert str(error) == (
        f"the lease of '{drawn.holder}' on 'apt', token 7 is lost, TAKEN: another holder has it now (by b)"
    )
    assert (error.token, error.__cause__) == (7, None)
    assert ended._may_leave(alone.clock.at, unused=False)
    error = ended.lost_error()
    assert str(error) == (
        f"the lease of '{ended.holder}' on 'apt' has ended: it was released, detached or left to expire"
    )
    assert error.reason is LossReason.GONE


def test_progress_is_one_clean_line_of_a_thousand_characters_at_most(alone: Alone) -> None:
    lease = Held(alone)
    lease.progress("x" * 1001)
    assert lease._kept.progress == "x" * 1000
    lease.progress("a\nb")
    assert lease._kept.progress == "a b"


def test_a_ticket_names_the_lease(alone: Alone) -> None:
    lease = Held(alone)
    assert lease._ticket() == LeaseTicket(alone.store.url, "apt", lease.holder, "1", 300.0)
    assert repr(lease) == f"<Held 'apt' of '{lease.holder}': HELD>"
    with pytest.raises(TypeError, match="a lease cannot be pickled"):
        lease.__reduce__()


def test_a_detached_lease_is_not_lost_and_the_reverse(alone: Alone) -> None:
    lease, lost = Held(alone), Held(alone)
    lease._leave_to_others()
    assert (lease.is_held, lease._loss_at_exit()) == (False, None)
    with pytest.raises(LeaseLost, match="has ended"):
        lease._leave_to_others()
    lost.lose(LossReason.TAKEN)
    with pytest.raises(LeaseLost, match="TAKEN"):
        lost._leave_to_others()
    error = lost._loss_at_exit()
    assert error is not None
    assert error.reason is LossReason.TAKEN


def test_a_lease_is_released_once_and_can_be_acquired_again(alone: Alone) -> None:
    lease = Held(alone)
    assert lease._loss_at_exit() is None
    assert lease._may_leave(alone.clock.at, unused=False)
    assert alone.engine._owner_notes
    lease._end_release()
    assert (lease._is_ended, lease._owner_note, alone.engine._owner_notes, lease.swept) == (True, None, {}, [])
    assert lease.lease_state.state.name == "LEFT"
    assert not lease._may_leave(alone.clock.at, unused=False)
    assert lease._loss_at_exit() is None
    lease._ended()


def test_a_block_that_ended_by_itself_without_its_lease_has_lost_it(alone: Alone) -> None:
    closed, lost = Held(alone), Held(alone)
    closed.lease_state.leave()  # as a client does that is closed
    error = closed._loss_at_exit()
    assert error is not None
    assert error.reason is LossReason.GONE
    lost._was_left = True
    lost.lose(LossReason.REVOKED)
    assert lost._loss_at_exit() is not None


@pytest.mark.parametrize(
    ("reason", "seconds", "is_removed", "is_swept"),
    [
        (LossReason.REVOKED, 0, True, False),
        (LossReason.REVOKED, 296, False, False),
        (LossReason.TAKEN, 0, False, False),
        (LossReason.UNREACHABLE, 0, False, True),
    ],
)
def test_a_lost_lease_is_removed_once_and_only_if_unchanged(
    alone: Alone, reason: LossReason, seconds: int, is_removed: bool, is_swept: bool
) -> None:
    lease = Held(alone)
    lease.lose(reason)
    alone.clock.at += seconds
    assert lease._may_leave(alone.clock.at, unused=False) is is_removed
    assert lease._is_ended is not is_removed
    assert len(lease.swept) == is_swept
    assert not lease._may_leave(alone.clock.at, unused=False)
    assert lease._is_ended
    assert len(lease.swept) == is_swept


@pytest.mark.parametrize(
    ("is_shared", "is_unused", "is_lost"),
    [(False, False, False), (False, False, True), (False, True, False), (True, True, False), (True, False, False)],
)
def test_a_silent_stores_lease_is_swept_later(alone: Alone, is_shared: bool, is_unused: bool, is_lost: bool) -> None:
    lease = Held(alone)
    lease.lease_state.shared = is_shared
    if is_lost:
        lease.lose(LossReason.REVOKED)
    assert lease._may_leave(alone.clock.at, unused=is_unused)
    lease._release_failed()
    lease._end_release()
    used = None if is_unused and not is_shared else UsedLease("1", is_shared=is_shared, is_clean=not is_lost)
    assert lease.swept == [(lease.lease_state.lease.name, lease.holder, lease.lease_state.settings, used)]


def test_an_unused_lease_is_noted_without_reading_members(alone: Alone) -> None:
    lease, member = Held(alone), Held(alone)
    lease._may_leave(alone.clock.at, unused=True)
    lease._may_leave(alone.clock.at, unused=False)
    assert lease.lease_state.unused
    member.lease_state.is_owner = False
    member._release_failed()
    assert not member.lease_state.unsettled
    member.lease_state.unsettled = True
    member._release_failed()
    assert member.lease_state.unsettled


def test_a_loss_at_the_exit_is_raised_or_added_as_a_note(alone: Alone) -> None:
    lease, other = Held(alone), Held(alone)
    lease._raise_at_exit(None, None)
    lease._raise_at_exit(None, KeyError())
    for one in (lease, other):
        one.lose(LossReason.TAKEN)
    lost = lease.lost_error()
    with pytest.raises(LeaseLost) as caught:
        lease._raise_at_exit(lost, None)
    assert caught.value is lost
    for error, notes in (
        (KeyError("mine"), [f"lockstead: {lost}"]),
        (other.lost_error(), [f"lockstead: {lost}"]),
        (lease.lost_error(), []),
    ):
        lease._raise_at_exit(lost, error)
        assert getattr(error, "__notes__", []) == notes


def test_who_comes_too_late_with_a_ticket_is_told_what_it_cannot_do() -> None:
    ticket = LeaseTicket("memory:", "apt", "a/1", "1", 300.0)
    error = lost_by_ticket(ticket, Over(LossReason.TAKEN, "by b"), "renew")
    assert str(error) == "cannot renew the lease of 'a/1' on 'apt', TAKEN: another holder has it now (by b)"
    assert (error.reason, error.key, error.holder) == (LossReason.TAKEN, "apt", "a/1")
    error = lost_by_ticket(ticket, Over(LossReason.GONE), "release")
    assert str(error) == "cannot release the lease of 'a/1' on 'apt', GONE: its record is gone"


def test_callbacks_are_the_keepers(alone: Alone) -> None:
    lease = Held(alone)
    lease.on_lost(int)
    assert len(lease._kept.callbacks) == 1
