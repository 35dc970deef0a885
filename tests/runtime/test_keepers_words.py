"""What a keeper answers to each of its callers, with a clock that does not advance: nothing is due, nothing expires."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.events import CallbackFailed, EngineWarning, LeaseDropped, Lost, RenewalFailed, Renewed
from lockstead.protocol.context import LeaseId
from lockstead.protocol.keeping import DROPPED_FOR
from lockstead.protocol.lifecycle import State
from lockstead.protocol.members import Attached
from lockstead.protocol.renew import Over
from lockstead.protocol.renew import Renewed as Renewal
from lockstead.runtime.keeper import LONGEST_SLEEP, WORKERS_MAX
from lockstead.values import Name, Space
from tests.runtime.faulty import until
from tests.runtime.keeping import SETTINGS, Guarding, Told, decided, losses


def fails() -> None:
    raise ValueError("odd")


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system give no thread to anybody."""

    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)


def test_a_closed_keeper_takes_no_lease_and_does_no_chore(told: Told) -> None:
    done: list[str] = []
    told.keeper.close()
    kept = told.lease(is_kept=False)
    with pytest.raises(StoreRefused, match="the client was closed"):
        told.keeper.keep(kept)
    told.keeper.schedule(0, lambda: done.append("task"))
    assert kept.lease_state.state is State.LEFT
    assert (len(told.keeper), done, told.keeper._tasks) == (0, [], [])


@pytest.mark.usefixtures("threadless")
def test_without_a_thread_no_lease_is_kept(told: Told) -> None:
    done: list[str] = []
    kept = told.lease(is_kept=False)
    with pytest.raises(StoreUnavailable, match="no thread can be started"):
        told.keeper.keep(kept)
    assert kept.lease_state.state is State.LEFT
    told.keeper.schedule(0, lambda: done.append("now"))
    told.keeper.schedule(1, lambda: done.append("later"))
    told.keeper.schedule(0, fails)
    assert done == ["now"]


def test_a_holder_is_kept_while_its_lease_is_referenced(told: Told) -> None:
    kept, other = told.lease("a"), told.lease("b")
    assert [told.keeper.keeps(holder) for holder in ("a", "b", "c")] == [True, True, False]
    assert told.keeper.leave(other, told.clock.at)
    assert not told.keeper.leave(other, told.clock.at)
    assert (told.keeper.keeps("b"), len(told.keeper)) == (False, 1)
    told.keeper.left(other)
    assert other.lease_state.state is State.LEFT
    del kept
    gc.collect()
    assert not told.keeper.keeps("a")


def test_who_leaves_after_its_deadline_had_lost_its_lease_before(told: Told) -> None:
    kept = told.lease()
    assert not told.keeper.leave(kept, kept.lease_state.deadline)
    until(lambda: told.of(Lost))
    assert (kept.lease_state.reason, len(told.keeper)) == (LossReason.EXPIRED, 0)


def test_an_owner_that_is_a_member_uses_the_earlier_deadline(told: Told) -> None:
    kept, left = told.lease("a"), told.lease("b")
    told.keeper.leave(left, told.clock.at)
    registration = LeaseId(Name("apt", Space.MEMBER, "1/m"), "m", "2", 300.0)
    soon = told.clock.at + SETTINGS.abort_margin + 5
    for one in (kept, left):
        told.keeper.register(one, Attached(one.lease_state.lease, registration, soon, soon + 100, told.clock.at))
        assert one.lease_state.registration == registration
    assert kept.lease_state.deadline == soon
    assert told.keeper._keeping._schedule.wake_at() == pytest.approx(told.clock.at + 5)
    assert len(told.keeper._keeping._schedule) == 1, "what was given back is planned no more"


def test_a_release_waits_only_for_a_sent_renewal(told: Told) -> None:
    kept = told.lease()
    told.keeper.settle(kept, 600)
    kept.lease_state.queue()
    told.keeper.settle(kept, 600)
    kept.lease_state.sending(told.clock.at)
    told.keeper.settle(kept, 0.01)
    assert kept.lease_state.in_flight, "not for longer than it is asked to"
    error = OutcomeUnknown("silent")
    threading.Timer(0.1, told.keeper._renewed, (kept, None, error)).start()
    told.keeper.settle(kept, 600)
    assert not kept.lease_state.in_flight
    until(lambda: told.of(RenewalFailed))


def test_a_loss_found_elsewhere_is_notified_once_and_at_once(told: Told) -> None:
    began_at = time.monotonic()
    for number in range(5):
        kept, calls = told.lease(), []
        guarding, left, gone = Guarding(), Guarding(), Guarding()
        for one in (gone, guarding, left):
            told.keeper.guard(kept, one)
        told.keeper.unguard(kept, left)
        del gone
        told.keeper.on_lost(kept, lambda calls=calls: calls.append("before"))
        told.keeper.lose(kept, LossReason.TAKEN, "by b")
        assert (len(told.keeper), kept.found_in) == (0, threading.get_ident())
        told.keeper.lose(kept, LossReason.GONE)
        until(lambda count=number + 1: len(told.of(Lost)) == count)
        until(lambda calls=calls: calls)
        assert (guarding.fired, left.fired) == ([threading.get_ident()], [])
        told.keeper.on_lost(kept, lambda calls=calls: calls.append("after"))
        until(lambda calls=calls: len(calls) == 2)
        told.keeper.guard(kept, left)
        assert left.fired == [None]
        told.keeper.lose(kept, LossReason.GONE)
        assert (calls, kept.lease_state.reason) == (["before", "after"], LossReason.TAKEN)
    assert time.monotonic() - began_at < 4, "the timing thread is woken and does not sleep on"
    (event, *_) = told.of(Lost)
    assert isinstance(event, Lost)
    assert (event.reason, event.detail) == (LossReason.TAKEN, "by b")
    assert len(told.of(Lost)) == 5


def test_what_was_given_back_is_told_as_lost_to_nobody(told: Told) -> None:
    kept, done = told.lease(), []
    told.keeper.leave(kept, told.clock.at)
    told.keeper.left(kept)
    told.keeper.lose(kept, LossReason.TAKEN)
    told.keeper.schedule(0, lambda: done.append("after a round"))
    until(lambda: done)
    assert (told.events, kept.lease_state.is_notified, kept.lease_state.reason) == ([], False, None)
    assert told.keeper._thread is not None
    assert told.keeper._thread.daemon, "it keeps no interpreter from ending"


def test_guards_that_are_gone_make_room(told: Told) -> None:
    kept = told.lease()
    for _ in range(5):
        told.keeper.guard(kept, Guarding())
        gc.collect()
    assert len(kept.guards) == 1


def test_a_failing_callback_is_reported_and_the_others_are_called(told: Told) -> None:
    kept, calls = told.lease(), []
    told.keeper.on_lost(kept, fails)
    told.keeper.on_lost(kept, lambda: calls.append("second"))
    told.keeper.lose(kept, LossReason.TAKEN)
    until(lambda: calls and told.of(CallbackFailed))


def test_closing_ends_all_leases_and_runs_postponed_work_once(told: Told) -> None:
    kept, done = told.lease(), []

    def takes_long() -> None:
        time.sleep(0.1)
        done.append("task")

    told.keeper.schedule(600, takes_long)
    told.keeper.close(patience=60)
    assert (kept.lease_state.state, len(told.keeper), done) == (State.LEFT, 0, ["task"])
    assert told.events == [LeaseDropped("apt", "a")]
    told.keeper.close()
    assert told.events == [LeaseDropped("apt", "a")]
    assert not told.keeper._workers.submit(lambda: None)
    assert not told.keeper._callback_threads.submit(lambda: None)
    until(lambda: told.keeper._thread is not None and not told.keeper._thread.is_alive())


def test_a_task_is_done_once_its_time_has_come_and_no_sooner(told: Told) -> None:
    done: list[str] = []
    began_at = time.monotonic()
    told.keeper.schedule(5, lambda: done.append("later"))
    for number in range(5):
        told.keeper.schedule(0, lambda: done.append("now"))
        until(lambda count=number + 1: done == ["now"] * count)
    assert time.monotonic() - began_at < 4, "the timing thread is woken and does not sleep on"
    told.clock.at += 5
    with told.keeper._lock:
        told.keeper._changed.ring()
    until(lambda: done[5:] == ["later"])


def test_h33_a_lease_is_renewed_however_many_tasks_wait_for_a_slow_store(told: Told) -> None:
    _kept, ends = told.lease(), threading.Event()  # a lease without a reference is not renewed
    for _ in range(2 * WORKERS_MAX):
        told.keeper.schedule(0, lambda: until(ends.is_set))
    told.clock.at += 200
    with told.keeper._lock:
        told.keeper._changed.ring()
    try:
        until(lambda: told.store.seen, 5.0)
    finally:
        ends.set()


def test_closing_waits_for_no_task_that_no_thread_can_do(told: Told, request: pytest.FixtureRequest) -> None:
    done: list[str] = []
    for _ in range(2):
        told.keeper.schedule(600, lambda: done.append("task"))
    request.getfixturevalue("threadless")
    began_at = time.monotonic()
    told.keeper.close(patience=20)
    assert time.monotonic() - began_at < 15
    assert done == []


def test_in_a_forked_copy_every_lease_is_lost_and_nothing_is_told(told: Told) -> None:
    kept, gone = told.lease(), told.lease("gone")
    held = threading.Event()
    ends = threading.Event()

    def hold() -> None:
        with told.keeper._lock:
            held.set()
            ends.wait(60)

    parents = threading.Thread(target=hold, daemon=True)
    parents.start()
    held.wait(60)
    del gone
    gc.collect()
    told.keeper.forked()
    assert told.keeper._lock.acquire(timeout=1), "the thread that held it does not exist in the child"
    told.keeper._lock.release()
    ends.set()
    parents.join(60)
    assert (kept.lease_state.reason, kept.lease_state.is_notified) == (LossReason.FORKED, True)
    with pytest.raises(StoreRefused):
        told.lease("b")
    assert told.events == []


def test_an_explicit_renewal_leaves_the_keepers_in_flight(told: Told) -> None:
    kept = told.lease()
    kept.lease_state.sending(told.clock.at)
    told.keeper.renewed(kept, Renewal(told.clock.at + 500, told.clock.at))
    assert kept.lease_state.in_flight
    assert kept.lease_state.deadline == told.clock.at + 500
    assert told.events == [Renewed("apt", "a", told.clock.at + 500)]
    told.keeper.renewed(kept, Over(LossReason.TAKEN, "by b"))
    until(lambda: told.of(Lost))
    assert (kept.lease_state.state, len(told.keeper)) == (State.LOST, 0)


def test_a_fault_of_our_own_is_told_and_loses_no_lease(told: Told) -> None:
    kept = told.lease()
    with told.keeper._lock:
        told.keeper._keeping._schedule.drop(kept.lease_state)
    told.keeper._recover(ValueError("odd"))
    with told.keeper._lock:
        assert told.keeper._keeping._schedule.wake_at() == kept.lease_state.wake_at()
    until(lambda: told.of(EngineWarning))
    (event,) = told.of(EngineWarning)
    assert "ValueError: odd" in str(event)


def test_an_unreferenced_lease_is_reported_and_not_renewed(told: Told) -> None:
    kept = told.lease()
    del kept
    gc.collect()
    until(lambda: not told.keeper._dropped)
    assert len(told.keeper) == 1, "whatever was collected with it may give it back yet"
    told.clock.at += DROPPED_FOR
    until(lambda: told.of(LeaseDropped))
    assert (len(told.keeper), len(told.keeper._keeping._schedule)) == (0, 0)


def test_a_round_sleeps_until_something_is_due_but_never_for_long(told: Told) -> None:
    kept, done = told.lease(), []
    with told.keeper._lock:
        assert told.keeper._decide([]) == LONGEST_SLEEP
        told.clock.at = kept.lease_state.due_at - 0.5
        assert told.keeper._decide([]) == pytest.approx(0.5)
    told.keeper.schedule(0.25, lambda: done.append("task"))
    with told.keeper._lock:
        assert told.keeper._decide([]) == pytest.approx(0.25)
    told.keeper.close()
    with told.keeper._lock:
        assert told.keeper._decide([]) is None


def test_a_loss_found_in_a_round_is_notified_and_the_lease_dropped(told: Told) -> None:
    kept = told.lease()
    with told.keeper._lock:
        told.clock.at = kept.lease_state.notify_at
        assert losses(decided(told.keeper)) == [kept]
        assert (kept.lease_state.reason, len(told.keeper), len(told.keeper._keeping._schedule)) == (
            LossReason.EXPIRED,
            0,
            0,
        )
        assert decided(told.keeper) == []


def test_leases_that_are_lost_in_one_round_are_all_told(told: Told) -> None:
    leases = [told.lease(holder) for holder in ("a", "b", "c")]
    with told.keeper._lock:
        told.clock.at = leases[0].lease_state.notify_at
        lost = losses(decided(told.keeper))
    assert [kept.lease_state.lease.holder for kept in lost] == ["a", "b", "c"]


def test_releasing_an_older_lease_keeps_the_newer_one_known(told: Told) -> None:
    older, newer = told.lease("a"), told.lease("a")
    told.keeper.leave(older, told.clock.at)
    assert told.keeper.keeps("a")
    told.keeper.leave(newer, told.clock.at)
    assert not told.keeper.keeps("a")
