"""What the keeper does for every lease, whatever the store, the listener and the callbacks do."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstead import Client, LeaseLost, LossReason
from lockstead.errors import StoreUnavailable
from lockstead.events import CallbackFailed, LockEvent, Lost, RenewalFailed
from lockstead.protocol.commands import Command, Create, Extend, Read, Remove
from lockstead.runtime.keeper import CALLBACKS_MAX
from lockstead.runtime.workers import Workers
from tests.runtime.faulty import Faulty, Ticking, quiet, refuse, until


class Stuck(Faulty):
    """A store whose writes of chosen keys block until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()
        self.go = threading.Event()
        self.blocked = 0

    def perform(self, command: Command[object], limit: float) -> object:
        if isinstance(command, Extend) and command.name.key in self.keys:
            self.blocked += 1
            self.go.wait(60)
        return super().perform(command, limit)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    store = Stuck()
    yield store
    store.go.set()


def test_a_lease_is_renewed_for_as_long_as_it_is_held() -> None:
    store = Faulty()
    with Client(store, listener=quiet) as client, client.lock("apt", ttl=3).hold() as lease:
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 7.5)
        assert lease.is_held
        assert store.count(Extend) >= 8


def test_a_renewal_is_due_an_eighth_of_the_ttl_after_the_last() -> None:
    store = Faulty()
    ticking = Ticking(store)
    with ticking.client as client, client.lock("apt", ttl=300).hold() as lease:
        ticking.pass_by(33.7)
        time.sleep(0.05)
        assert store.count(Extend) == 0
        ticking.pass_by(3.9)
        until(lambda: store.count(Extend) == 1)
        until(lambda: lease.time_left == pytest.approx(297))


def test_h09_a_renewal_that_hangs_delays_no_loss_and_no_other_lease(stuck: Stuck) -> None:
    told: list[LockEvent] = []
    with Client(stuck, listener=told.append) as client:
        stuck.keys = {"hung"}
        hung, well = client.lock("hung", ttl=2).acquire(), client.lock("well", ttl=2).acquire()
        until(lambda: stuck.blocked)
        deadline = time.monotonic() + hung.time_left
        called: list[float] = []
        hung.on_lost(lambda: called.append(time.monotonic()))
        until(lambda: called)
        # at the deadline less the margin for the abort, with the request still under way
        assert called[0] < deadline
        assert hung.lost_reason in (LossReason.EXPIRED, LossReason.UNREACHABLE)
        assert well.is_held
        assert not stuck.go.is_set()
        well.release()


def test_h09_the_loss_is_told_at_the_deadline_less_the_margin(stuck: Stuck) -> None:
    ticking = Ticking(stuck)
    with ticking.client as client:
        stuck.keys = {"apt"}
        lease = client.lock("apt", ttl=300, max_failures=5, renew_every=30, request_timeout=9).acquire()
        ticking.pass_by(30)
        until(lambda: stuck.blocked)
        ticking.pass_by(297 - 50 - 30 - 0.5)
        time.sleep(0.05)
        assert lease.lost_reason in (None, LossReason.UNREACHABLE)
        ticking.pass_by(1)
        until(lambda: lease.lost_reason is not None)


def test_h10_a_renewal_after_the_release_restores_nothing(stuck: Stuck) -> None:
    with Client(stuck, listener=quiet) as client:
        stuck.keys = {"apt"}
        lease = client.lock("apt", ttl=3).acquire()
        until(lambda: stuck.blocked)
        # it waits for the renewal under way, but not forever
        assert lease.release() is True
        stuck.go.set()
        until(lambda: sum(isinstance(command, Extend) for command in stuck.seen))
        assert client.lock("apt").inspect() is None
        assert lease.lost_reason is None


def test_h26_a_client_whose_store_hangs_leaves_other_clients_alone(stuck: Stuck) -> None:
    with Client(stuck, listener=quiet) as client, Client(Faulty(), listener=quiet) as other:
        stuck.keys = {f"{number}" for number in range(40)}
        hung = [client.lock(key, ttl=3).acquire() for key in stuck.keys]
        well = other.lock("apt", ttl=3).acquire()
        until(lambda: not any(lease.is_held for lease in hung))
        assert well.is_held
        assert well.release() is True


def test_refused_connections_for_25_s_do_not_cost_a_lease_of_300_s() -> None:
    store, told = Faulty(), list[LockEvent]()
    ticking = Ticking(store, told.append)
    with ticking.client as client:
        lease = client.lock("apt", renew_every=37.5, max_failures=3).acquire()
        store.before = refuse
        ticking.pass_by(37.5)
        for attempts in (1, 2, 3):
            until(lambda wanted=attempts: sum(isinstance(event, RenewalFailed) for event in told) == wanted)
            ticking.pass_by(12.5)
        assert lease.is_held
        assert lease.lost_reason is None
        store.before = lambda _command: None
        until(lambda: lease.last_error is None)
        assert lease.time_left == pytest.approx(297)
        lease.release()


def test_max_failures_counts_as_unreachable_at_half_the_ttl() -> None:
    store, told = Faulty(), list[LockEvent]()
    ticking = Ticking(store, told.append)
    with ticking.client as client:
        lease = client.lock("apt", renew_every=37.5, max_failures=3).acquire()
        store.before = refuse
        failed, passed = 0, 0.0
        while lease.lost_reason is None:
            ticking.pass_by(12.5)
            passed += 12.5
            assert passed < 247
            if passed >= 37.5 and passed + 12.5 <= 150:
                failed += 1
                until(lambda wanted=failed: sum(isinstance(event, RenewalFailed) for event in told) >= wanted)
            elif passed >= 150:
                until(lambda: lease.lost_reason is not None, 2)
        assert lease.lost_reason is LossReason.UNREACHABLE
        assert passed == pytest.approx(150, abs=13)
        until(lambda: [event.reason for event in told if isinstance(event, Lost)] == [LossReason.UNREACHABLE])


def test_progress_is_stored_with_the_next_renewal() -> None:
    store = Faulty()
    ticking = Ticking(store)
    given: Any = {"renew_every": 37.5, "max_failures": 3, "expected": "10m", "auto_unlock_after": "1h"}
    with ticking.client as client, client.lock("apt", **given).hold() as lease:
        began = client.lock("apt").inspect()
        lease.progress("1 of 5")
        lease.progress("3 of 5")
        assert store.count(Extend) == 0
        ticking.pass_by(37.5)
        until(lambda: store.count(Extend) == 1)
        seen = client.lock("apt").inspect()
        assert seen is not None
        assert seen.progress == "3 of 5"
        assert began is not None
        assert seen.alert_epoch == pytest.approx((began.alert_epoch or 0) + 37.5)
        assert seen.auto_unlock_epoch == pytest.approx(seen.alert_epoch + 3000)


def test_progress_that_could_not_be_stored_is_stored_later() -> None:
    store, told = Faulty(), list[LockEvent]()
    ticking = Ticking(store, told.append)
    with ticking.client as client, client.lock("apt", renew_every=37.5, max_failures=3).hold() as lease:
        lease.progress("3 of 5")
        store.before = refuse
        ticking.pass_by(37.5)
        until(lambda: any(isinstance(event, RenewalFailed) for event in told))
        store.before = lambda _command: None
        ticking.pass_by(12.5)
        until(lambda: (seen := client.lock("apt").inspect()) is not None and seen.progress == "3 of 5")


def test_h12_a_record_deleted_by_an_admin_is_gone() -> None:
    store = Faulty()
    with Client(store, listener=quiet) as client:
        lease = client.lock("apt", ttl=3).acquire()
        store.inner._memory.entries.clear()
        until(lambda: not lease.is_held)
        assert lease.lost_reason is LossReason.GONE
        assert lease.release() is False
        assert store.count(Remove) == 0


# --- telling --------------------------------------------------------------------------------------------------------


def test_every_callback_is_called_exactly_once_even_if_late() -> None:
    called: list[str] = []
    told: list[LockEvent] = []
    with Client(Faulty(), listener=told.append) as client:
        lease = client.lock("apt", ttl=3).acquire()
        lease.on_lost(lambda: called.append("early"))
        lease.on_lost(lambda: called.append("too"))
        client.lock("apt").break_lease(reason="a test", by="tester")
        until(lambda: len(called) == 2)
        lease.on_lost(lambda: called.append("late"))
        until(lambda: len(called) == 3)
        for _ in range(3):
            with pytest.raises(LeaseLost):
                lease.check()
    assert sorted(called) == ["early", "late", "too"]


def test_a_callback_is_not_called_for_a_lease_that_was_given_back() -> None:
    called: list[str] = []
    with Client(Faulty(), listener=quiet) as client:
        lease = client.lock("apt", ttl=3).acquire()
        lease.on_lost(lambda: called.append("lost"))
        lease.release()
        time.sleep(3.6)
    assert called == []


@pytest.mark.parametrize("error", [RuntimeError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_stops_no_other(error: BaseException) -> None:
    def fail() -> None:
        raise error

    told: list[LockEvent] = []
    called: list[int] = []
    with Client(Faulty(), listener=told.append) as client:
        lease = client.lock("apt", ttl=3).acquire()
        for number in range(3):
            lease.on_lost(fail)
            lease.on_lost(lambda number=number: called.append(number))
        client.lock("apt").break_lease(reason="a test", by="tester")
        until(lambda: len(called) == 3)
        until(lambda: sum(isinstance(event, CallbackFailed) for event in told) == 3)


def test_callbacks_that_hang_keep_no_other_lease_from_being_told() -> None:
    go, called = threading.Event(), threading.Event()
    with Client(Faulty(), listener=quiet) as client:
        hanging, well = client.lock("hanging", ttl=3).acquire(), client.lock("well", ttl=3).acquire()
        for _ in range(CALLBACKS_MAX - 1):
            hanging.on_lost(lambda: bool(go.wait(60)))
        client.lock("hanging").break_lease(reason="a test", by="tester")
        until(lambda: not hanging.is_held)
        well.on_lost(called.set)
        client.lock("well").break_lease(reason="a test", by="tester")
        assert called.wait(30)
        go.set()


def test_a_hanging_listener_does_not_delay_callbacks() -> None:
    go, called = threading.Event(), threading.Event()

    def hang(event: LockEvent) -> None:
        if isinstance(event, Lost):
            go.wait(60)

    with Client(Faulty(), listener=hang) as client:
        lease = client.lock("apt", ttl=3).acquire()
        lease.on_lost(called.set)
        client.lock("apt").break_lease(reason="a test", by="tester")
        assert called.wait(30)
        go.set()


def test_a_callback_may_ask_the_lease_anything() -> None:
    said: list[str] = []
    with Client(Faulty(), listener=quiet) as client:
        lease = client.lock("apt", ttl=3).acquire()

        def look() -> None:
            said.append(f"{lease.is_held} {lease.release()} {lease.lost_error().reason.value}")

        lease.on_lost(look)
        client.lock("apt").break_lease(reason="a test", by="tester")
        until(lambda: said)
    assert said == ["False True REVOKED"]


# --- life -----------------------------------------------------------------------------------------------------------


EARLIER: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _of_this_test_alone() -> None:
    """Leave aside threads of earlier tests: an engine looks after what was given up for some minutes."""
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


def lockstead_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("lockstead") and thread not in EARLIER
    ]


def test_a_fault_in_a_round_is_told_and_no_lease_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[LockEvent] = []
    with Client(Faulty(), listener=told.append) as client:
        lease = client.lock("apt", ttl=3).acquire()
        schedule, faults = client._engine.keeper._keeping._schedule, [0]
        due = schedule.due

        class Broken:
            def __getattr__(self, name: str) -> object:
                return getattr(schedule, name)

            def due(self, now: float) -> object:
                faults[0] += 1
                if faults[0] == 3:
                    raise RuntimeError("a fault of our own")
                return due(now)

        client._engine.keeper._keeping._schedule = Broken()  # type: ignore[assignment] # a fault where there should be none
        until(lambda: faults[0] > 3)
        client.lock("apt").break_lease(reason="a test", by="tester")
        until(lambda: not lease.is_held)


def test_threads_end_with_the_client() -> None:
    client = Client(Faulty(), listener=quiet)
    client.lock("apt").acquire().release()
    client.close()
    until(lambda: not lockstead_threads())


def test_threads_and_store_end_with_a_client_that_is_collected() -> None:
    store = Faulty()
    client = Client(store, listener=quiet)
    client.lock("apt").acquire().release()
    gone = weakref.ref(client._engine)
    del client
    gc.collect()
    until(lambda: gone() is None)
    assert store.is_closed
    until(lambda: not lockstead_threads())


def test_a_lease_keeps_its_client_alive() -> None:
    store = Faulty()
    lease = Client(store, listener=quiet).lock("apt", ttl=3).acquire()
    gc.collect()
    renewed = store.count(Extend)
    until(lambda: store.count(Extend) > renewed + 2)
    assert lease.release() is True


def test_no_file_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with Client(Faulty(), listener=quiet) as client, client.lock("apt").hold():
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_one_thread_keeps_many_leases() -> None:
    store = Faulty()
    with Client(store, listener=quiet) as client:
        leases = [client.lock(f"{number}", ttl=300).acquire() for number in range(500)]
        assert lockstead_threads() == ["lockstead-keeper"]
        assert all(lease.is_held for lease in leases)
        assert all(lease.release() for lease in leases)
    assert store.count(Create) == 500
    assert store.count(Read) == 0


def test_a_job_that_raises_costs_the_crew_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    workers, done = Workers("lockstead-test", 1), threading.Event()

    def fail() -> None:
        raise RuntimeError("a job")

    workers.submit(fail)
    workers.submit(done.set)
    assert done.wait(20)
    assert len(reported) == 1
    workers.close()


def test_a_system_without_threads_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers("lockstead-test", 4)
    monkeypatch.setattr(threading.Thread, "start", none)
    assert workers.submit(lambda: None) is False


def test_a_grant_that_cannot_be_kept_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Faulty()
    with Client(store, listener=quiet) as client:
        start = threading.Thread.start
        refusals = [0]

        def first_fails(thread: threading.Thread) -> None:
            if thread.name == "lockstead-keeper" and not refusals[0]:
                refusals[0] += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", first_fails)
        with pytest.raises(StoreUnavailable, match="new thread"):
            client.lock("apt").acquire()
        until(lambda: client.lock("apt").inspect() is None)


def test_h34_a_lease_without_a_renewing_thread_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    as_ever = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("lockstead"):
            raise RuntimeError("can't start new thread")
        as_ever(thread)

    with Client(Faulty(), listener=quiet) as client:
        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(StoreUnavailable, match="no thread can be started to renew the lease"):
            client.lock("apt").acquire(timeout=1)
        assert client.lock("apt").inspect() is None
        assert len(client._engine.keeper) == 0
        monkeypatch.undo()
        client.lock("apt").acquire(timeout=1).release()


def test_h33_queued_renewals_are_no_failures_and_go_by_urgency() -> None:
    """A hundred leases on a store that answers always, and a third as fast as they are due."""

    class Slow(Faulty):
        def perform(self, command: Command[object], limit: float) -> object:
            if isinstance(command, Extend):
                time.sleep(1.0)
            return super().perform(command, limit)

    told: list[LockEvent] = []
    with Client(Slow(), listener=told.append) as client:
        leases = [client.lock(f"apt-{number}", ttl=8).acquire() for number in range(100)]
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 10, 60)
        assert [lease.lost_reason for lease in leases if lease.lost_reason] == []
        assert not any(isinstance(event, Lost) for event in told)
