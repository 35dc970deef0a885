"""Renewals in batches: many leases in few requests, and a failure of one does not affect another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lockstead import Lease, LossReason
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.events import LockEvent, RenewalFailed
from lockstead.protocol.commands import Command, Pause, Read, Remove, Reply, Script, ask
from lockstead.runtime.keeper import BATCH_MAX
from lockstead.runtime.run import run_many
from lockstead.values import Name
from tests.runtime.faulty import Faulty, SetClock, Ticking, until


class Batching(Faulty):
    """A store that carries out many commands at once, and notes what it was asked together, with which limit."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Command[Any]]] = []
        self.limits: list[float] = []
        self.alter: Callable[[list[Any]], Sequence[Any]] = lambda answers: answers
        self.before_batch: Callable[[list[Command[Any]]], None] = lambda _commands: None

    def perform_many(self, commands: Sequence[Command[Any]], limit: float) -> Any:
        self.batches.append(list(commands))
        self.limits.append(limit)
        self.before_batch(list(commands))
        return self.alter([self._answer(command, limit) for command in commands])

    def _answer(self, command: Command[Any], limit: float) -> Any:
        try:
            return self.perform(command, limit)
        except StoreError as error:
            return error

    @property
    def keys(self) -> list[list[str]]:
        """The keys of each batch."""
        return [sorted(command.name.key for command in batch) for batch in self.batches]  # type: ignore[attr-defined]


def held(ticking: Ticking, *keys: str, **settings: Any) -> list[Lease]:
    return [
        ticking.client.lock(key, **{"ttl": 300, "renew_every": 37.5, "max_failures": 3, **settings}).acquire()
        for key in keys
    ]


def test_leases_taken_at_different_times_come_to_be_renewed_together() -> None:
    store = Batching()
    ticking = Ticking(store)
    with ticking.client:
        leases: list[Lease] = []
        for number in range(6):
            leases += held(ticking, f"{number}")
            ticking.pass_by(3)
        # the first is due 37.5 s after it was taken at the latest; the others are at least half way
        ticking.pass_by(20)
        until(lambda: all(lease.time_left == pytest.approx(297) for lease in leases))
        assert store.keys == [[f"{number}" for number in range(6)]]
        for number in range(2, 5):
            ticking.pass_by(37.5)
            until(lambda number=number: len(store.batches) == number)
            until(lambda: all(lease.time_left == pytest.approx(297) for lease in leases))
        assert store.keys == [[f"{number}" for number in range(6)]] * 4


def test_a_just_renewed_lease_does_not_join_a_batch() -> None:
    store = Batching()
    ticking = Ticking(store)
    with ticking.client:
        (first,) = held(ticking, "first")
        ticking.pass_by(30)
        (second,) = held(ticking, "second")
        ticking.pass_by(7.6)
        until(lambda: first.time_left == pytest.approx(297))
        assert store.keys == [["first"]]
        assert second.is_held


def test_a_thousand_leases_are_renewed_in_one_request() -> None:
    store = Batching()
    ticking = Ticking(store)
    with ticking.client:
        leases = held(ticking, *(f"{number}" for number in range(BATCH_MAX + 100)))
        ticking.pass_by(37.6)
        until(lambda: all(lease.time_left == pytest.approx(297) for lease in leases), 60)
        assert sorted(len(batch) for batch in store.batches) == [100, BATCH_MAX]


def test_a_short_limit_is_not_the_limit_of_those_that_have_a_long_one() -> None:
    store = Batching()
    ticking = Ticking(store)
    with ticking.client:
        leases = held(ticking, "long", "long too") + held(
            ticking, "short", ttl=200, renew_every=25, request_timeout=0.1
        )
        ticking.pass_by(37.6)
        until(lambda: len(store.batches) == 2)
        until(lambda: leases[0].time_left == pytest.approx(297))
        together = dict(zip(store.limits, store.keys, strict=True))
        assert together == {30.0: ["long", "long too"], 0.1: ["short"]}


def test_one_that_is_gone_disturbs_no_other() -> None:
    store, told = Batching(), list[LockEvent]()
    ticking = Ticking(store, told.append)
    with ticking.client:
        well, gone, other = held(ticking, "well", "gone", "other")
        del store.inner._memory.entries[Name("gone")]
        ticking.pass_by(37.6)
        until(lambda: gone.lost_reason is LossReason.GONE)
        until(lambda: well.time_left == pytest.approx(297) and other.time_left == pytest.approx(297))
        assert len(store.batches) == 1


def test_one_without_an_answer_is_asked_again_and_disturbs_no_other() -> None:
    store, told = Batching(), list[LockEvent]()
    ticking = Ticking(store, told.append)

    def lose_one(answers: list[Any]) -> list[Any]:
        return [OutcomeUnknown("lost"), *answers[1:]]

    with ticking.client:
        leases = held(ticking, "a", "b", "c")
        store.alter = lose_one
        ticking.pass_by(37.6)
        until(lambda: sum(lease.time_left == pytest.approx(297) for lease in leases) == 2)
        until(lambda: len([event for event in told if isinstance(event, RenewalFailed)]) == 1)
        store.alter = list
        ticking.pass_by(12.6)
        until(lambda: len(store.batches) == 2)
        until(lambda: min(lease.time_left for lease in leases) > 280)
        assert all(lease.is_held for lease in leases)


@pytest.mark.parametrize("error", [RuntimeError("a bug of the store"), StoreUnavailable("refused")])
def test_a_batch_that_raises_is_an_attempt_that_failed_for_each(error: Exception) -> None:
    store, told = Batching(), list[LockEvent]()
    ticking = Ticking(store, told.append)

    def fail(_commands: list[Command[Any]]) -> None:
        raise error

    with ticking.client:
        leases = held(ticking, "a", "b")
        store.before_batch = fail
        ticking.pass_by(37.6)
        until(lambda: len([event for event in told if isinstance(event, RenewalFailed)]) == 2)
        store.before_batch = lambda _commands: None
        ticking.pass_by(12.6)
        until(lambda: all(lease.time_left == pytest.approx(297) for lease in leases))


def test_a_short_batch_reply_costs_an_attempt_and_no_lease() -> None:
    store, told = Batching(), list[LockEvent]()
    ticking = Ticking(store, told.append)
    with ticking.client:
        leases = held(ticking, "a", "b")
        store.alter = lambda answers: answers[:1]
        ticking.pass_by(37.6)
        until(lambda: len([event for event in told if isinstance(event, RenewalFailed)]) == 2)
        store.alter = list
        ticking.pass_by(12.6)
        until(lambda: all(lease.time_left == pytest.approx(297) for lease in leases))


def test_h09_a_batch_that_hangs_delays_no_loss() -> None:
    store, go = Batching(), threading.Event()
    ticking = Ticking(store)
    with ticking.client:
        leases = held(ticking, "a", "b")
        store.before_batch = lambda _commands: bool(go.wait(60))  # type: ignore[assignment,return-value]
        ticking.pass_by(37.6)
        until(lambda: store.batches)
        ticking.pass_by(297 - 50 - 37.6 + 0.1)
        until(lambda: all(lease.lost_reason is not None for lease in leases))
        assert not go.is_set()
        go.set()


def test_progress_travels_with_a_batch() -> None:
    store = Batching()
    ticking = Ticking(store)
    with ticking.client:
        lease, _other = held(ticking, "a", "b")
        lease.progress("3 of 5")
        ticking.pass_by(37.6)
        until(lambda: (seen := ticking.client.lock("a").inspect()) is not None and seen.progress == "3 of 5")
        assert len(store.batches) == 1


def test_members_are_renewed_in_batches_too_and_keep_no_owner_waiting() -> None:
    store = Batching()
    ticking = Ticking(store)
    with ticking.client:
        sharing, alone = held(ticking, "shared", "alone")
        sharing.share()
        second, go = threading.Event(), threading.Event()

        def hang_in_the_second_round(_commands: list[Command[Any]]) -> None:
            if len(store.batches) > 1:
                second.set()
                go.wait(60)

        store.before_batch = hang_in_the_second_round
        ticking.pass_by(37.6)
        assert second.wait(20)
        # the member reads the record in a second round; the owner beside it has its answer already
        until(lambda: alone.time_left == pytest.approx(297))
        go.set()
        until(lambda: sharing.time_left > 290)
        assert sharing.release() is True


def test_a_release_waits_for_the_batch_that_its_renewal_is_in() -> None:
    store, go = Batching(), threading.Event()
    ticking = Ticking(store)
    with ticking.client:
        lease, other = held(ticking, "a", "b")
        store.before_batch = lambda _commands: bool(go.wait(60))  # type: ignore[assignment,return-value]
        ticking.pass_by(37.6)
        until(lambda: store.batches)
        releasing = threading.Thread(target=lease.release)
        releasing.start()
        time.sleep(0.1)
        assert store.count(Remove) == 0
        go.set()
        releasing.join(20)
        assert store.count(Remove) == 1
        assert other.is_held


# --- run_many ---------------------------------------------------------------------------------------------------------


def reading(key: str, times: int = 1) -> Script[int]:
    for _ in range(times):
        yield from ask(Read(Name(key)))
    return times


def pausing() -> Script[str]:
    yield Pause(Name("apt"), 5.0, 9.0)
    reply: Reply[Any] = yield Read(Name("apt"))
    return type(reply.answer).__name__


def failing() -> Script[None]:
    yield from ask(Read(Name("apt")))
    raise ValueError("mine")


def test_each_script_is_told_as_soon_as_it_has_ended() -> None:
    store = Batching()
    scripts: list[Script[Any]] = [reading("a", 3), reading("b"), failing(), reading("c", 2)]
    ends: list[tuple[int, int]] = []
    for number, _result in run_many(scripts, store, SetClock(), 1.0):
        ends.append((number, len(store.batches)))
    assert ends == [(1, 1), (2, 1), (3, 2), (0, 3)]


def test_what_a_script_returns_or_raises_is_its_own() -> None:
    store = Batching()
    results = dict(run_many([reading("a", 2), failing(), pausing()], store, SetClock(), 1.0))
    assert results[0] == 2
    assert isinstance(results[1], ValueError)
    assert results[2] == "Absent"


def test_nobody_is_waited_for() -> None:
    began = time.monotonic()
    list(run_many([pausing(), reading("a")], Batching(), SetClock(), 1.0))
    assert time.monotonic() - began < 4.0


def test_all_of_a_round_have_one_send_and_one_receipt() -> None:
    clock = SetClock()
    store = Batching()

    def takes_two_seconds(_commands: list[Command[Any]]) -> None:
        clock.at += 2.0

    store.before_batch = takes_two_seconds
    stamps: list[tuple[float, float]] = []

    def noting(rounds: int) -> Script[None]:
        for _ in range(rounds):
            reply: Reply[Any] = yield Read(Name("a"))
            stamps.append((reply.sent_at, reply.received_at))

    list(run_many([noting(1), noting(2)], store, clock, 1.0))
    assert stamps == [(1000.0, 1002.0), (1000.0, 1002.0), (1002.0, 1004.0)]


def test_no_scripts_ask_nothing() -> None:
    store = Batching()
    assert list(run_many([], store, SetClock(), 1.0)) == []
    assert store.batches == []


def test_a_paused_answer_is_never_sent_to_the_store() -> None:
    store = Batching()
    list(run_many([pausing()], store, SetClock(), 1.0))
    assert [type(command) for batch in store.batches for command in batch] == [Read]
