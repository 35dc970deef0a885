"""How a task is cancelled because of a lost lease, and what is left of that after its block: step by step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lockstead.runtime.cancel import LEAVE_WITHIN, TaskInterrupter


async def next_await() -> bool:
    """Return whether the next await is cancelled."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return True
    return False


def in_a_task(work: Callable[[asyncio.Task[Any]], Any]) -> Any:
    async def run() -> Any:
        task = asyncio.current_task()
        assert task is not None
        return await work(task)

    return asyncio.run(run())


def cancelled_now() -> TaskInterrupter:
    """Return a block whose task is cancelled for its sake at the next await."""
    one = TaskInterrupter()
    one.is_lost = True
    one._around.cancel()
    return one


def test_blocks_of_one_task_are_nested() -> None:
    failed: list[BaseException] = []

    def outside() -> None:
        try:
            TaskInterrupter()
        except RuntimeError as error:
            failed.append(error)

    async def inner() -> TaskInterrupter:
        return TaskInterrupter()

    async def work(task: asyncio.Task[Any]) -> None:
        asyncio.get_running_loop().call_soon(outside)
        await asyncio.sleep(0)
        assert "a block of a task only" in str(failed[0])
        first, second = TaskInterrupter(), TaskInterrupter()
        assert first._around is second._around
        assert list(first._around) == [first, second]
        assert first._around.task is task
        others = await asyncio.create_task(inner())
        assert others._around is not first._around, "it began with a copy of this one's context"

    in_a_task(work)


def test_a_task_is_cancelled_once_for_the_block_whose_turn_it_is() -> None:
    async def work(task: asyncio.Task[Any]) -> None:
        one = TaskInterrupter()
        one._around.cancel()
        assert (task.cancelling(), one._around.raised) == (0, [])
        one.is_lost = True
        for _ in range(2):
            one._around.cancel()
            assert (task.cancelling(), one._around.raised) == (1, [one.number])
        assert await next_await()
        await one.disarm(None)

    in_a_task(work)


class Loop:
    """Notes what it is to do, or is closed."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.is_closed = is_closed
        self.told: list[tuple[object, ...]] = []

    def call_later(self, *_: object) -> None:
        """Be something to call."""

    def call_soon_threadsafe(self, *words: object) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.told.append(words)


def test_the_finder_of_a_loss_gets_a_moment_to_leave() -> None:
    async def work(_task: asyncio.Task[Any]) -> None:
        for found_in, expected in (
            (threading.get_ident(), lambda loop, cancel: (loop.call_later, LEAVE_WITHIN, cancel)),
            (None, lambda _loop, cancel: (cancel,)),
        ):
            one, loop = TaskInterrupter(), Loop()
            one._loop = loop  # type: ignore[assignment] # what it asks of a loop
            one.fire(found_in)
            assert one.is_lost
            assert loop.told == [expected(loop, one._around.cancel)]
            one._around.leave(one)
        gone = TaskInterrupter()
        gone._loop = Loop(is_closed=True)  # type: ignore[assignment] # as above
        gone.fire()
        assert gone.is_lost

    in_a_task(work)


def test_a_block_keeps_the_cancellations_of_others() -> None:
    async def work(task: asyncio.Task[Any]) -> None:
        one = TaskInterrupter()
        assert await one.disarm(None) == (False, False)
        assert list(one._around) == []
        other = TaskInterrupter()
        task.cancel()
        assert await other.disarm(KeyError()) == (False, False)
        assert task.cancelling() == 1
        assert await next_await()

    in_a_task(work)


@pytest.mark.parametrize("is_cancelled_too", [False, True])
@pytest.mark.parametrize("error", [None, KeyError("mine"), asyncio.CancelledError()])
def test_only_our_cancellation_ends_with_the_block(is_cancelled_too: bool, error: BaseException | None) -> None:
    async def work(task: asyncio.Task[Any]) -> tuple[Any, int, bool]:
        one = cancelled_now()
        if is_cancelled_too:
            task.cancel()
        if isinstance(error, asyncio.CancelledError):
            assert await next_await(), "it came through"
        told = await one.disarm(error)
        return told, task.cancelling(), await next_await()

    told, cancelling, is_cancelled = in_a_task(work)
    assert told == (True, is_cancelled_too)
    assert cancelling == is_cancelled_too
    assert is_cancelled is (is_cancelled_too and isinstance(error, KeyError)), "delivered where it was swallowed"


def test_a_swallowed_cancellation_is_repeated_in_the_next_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_ever, slept = asyncio.sleep, list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await as_ever(0)

    async def work(_task: asyncio.Task[Any]) -> None:
        one = cancelled_now()
        assert await next_await()
        monkeypatch.setattr(asyncio, "sleep", sleep)
        assert await one.disarm(None) == (True, False)

    in_a_task(work)
    assert slept == [0]


def test_a_cancellation_from_before_the_block_is_not_of_somebody_else() -> None:
    async def work(task: asyncio.Task[Any]) -> None:
        task.cancel()
        assert await next_await()
        assert await cancelled_now().disarm(None) == (True, False)
        assert task.cancelling() == 1

    in_a_task(work)


def test_a_block_around_is_interrupted_once_the_one_within_is_left() -> None:
    async def work(task: asyncio.Task[Any]) -> None:
        outer, inner = TaskInterrupter(), cancelled_now()
        outer.is_lost = True
        outer._around.cancel()
        assert outer._around.raised == [inner.number]
        assert await next_await()
        assert await inner.disarm(asyncio.CancelledError()) == (True, False)
        assert task.cancelling() == 0
        assert await next_await()
        assert outer._around.raised == [inner.number, outer.number]
        await outer.disarm(asyncio.CancelledError())

    in_a_task(work)
