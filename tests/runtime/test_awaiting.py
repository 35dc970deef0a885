"""How a script is driven from an event loop: its bell, its pauses, and what a loop that stood still costs it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from lockstead.errors import NotAcquired, OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Absent, OutOfTime, Pause, Paused, Read, Reply, Script
from lockstead.runtime import awaiting
from lockstead.runtime.aio_drive import run as arun
from lockstead.runtime.aio_drive import wait_in_line
from lockstead.runtime.awaiting import LATE, STALLED, AsyncWaker
from lockstead.runtime.engine import Engine
from lockstead.runtime.local_queue import RECHECK_INTERVAL
from lockstead.runtime.run import Limits
from tests.runtime.faulty import Faulty
from tests.runtime.keeping import APT, Alone, asked


class Performing(Faulty):
    """A store with an awaiting side. limits: what each request was given."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[float] = []
        self.answer: Callable[[], object] = Absent

    async def aperform(self, _command: object, limit: float) -> object:
        self.limits.append(limit)
        answer = self.answer()
        return await answer if asyncio.iscoroutine(answer) else answer


def driven(alone: Alone, script: Script[Any], limits: Limits | None = None) -> Any:
    async def drive() -> Any:
        return await arun(script, alone.store, alone.clock, limits or Limits(5.0), AsyncWaker(alone.engine))

    return asyncio.run(drive())


def test_a_waker_that_was_rung_ends_a_wait_until_it_is_taken() -> None:
    async def work() -> AsyncWaker:
        bell = AsyncWaker(cast(Engine, None), int)
        assert (bell.came_late, bell.is_over) == (int, False)
        assert (await bell.wait(0), bell.take()) == (False, False)
        bell.ring()
        assert (await bell.wait(30), bell.take()) == (True, True)
        assert (await bell.wait(0), bell.take()) == (False, False)
        threading.Timer(0.01, bell.ring).start()
        assert await bell.wait(30)
        return bell

    bell = asyncio.run(work())
    bell.take()
    bell.ring()
    assert bell.take(), "the loop is closed: there is nobody in it to wake"


def test_a_script_is_told_answers_and_failures_and_its_word_is_given() -> None:
    alone = Alone(store := Performing())
    answers: list[Any] = [Absent(), StoreUnavailable("no"), ValueError("odd")]

    def answer() -> object:
        said = answers.pop(0)
        alone.clock.at += 1
        if isinstance(said, Exception):
            raise said
        return said

    store.answer = answer
    first, second, third = driven(alone, asked(*[Read(APT)] * 3))
    assert first == Reply(Absent(), 1000.0, 1001.0)
    assert type(second) is StoreUnavailable
    assert type(third) is OutcomeUnknown
    assert store.limits == [5.0] * 3
    assert store.seen == []


def test_what_is_not_of_the_store_ends_the_script() -> None:
    alone = Alone(store := Performing())
    ended: list[str] = []

    def script() -> Script[None]:
        try:
            yield Read(APT)
        finally:
            ended.append("closed")

    def answer() -> object:
        raise NotAcquired("no", key="apt", waited=0.0)

    store.answer = answer
    made = script()
    with pytest.raises(NotAcquired):
        driven(alone, made)
    assert ended == ["closed"]


def test_a_request_beyond_its_limit_has_an_unknown_outcome(alone: Alone) -> None:
    slow = Performing()
    slow.answer = lambda: asyncio.sleep(30)
    (error,) = driven(Alone(slow), asked(Read(APT)), Limits(0.01))
    assert str(error) == "no answer within 0.01 s"
    ends = threading.Event()
    alone.store.before = lambda _command: bool(ends.wait(30)) and None
    came: list[str] = []

    async def drive() -> Any:
        bell = AsyncWaker(alone.engine, lambda: came.append("late"))
        answer = await arun(asked(Read(APT)), alone.store, alone.clock, Limits(0.01), bell)
        ends.set()
        await asyncio.to_thread(until_ended)
        return answer

    def until_ended() -> None:
        end = time.monotonic() + 20
        while not came and time.monotonic() < end:
            time.sleep(0.001)

    (error,) = asyncio.run(drive())
    assert str(error) == "no answer within 0.01 s"
    assert came == ["late"]


def test_a_store_gets_more_time_than_the_request_to_report_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float | None] = []
    as_ever = asyncio.timeout

    def timeout(seconds: float | None) -> asyncio.Timeout:
        given.append(seconds)
        return as_ever(seconds)

    monkeypatch.setattr(awaiting.asyncio, "timeout", timeout)
    for store in (Faulty(), Performing()):
        given.clear()
        (reply,) = driven(Alone(store), asked(Read(APT)))
        assert isinstance(reply.answer, Absent)
        assert given == [5.0 + LATE]


@pytest.mark.parametrize(("late", "is_resumed"), [(-0.01, False), (0.0, True), (1.0, True)])
def test_a_wait_that_ended_in_a_blocked_loop_tries_once_more(late: float, is_resumed: bool) -> None:
    alone = Alone(store := Performing())
    began_at = alone.clock.at
    limits = Limits(5.0, began_at + 1)

    def stands_still() -> object:
        alone.clock.at = began_at + limits.of(began_at) + LATE + STALLED + late
        return Absent()

    store.answer = stands_still
    _first, second = driven(alone, asked(*[Read(APT)] * 2), limits)
    assert isinstance(second, Reply) is is_resumed
    assert isinstance(second, OutOfTime) is not is_resumed


def test_a_pause_is_ended_by_its_waker_and_is_not_a_late_request(alone: Alone) -> None:
    async def drive(rings: bool) -> list[Any]:
        bell = AsyncWaker(alone.engine)
        if rings:
            bell.ring()
        return await arun(
            asked(Pause(APT, 0.02, 0.02, wake_on_change=False)), alone.store, alone.clock, Limits(5.0), bell
        )

    began_at = time.monotonic()
    (reply,) = asyncio.run(drive(False))
    assert reply.answer == Paused(0.02)
    assert time.monotonic() - began_at >= 0.02
    (reply,) = asyncio.run(drive(True))
    assert reply.answer == Paused(0.02, True)


class Waited:
    """A bell that notes for how long it was awaited, and lets so much time go by."""

    def __init__(self, alone: Alone, most: int = 99) -> None:
        self.alone, self.most = alone, most
        self.waits: list[float] = []
        self.taken = 0
        self.is_over = self.is_gone = self.is_stopped = False

    async def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.alone.clock.at += seconds
        if len(self.waits) == self.most:
            self.alone.engine.close()
        return False

    def take(self) -> bool:
        self.taken += 1
        return False

    def ring(self) -> None:
        """Nobody sleeps."""


def test_a_queued_waiter_checks_until_first_or_out_of_time(alone: Alone) -> None:
    ahead, bell = Waited(alone), Waited(alone)
    alone.engine.local_queue.enter("apt", ahead)
    alone.engine.local_queue.enter("apt", bell)

    def waits(gives_up_at: float, bell: Waited = bell) -> bool:
        return asyncio.run(wait_in_line(alone.engine, "apt", cast(AsyncWaker, bell), gives_up_at))

    assert not waits(alone.clock.at + 12)
    assert (bell.waits, bell.taken) == ([RECHECK_INTERVAL, RECHECK_INTERVAL, 2.0], 3)
    alone.engine.local_queue.leave("apt", ahead)
    assert waits(alone.clock.at + 0.1)
    assert waits(math.inf)
    assert not waits(alone.clock.at), "its time is over, first or not"
    assert len(bell.waits) == 3
    last = Waited(alone, most=4)
    alone.engine.local_queue.enter("apt", last)
    assert waits(math.inf, last)
    assert last.waits == [RECHECK_INTERVAL] * 4
