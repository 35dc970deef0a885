"""How a block that holds a lease is left: every line of the promise in turn."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import lockstead
from lockstead import Client, LeaseLost, LeaseOutcome, LossReason, NotAcquired, PreviousLease
from lockstead.events import LeaseDropped, LockEvent, Lost, Released, ReleaseFailed
from lockstead.protocol.commands import Command, Extend, Remove, TokenSource, Traits
from lockstead.values import Space
from tests.runtime.faulty import Faulty, SetClock, client_with, lose_answer, refuse, until


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def told() -> list[LockEvent]:
    return []


@pytest.fixture
def client(store: Faulty, told: list[LockEvent]) -> Iterator[Client]:
    with Client(store, listener=told.append) as client:
        yield client


def revoke(client: Client, key: str, lease: lockstead.Lease) -> None:
    """Break a lease and let its next renewal find out."""
    client.lock(key).break_lease(reason="a test", by="tester")
    until(lambda: not lease.is_held)


def test_a_returning_body_with_a_held_lease_frees_the_key(client: Client) -> None:
    with client.lock("apt").hold() as lease:
        assert lease.is_held
    assert client.lock("apt").inspect() is None
    assert not lease.is_held


def test_a_returning_body_with_a_lost_lease_raises_lease_lost(client: Client) -> None:
    with pytest.raises(LeaseLost, match="REVOKED") as caught, client.lock("apt", ttl=3).hold() as lease:
        revoke(client, "apt", lease)
    assert caught.value.reason is LossReason.REVOKED
    assert (caught.value.key, caught.value.holder) == ("apt", lease.holder)


def test_a_raising_body_with_a_lost_lease_gets_a_note(client: Client) -> None:
    with pytest.raises(KeyError, match="mine") as caught, client.lock("apt", ttl=3).hold() as lease:
        revoke(client, "apt", lease)
        raise KeyError("mine")
    assert ["lockstead: " in note and "REVOKED" in note for note in caught.value.__notes__] == [True]


def test_the_body_raised_and_the_lease_was_held_then_no_note_is_added(client: Client) -> None:
    with pytest.raises(KeyError) as caught, client.lock("apt").hold():
        raise KeyError("mine")
    assert not hasattr(caught.value, "__notes__")
    assert client.lock("apt").inspect() is None


def test_the_lease_lost_of_another_lease_passes_with_a_note_on_ours(client: Client) -> None:
    with pytest.raises(LeaseLost) as caught, client.lock("outer", ttl=3).hold() as outer:
        with client.lock("inner", ttl=3).hold() as inner:
            revoke(client, "outer", outer)
            revoke(client, "inner", inner)
    assert caught.value.key == "inner"
    assert any("'outer'" in note for note in caught.value.__notes__)


def test_a_release_that_fails_is_told_and_fails_no_finished_work(
    client: Client, store: Faulty, told: list[LockEvent]
) -> None:
    with client.lock("apt").hold():
        store.before = refuse
    assert [type(event) for event in told if isinstance(event, ReleaseFailed)] == [ReleaseFailed]
    assert store.count(Remove) >= 1


def test_an_explicit_release_that_fails_raises(client: Client, store: Faulty) -> None:
    lease = client.lock("apt").acquire()
    store.before = refuse
    with pytest.raises(lockstead.StoreUnavailable):
        lease.release()
    assert not lease.is_held


def test_h05_a_release_whose_answers_are_lost_is_looked_after_later(client: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=60).acquire()
    store.before = refuse
    with pytest.raises(lockstead.StoreUnavailable):
        lease.release()
    store.before = lambda _command: None
    # the sweep that is due at once may have met the refusal; the later one is the engine's own business
    client._engine.sweep_once(lockstead.values.Name("apt"), lease.holder, client.lock("apt", ttl=60).settings)
    assert client.lock("apt").inspect() is None


def test_h05_a_release_whose_answer_is_lost_touches_no_other_lock(client: Client, store: Faulty) -> None:
    lease = client.lock("apt").acquire()

    def lose_removal(command: object) -> None:
        if isinstance(command, Remove):
            store.after = lambda _command: None
            lose_answer(command)

    store.after = lose_removal
    assert lease.release() is True
    assert client.lock("apt").inspect() is None


def test_a_body_that_gave_the_lease_back_itself_leaves_quietly(client: Client) -> None:
    with client.lock("apt").hold() as lease:
        assert lease.release() is True
    assert lease.release() is False
    with client.lock("apt").hold() as lease:
        ticket = lease.detach()
    assert client.release(ticket) is True


def test_closing_the_client_inside_a_block_is_lease_lost(client: Client, store: Faulty) -> None:
    with pytest.raises(LeaseLost, match="ended"), client.lock("apt").hold():
        client.close()
    assert store.count(Remove) == 0


def test_the_last_failed_renewal_is_the_cause_of_the_loss(client: Client, store: Faulty) -> None:
    def refuse_renewals(command: object) -> None:
        if isinstance(command, Extend):
            refuse(command)

    with pytest.raises(LeaseLost) as caught, client.lock("apt", ttl=3, max_failures=1).hold() as lease:
        store.before = refuse_renewals
        until(lambda: not lease.is_held)
        assert lease.lost_reason is LossReason.UNREACHABLE
        assert isinstance(lease.last_error, lockstead.StoreUnavailable)
    assert caught.value.__cause__ is lease.last_error


def test_the_cause_survives_an_interrupted_block(client: Client, store: Faulty) -> None:
    def refuse_renewals(command: object) -> None:
        if isinstance(command, Extend):
            refuse(command)

    with pytest.raises(LeaseLost) as caught, client.lock("apt", ttl=3, max_failures=1).hold(interrupt=True) as lease:
        store.before = refuse_renewals
        until(lambda: False)
    assert caught.value.__cause__ is lease.last_error is not None


def test_an_unreachable_lease_is_released_in_the_background(client: Client, store: Faulty) -> None:
    """The block's LeaseLost does not wait for a store that was silent for so long."""
    lease = client.lock("apt", ttl=3, max_failures=1, owner="nightly").acquire()
    store.before = refuse
    until(lambda: not lease.is_held)
    store.before = lambda _command: None
    assert lease.release() is False
    until(lambda: client.lock("apt").inspect() is None)
    with client.lock("apt").hold(timeout=0) as successor:
        # its section was cut off, and the next one has to know
        assert successor.previous_lease == PreviousLease(LeaseOutcome.EXPIRED, "nightly", lease.holder)


def test_a_lost_lease_never_releases_twice(client: Client, store: Faulty) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    revoke(client, "apt", lease)
    assert lease.release() is True
    assert lease.release() is False
    assert len([1 for command in store.seen if isinstance(command, Extend) and "ended" in command.fields]) == 1
    assert store.count(Remove) == 0


def test_a_lease_is_a_context_manager_that_releases(client: Client) -> None:
    lease = client.lock("apt").try_acquire()
    assert lease is not None
    with lease as same:
        assert same is lease
        assert lockstead.current_lease() is lease
    assert client.lock("apt").inspect() is None


def test_the_block_of_a_lost_lease_is_not_entered(client: Client) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    revoke(client, "apt", lease)
    with pytest.raises(LeaseLost), lease:
        pytest.fail("the block was entered")


def test_a_decorated_function_has_a_fresh_lease_per_call(client: Client) -> None:
    holders: list[str] = []

    @client.lock("apt").hold(timeout=5)
    def work(answer: int) -> int:
        holders.append(lockstead.current_lease().holder)
        return answer

    assert [work(1), work(answer=2)] == [1, 2]
    assert len(set(holders)) == 2
    assert work.__name__ == "work"
    assert client.lock("apt").inspect() is None


def test_a_decorated_function_refuses_what_it_cannot_hold_for(client: Client) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="AsyncLock"):
        client.lock("apt").hold()(coroutine)
    with pytest.raises(TypeError, match="inside it"):
        client.lock("apt").hold()(generator)


def test_a_hold_is_entered_once_at_a_time(client: Client) -> None:
    hold = client.lock("apt").hold()
    with hold, pytest.raises(TypeError, match="once for each block"), hold:
        pytest.fail("entered twice")
    with hold:
        pass


def test_a_lock_is_no_context_manager_and_says_what_is(client: Client) -> None:
    with pytest.raises(TypeError, match=r"use 'with lock\.hold\(\):'"), client.lock("apt"):
        pytest.fail("entered")


def test_a_lease_refuses_to_be_pickled_and_names_detach(client: Client) -> None:
    with client.lock("apt").hold() as lease, pytest.raises(TypeError, match=r"detach\(\)"):
        pickle.dumps(lease)


def test_the_error_of_a_held_lease_is_refused_and_harms_it_not(client: Client) -> None:
    with client.lock("apt").hold() as lease:
        with pytest.raises(RuntimeError, match="is held"):
            lease.lost_error()
        assert lease.is_held


def test_a_wrong_drain_is_refused_before_anything_ends(client: Client) -> None:
    with client.lock("apt").hold() as lease:
        with pytest.raises(ValueError, match="drain"):
            lease.release(drain="soon")
        assert lease.is_held


def test_errors_that_carry_more_than_a_line_can_be_pickled(client: Client) -> None:
    with client.lock("apt", purpose="publish").hold(), pytest.raises(NotAcquired) as caught:
        client.lock("apt").acquire(timeout=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.key, again.holder, again.purpose, str(again)) == (
        "apt",
        caught.value.holder,
        "publish",
        str(caught.value),
    )
    loss = LeaseLost("gone", reason=LossReason.TAKEN, key="apt", holder="me", token=7)
    loss.add_note("a note")
    back = pickle.loads(pickle.dumps(loss))
    assert (back.reason, back.key, back.holder, back.token, back.__notes__) == (
        LossReason.TAKEN,
        "apt",
        "me",
        7,
        ["a note"],
    )


def test_a_dropped_lease_is_told_and_no_longer_renewed(client: Client, store: Faulty, told: list[LockEvent]) -> None:
    lease = client.lock("apt", ttl=3).acquire()
    holder = lease.holder
    del lease
    gc.collect()
    until(lambda: [event for event in told if isinstance(event, LeaseDropped)])
    renewed = store.count(Extend)
    until(lambda: (seen := client.lock("apt").inspect()) is None or seen.is_expired)
    assert store.count(Extend) == renewed
    assert not client._engine.keeper.keeps(holder)
    assert store.count(Remove) == 0


def test_dropped_leases_leave_nothing_in_memory(
    client: Client,
) -> None:
    kept = [client.lock(f"kept-{number}", ttl=60).acquire() for number in range(5)]
    for number in range(1000):
        client.lock(f"dropped-{number}", ttl=60).acquire()
    gc.collect()
    assert len(client._engine._owner_notes) < 200
    for lease in kept:
        with pytest.raises(NotAcquired, match="already held by this thread"):
            client.lock(lease.key, ttl=60).acquire()


def test_a_thread_may_ask_again_for_what_it_dropped_or_lost(client: Client) -> None:
    lock = client.lock("apt", ttl=3)
    lease = lock.acquire()
    client.lock("apt").break_lease(reason="a test", by="tester", now=True)
    until(lambda: not lease.is_held)
    again = lock.acquire(timeout=20)
    del again
    lock.acquire(timeout=20).release()


def test_nothing_is_told_twice(client: Client, told: list[LockEvent]) -> None:
    with pytest.raises(LeaseLost), client.lock("apt", ttl=3).hold() as lease:
        revoke(client, "apt", lease)
        for _ in range(3):
            with pytest.raises(LeaseLost):
                lease.check()
    assert sum(isinstance(event, Lost) for event in told) == 1
    assert sum(isinstance(event, Released) for event in told) == 1


def test_a_listener_that_fails_harms_nothing() -> None:
    def fail(event: LockEvent) -> None:
        raise RuntimeError(str(event))

    with Client(Faulty(), listener=fail) as client, client.lock("apt").hold() as lease:
        assert lease.is_held


def test_current_lease_is_the_innermost_and_an_error_without_one(client: Client) -> None:
    with pytest.raises(LookupError, match=r"lock\.hold"):
        lockstead.current_lease()
    with client.lock("a").hold() as outer:
        with client.lock("b").hold() as inner:
            assert lockstead.current_lease() is inner
            assert lockstead.current_lease(lockstead.Lease) is inner
            with pytest.raises(TypeError, match="is of the type Lease, not AsyncLease"):
                lockstead.current_lease(lockstead.AsyncLease)
        assert lockstead.current_lease() is outer
    with pytest.raises(LookupError):
        lockstead.current_lease()


def test_a_closed_client_refuses_at_once_instead_of_waiting_for_ever(client: Client) -> None:
    client.close()
    with pytest.raises(lockstead.StoreRefused, match="closed"):
        client.lock("apt").acquire()


@pytest.mark.parametrize("shared", [False, True])
def test_h06_leaving_after_the_deadline_sends_nothing(shared: bool) -> None:
    """The process stood still past the deadline, and its keeper has not looked at the clock since."""

    class Clock(SetClock):
        """Whose time has gone by for the block alone."""

        ahead = 0.0

        def now(self) -> float:
            return self.at + (self.ahead if threading.current_thread() is threading.main_thread() else 0.0)

    store, clock = Faulty(), Clock()
    client = client_with(store, clock)
    lease = client.lock("apt", ttl=300).acquire()
    if shared:
        lease.share()
    store.seen.clear()
    clock.ahead = 298.0
    assert lease.release() is False
    # its own registration is all that it may take back
    assert [command for command in store.seen if command.name.space is Space.LOCK] == []  # type: ignore[attr-defined]
    assert client.lock("apt").inspect() is not None
    client.close()


def test_h06_h17_a_token_drawn_after_the_deadline_is_discarded() -> None:
    class Drawn(Faulty):
        @property
        def traits(self) -> Traits:
            return replace(super().traits, tokens=TokenSource.DRAWN)

    store, clock = Drawn(), SetClock()
    client = client_with(store, clock)
    lease = client.lock("apt", ttl=300).acquire()

    def stands_still(command: Command[Any]) -> None:
        if isinstance(command, Extend) and command.name.space is Space.COMPANION:
            clock.at += 298.0

    store.before = stands_still
    with pytest.raises(LeaseLost, match="EXPIRED"):
        lease.sequencer()
    client.close()
