"""How a task awaits a call in a thread, and what happens to the call when it is no longer awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from lockstead.errors import StoreUnavailable
from lockstead.runtime import aside as module
from lockstead.runtime.aside import aside, in_thread
from lockstead.runtime.workers import Workers


class Threads:
    """Workers that do a job when the test does it, or have no thread for it."""

    def __init__(self, *, are_there: bool = True) -> None:
        self.are_there = are_there
        self.jobs: list[Callable[[], None]] = []
        self.queued: list[bool] = []
        self.is_closed = False

    def submit(self, job: Callable[[], None], *, queue: bool = True) -> bool:
        self.jobs.append(job)
        self.queued.append(queue)
        return self.are_there

    def close(self) -> None:
        self.is_closed = True


def called(threads: Threads, job: Callable[[], Any], **said: Any) -> Any:
    return in_thread(cast(Workers, threads), job, **said)


def test_what_a_call_returns_or_raises_belongs_to_who_awaits_it() -> None:
    async def work() -> None:
        threads, late = Threads(), list[str]()

        def call(job: Callable[[], Any]) -> asyncio.Task[Any]:
            return asyncio.create_task(called(threads, job, came_late=lambda: late.append("late")))

        answers, fails = call(lambda: 7), call(odd)
        await asyncio.sleep(0)
        for job in threads.jobs:
            job()
        assert await answers == 7
        with pytest.raises(Odd):
            await fails
        assert late == []
        assert threads.queued == [True] * 2

    asyncio.run(work())


class Odd(BaseException):
    """What no `except Exception` stops."""


def odd() -> None:
    raise Odd


def test_a_call_whose_await_ended_is_skipped_or_reported_late() -> None:
    async def work() -> None:
        threads, done, faults = Threads(), list[str](), list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: faults.append(told))
        waits = [
            asyncio.create_task(called(threads, lambda: done.append("call"), came_late=came))
            for came in (lambda: done.append("late"), lambda: done.append("late"), None)
        ]
        await asyncio.sleep(0)
        assert len(threads.jobs) == 3
        waits[0].cancel()
        await asyncio.sleep(0)
        threads.jobs[0]()
        assert done == [], "it is not begun"

        for number in (1, 2):
            await asyncio.sleep(0)
            job = threads.jobs[number]
            job()
            waits[number].cancel()
        assert done == ["call", "call"]
        assert await asyncio.gather(*waits, return_exceptions=True)
        assert done == ["call", "call"], "it ended before"
        assert faults == [], "the answer to who is gone is dropped"

    asyncio.run(work())


def test_a_call_reports_its_end_after_its_await_ended() -> None:
    async def work(came_late: Callable[[], None] | None) -> list[str]:
        begun, ends = threading.Event(), threading.Event()

        def job() -> None:
            begun.set()
            ends.wait(30)
            seen.append("ended")

        seen: list[str] = []
        workers = Workers("lockstead-test", 1)
        ended = threading.Event()
        came = None if came_late is None else lambda: (seen.append("late"), ended.set())
        waits = asyncio.create_task(in_thread(workers, job, came_late=cast(Any, came)))
        assert await asyncio.to_thread(begun.wait, 30)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert seen == []
        ends.set()
        workers.submit(ended.set)
        assert await asyncio.to_thread(ended.wait, 30)
        workers.close()
        return seen

    assert asyncio.run(work(int)) == ["ended", "late"]
    assert asyncio.run(work(None)) == ["ended"]


def test_an_answer_that_comes_after_the_end_of_the_loop_is_dropped() -> None:
    threads = Threads()

    async def begin() -> asyncio.Task[Any]:
        waits = asyncio.create_task(called(threads, int))
        await asyncio.sleep(0)
        return waits

    loop = asyncio.new_event_loop()
    waits = loop.run_until_complete(begin())
    loop.close()
    threads.jobs.pop()()
    assert not waits.done()
    waits._log_destroy_pending = False  # type: ignore[attr-defined] # it is meant to be


def test_without_a_thread_nothing_is_awaited() -> None:
    async def work() -> None:
        with pytest.raises(StoreUnavailable, match="no thread for the request"):
            await called(Threads(are_there=False), int)

    asyncio.run(work())


def test_a_thread_of_its_own_ends_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    threads = Threads()

    def workers(name: str, most: int) -> Threads:
        made.append((name, most))
        return threads

    monkeypatch.setattr(module, "Workers", workers)

    async def work() -> None:
        waits = asyncio.create_task(aside(lambda: 7))
        await asyncio.sleep(0)
        assert not threads.is_closed
        threads.jobs.pop()()
        assert await waits == 7
        assert threads.is_closed
        threads.are_there, threads.is_closed = False, False
        with pytest.raises(StoreUnavailable):
            await aside(int)
        assert threads.is_closed

    asyncio.run(work())
    assert made == [("lockstead-aside", 1)] * 2
