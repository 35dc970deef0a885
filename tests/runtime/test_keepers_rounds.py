"""What a keeper does in a round and what its crew does with it, step by step: no thread runs, and the clock stands."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from lockstead.errors import LossReason, OutcomeUnknown, StoreRefused
from lockstead.events import CallbackFailed, EngineWarning, LeaseDropped, Lost, RenewalFailed, Renewed
from lockstead.protocol.context import LeaseId
from lockstead.protocol.keeping import DROPPED_FOR
from lockstead.protocol.lifecycle import State
from lockstead.protocol.members import Attached, MemberRenewed
from lockstead.protocol.record import number
from lockstead.protocol.renew import Over
from lockstead.protocol.renew import Renewed as Renewal
from lockstead.runtime import keeper
from lockstead.runtime.keeper import LONGEST_SLEEP, NO_THREAD, TASK_RETRY, KeptLease, _failure, _run_rounds
from lockstead.settings import Settings
from lockstead.values import Name, Space
from tests.runtime.faulty import Faulty
from tests.runtime.keeping import SETTINGS, Guarding, Still
from tests.runtime.test_batches import Batching


@pytest.fixture
def still() -> Iterator[Still]:
    one = Still()
    yield one
    one.keeper.close(patience=0)


def test_leaving_a_lease_during_a_round_delays_no_renewal(still: Still) -> None:
    leases = [still.lease("gone")]
    kept = still.lease("a")
    still.clock.at = kept.lease_state.due_at
    now = still.clock.now

    def gives_up() -> float:
        leases.clear()
        gc.collect()
        return now()

    still.clock.now = gives_up  # type: ignore[method-assign] # the instant at which the round looks at the clock
    assert still.round() == []
    assert kept.lease_state.in_flight
    assert len(still.crew.jobs) == 1
    still.clock.at += DROPPED_FOR
    still.round()
    still.tellers.do()
    assert still.events == [LeaseDropped("apt", "gone")]


def test_a_queued_renewal_is_sent_if_the_lease_is_still_held(still: Still) -> None:
    kept, left = still.lease("a"), still.lease("left")
    with still.keeper._lock:
        still.keeper._register(gone := still.lease("gone", is_kept=False))
        held = still.keeper._keeping.of(gone.lease_state)
        assert held is not None
        del gone
        gc.collect()
        assert still.keeper._sent(held) is None
        still.keeper._keeping.orphaned(held, still.clock.at)
        assert still.keeper._sent(kept) is None
        still.clock.at += 50
        for one in (kept, left):
            one.lease_state.queue()
        still.keeper.leave(left, still.clock.at)
        assert still.keeper._sent(left) is None
        assert (left.lease_state.in_flight, left.lease_state.is_queued) == (False, False)
        assert still.keeper._sent(kept) is kept
        assert (kept.lease_state.in_flight, kept.lease_state.is_queued) == (True, False)
        assert kept.lease_state.renewal_sent_at == kept.lease_state.round_started_at == still.clock.at
        assert still.keeper._keeping._schedule.wake_at() == still.clock.at + SETTINGS.renew_every
        assert still.keeper._sent(kept) is None, "it is sent once"


def test_who_has_least_time_left_is_renewed_first_and_who_left_is_not(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = {holder: still.lease(holder) for holder in ("long", "left", "short", "gone")}
    leases["short"].lease_state.deadline -= 10
    asked: list[str] = []

    def silent(kept: KeptLease, fields: dict[str, str]) -> OutcomeUnknown:
        asked.append(kept.lease_state.lease.holder)
        assert fields == {}
        return OutcomeUnknown("silent")

    monkeypatch.setattr(still.keeper, "_ask", silent)
    still.clock.at = leases["long"].lease_state.due_at
    still.round()
    still.round()
    assert len(still.crew.jobs) == 4, "each is given to the crew once"
    still.keeper.leave(leases["left"], still.clock.at)
    del leases["gone"]
    gc.collect()
    still.crew.do()
    assert asked == ["short", "long"]
    assert [type(event) for event in still.events] == [RenewalFailed] * 2
    assert not still.keeper._keeping._queue


@pytest.mark.parametrize("store", [Faulty, Batching])
def test_without_a_worker_a_renewal_fails_and_is_replanned(store: type[Faulty]) -> None:
    still = Still(store())
    kept = still.lease()
    still.crew.is_there = False
    still.clock.at = kept.lease_state.due_at
    still.round()
    assert (kept.lease_state.in_flight, kept.lease_state.last_error) == (False, NO_THREAD)
    assert still.keeper._keeping._schedule.wake_at() == kept.lease_state.due_at > still.clock.at


def test_a_left_or_lost_lease_is_not_reported_as_abandoned(still: Still) -> None:
    leases = [still.lease(holder) for holder in ("left", "lost", "held")]
    still.clock.at = leases[0].lease_state.due_at
    still.round()  # from here on what waits to be sent refers to each, and hears of its end
    lease_states = [kept.lease_state for kept in leases]
    still.keeper.leave(leases[0], still.clock.at)
    still.keeper.left(leases[0])
    still.keeper.lose(leases[1], LossReason.TAKEN)
    still.round()
    still.tellers.do()
    assert [type(event) for event in still.events] == [Lost]
    still.events.clear()
    leases.clear()
    gc.collect()
    still.round()
    still.tellers.do()
    assert still.events == [], "whatever was collected with it may give it back yet"
    still.clock.at += DROPPED_FOR
    still.round()
    still.tellers.do()
    assert still.events == [LeaseDropped("apt", "held")]
    assert [lease_state.state for lease_state in lease_states] == [State.LEFT, State.LOST, State.LEFT]
    assert len(still.keeper) == 0


def test_the_timing_thread_is_woken_only_for_earlier_actions(still: Still) -> None:
    kept = still.lease()
    still.round()
    still.has_rung()
    still.keeper._wake(still.keeper._keeping.wake_at())
    assert not still.has_rung(), "it sleeps a second at most, and this is due later"
    kept.lease_state.due_at = still.clock.at + 0.5
    still.keeper._keeping._schedule.plan(kept.lease_state)
    still.keeper._wake(still.keeper._keeping.wake_at())
    assert still.has_rung()


def test_after_an_internal_error_the_timing_thread_is_woken(still: Still) -> None:
    kept = still.lease()
    still.round()
    still.has_rung()
    still.keeper._recover(ValueError("odd"))
    still.keeper._wake(still.keeper._keeping.wake_at())
    assert still.has_rung()
    still.tellers.do()
    assert kept.lease_state.state is State.HELD
    assert [type(event) for event in still.events] == [EngineWarning]


def test_a_task_for_which_the_system_gives_no_thread_is_tried_again(still: Still) -> None:
    done: list[str] = []
    still.keeper.schedule(5, lambda: done.append("done"))
    still.clock.at += 5
    still.crew.is_there = False
    still.round()
    assert still.keeper._tasks_under_way == 0
    still.crew.is_there = True
    still.clock.at += TASK_RETRY
    still.round()
    still.crew.do()
    assert (done, still.keeper._tasks_under_way, still.keeper._tasks) == (["done"], 0, [])


def test_a_task_counts_as_in_flight_until_it_is_done(still: Still) -> None:
    done: list[str] = []

    def fails() -> None:
        done.append("fails")
        raise ValueError("odd")

    still.keeper.schedule(5, lambda: done.append("well"))
    still.keeper.schedule(5, fails)
    still.round()
    assert (still.crew.jobs, still.keeper._tasks_under_way) == ([], 0)
    still.clock.at += 5
    still.round()
    assert (len(still.crew.jobs), still.keeper._tasks_under_way) == (2, 2)
    waits = threading.Thread(target=still.keeper._wait_until, args=(lambda: done == ["well", "fails"], 60))
    waits.start()
    still.crew.do()
    assert still.keeper._tasks_under_way == 0
    waits.join(30)
    assert not waits.is_alive(), "who waits for tasks is told of each"


def test_an_answer_is_reported_only_for_a_held_lease(still: Still) -> None:
    kept, left = still.lease("a"), still.lease("left")
    error = OutcomeUnknown("silent")
    for one in (kept, left):
        one.lease_state.sending(still.clock.at)
    still.keeper.leave(left, still.clock.at)
    still.keeper._renewed(left, None, error)
    still.keeper._renewed(left, None, Renewal(still.clock.at + 400, still.clock.at))
    assert (still.events, left.lease_state.in_flight) == ([], False)
    still.clock.at += 7
    still.keeper._renewed(kept, None, error)
    (failed,) = still.events
    assert isinstance(failed, RenewalFailed)
    assert (failed.error, failed.left) == (error, 290.0)
    assert still.keeper._keeping._schedule.wake_at() == kept.lease_state.due_at == still.clock.at + 12.5
    still.keeper._renewed(kept, None, Renewal(still.clock.at + 400, still.clock.at))
    assert still.events[1:] == [Renewed("apt", "a", still.clock.at + 400)]
    assert still.keeper._keeping._schedule.wake_at() == kept.lease_state.due_at == still.clock.at + SETTINGS.renew_every
    kept.lease_state.sending(still.clock.at)
    still.keeper._renewed(kept, None, Over(LossReason.TAKEN, "by b"))
    assert not kept.lease_state.in_flight, "who gives back has nothing to wait for"
    still.keeper._renewed(kept, None, error)
    (lost,) = still.events[2:]
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.detail, kept.lease_state.in_flight, len(still.keeper._keeping._schedule)) == (
        LossReason.TAKEN,
        "by b",
        False,
        0,
    )


def test_a_members_renewal_also_renews_its_registration(still: Still) -> None:
    kept = still.lease()
    registration = LeaseId(Name("apt", Space.MEMBER, "1/m"), "m", "2", 300.0)
    joined = Attached(kept.lease_state.lease, registration, still.clock.at + 250, still.clock.at + 297, still.clock.at)
    still.keeper.register(kept, joined)
    still.clock.at += 10
    still.keeper._renewed(kept, None, MemberRenewed(still.clock.at + 200, still.clock.at + 300, still.clock.at))
    assert kept.lease_state.record_deadline == still.clock.at + 300
    assert kept.lease_state.deadline == still.clock.at + 240
    still.keeper._renewed(kept, None, MemberRenewed(still.clock.at + 290, None, still.clock.at))
    assert kept.lease_state.deadline == still.clock.at + 290


def test_progress_is_sent_again_after_a_failed_renewal(still: Still) -> None:
    plain, alerts, expects = still.lease("a"), still.lease("b"), still.lease("c")
    alerts.lease_state.settings = Settings.make(ttl=300, alert_after=60, expected=600)
    expects.lease_state.settings = Settings.make(ttl=300, expected=600, auto_unlock_after=900)
    assert still.keeper._fields(plain) == ({}, None)
    for kept, after in ((plain, None), (alerts, 60), (expects, 600)):
        kept.progress = "1 of 5"
        fields, progress = still.keeper._fields(kept)
        alert_at = {} if after is None else {"alert_at": number(still.clock.wall() + after)}
        if kept is expects:
            alert_at["auto_unlock_at"] = number(still.clock.wall() + 900)
        assert (fields, progress, kept.progress) == ({"progress": "1 of 5", **alert_at}, "1 of 5", None)
    error = OutcomeUnknown("silent")
    still.keeper._renewed(plain, "1 of 5", error)
    assert plain.progress == "1 of 5"
    plain.progress = "2 of 5"
    still.keeper._renewed(plain, "1 of 5", error)
    assert plain.progress == "2 of 5"
    plain.progress = None
    still.keeper._renewed(plain, "2 of 5", StoreRefused("too long"))
    assert plain.progress is None, "the store would refuse the next renewal, too, and the lease would end"
    still.keeper._renewed(plain, "2 of 5", Renewal(still.clock.at + 400, still.clock.at))
    assert plain.progress is None


def test_whatever_a_renewal_raises_is_an_attempt_that_failed(still: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = still.lease()
    odd = ValueError("odd")
    limits: list[float] = []

    def fails(command: object, limit: float) -> None:
        limits.append(limit)
        raise StoreRefused("no") if len(limits) == 1 else odd

    monkeypatch.setattr(still.store, "perform", fails)
    outcome = still.keeper._ask(kept, {})
    assert isinstance(outcome, StoreRefused)
    outcome = still.keeper._ask(kept, {})
    assert isinstance(outcome, OutcomeUnknown)
    assert limits == [SETTINGS.request_timeout] * 2
    failure = _failure(odd)
    assert str(failure) == "the renewal failed: ValueError: odd"
    assert failure.__cause__ is odd


def test_any_error_of_a_batched_renewal_is_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    still = Still(Batching())
    kept = still.lease()
    kept.lease_state.queue()
    monkeypatch.setattr(keeper, "run_many", lambda *_: [(0, ValueError("odd"))])
    still.keeper._renew_many([kept], 5.0)
    (failed,) = still.events
    assert isinstance(failed, RenewalFailed)
    assert str(failed.error) == "the renewal failed: ValueError: odd"
    assert not kept.lease_state.in_flight


def test_a_loss_notifies_guards_callbacks_and_listener_once(
    still: Still,
) -> None:
    for aside in (False, True):
        kept, calls = still.lease(), list[object]()
        guarding = Guarding()
        still.keeper.guard(kept, guarding)
        gone = Guarding()
        still.keeper.guard(kept, gone)
        del gone
        still.keeper.on_lost(kept, lambda calls=calls: calls.append("called"))
        still.events.clear()
        kept.found_in = 7
        still.keeper._notify_loss(kept, in_callback_thread=aside)
        assert (guarding.fired, calls) == ([7], [])
        assert len(still.of(Lost)) == (0 if aside else 1)
        assert (kept.guards, kept.callbacks) == ([], [])
        still.keeper._notify_loss(kept, in_callback_thread=aside)
        still.tellers.do()
        assert calls == ["called"]
        assert still.events == [Lost("apt", "a", LossReason.EXPIRED, None, "")]
        still.keeper.on_lost(kept, lambda calls=calls: calls.append("late"))
        assert len(still.tellers.jobs) == 1
        still.tellers.do()
        assert calls == ["called", "late"]


def test_where_no_teller_can_be_had_the_loss_is_told_by_who_found_it(still: Still) -> None:
    kept, error = still.lease(), KeyboardInterrupt()

    def fails() -> None:
        raise error

    still.tellers.is_there = False
    still.keeper.on_lost(kept, fails)
    still.keeper._notify_loss(kept, in_callback_thread=True)
    assert still.events == [
        CallbackFailed("apt", "a", error),
        Lost("apt", "a", LossReason.EXPIRED, None, ""),
    ]


def test_without_a_thread_the_listener_is_called_outside_the_lock(still: Still) -> None:
    owned: list[bool] = []
    still.keeper._emit_to = lambda event: owned.append(still.keeper._lock._is_owned())  # type: ignore[attr-defined]
    still.tellers.is_there = False
    lost = still.lease("lost")
    still.lease("abandoned")
    gc.collect()
    still.keeper._round()
    still.clock.at = lost.lease_state.notify_at
    still.keeper._round()
    still.keeper._recover(ValueError("odd"))
    assert owned == [False] * 3


class Slept:
    """The waker of the timing thread: it records its calls, and what happens while that thread sleeps."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens
        self.seen: list[str] = []

    def take(self) -> bool:
        self.seen.append("silenced")
        assert len(self.seen) < 20
        return False

    def wait(self, seconds: float) -> bool:
        self.seen.append(f"slept {seconds}")
        self.happens()
        return False


def timed(still: Still, happens: Callable[[], object]) -> list[str]:
    slept = Slept(happens)
    _run_rounds(weakref.ref(still.keeper), slept)  # type: ignore[arg-type] # as of a bell
    return slept.seen


def test_the_timing_thread_notifies_in_threads_and_sleeps(still: Still) -> None:
    kept = still.lease()
    still.clock.at = kept.lease_state.notify_at
    seen = timed(still, lambda: still.keeper.close(patience=0))
    assert seen == ["silenced", "silenced", f"slept {LONGEST_SLEEP}", "silenced"]
    assert (still.events, kept.lease_state.is_notified) == ([], True)
    still.tellers.do()
    assert [type(event) for event in still.events] == [Lost]


def test_a_failing_round_is_repeated_after_a_pause(still: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ValueError("odd"), 0.0, 0.5, None]

    def answer(_actions: list[Any]) -> float | None:
        said = answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return cast("float | None", said)

    monkeypatch.setattr(still.keeper, "_decide", answer)
    sleeps = [f"slept {LONGEST_SLEEP}", "silenced", "silenced", "slept 0.5"]
    assert timed(still, int) == ["silenced", *sleeps, "silenced"]
    still.tellers.do()
    assert [type(event) for event in still.events] == [EngineWarning]


def test_the_timing_thread_ends_with_an_unreferenced_keeper() -> None:
    owners = [Still()]
    slept = Slept(owners.clear)
    ref = weakref.ref(owners[0].keeper)
    _run_rounds(ref, slept)  # type: ignore[arg-type] # as of a bell
    assert ref() is None
    assert slept.seen == ["silenced", f"slept {LONGEST_SLEEP}"]
