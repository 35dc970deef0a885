"""Which thread runs a job, and what happens if the system gives none: each decision by itself."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstead.runtime.workers import Workers
from tests.runtime.faulty import until


def nothing() -> None:
    """Be a job."""


def another() -> None:
    """Be another one."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads that were to be started; none is."""
    threads: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        threads.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return threads


def refusing(monkeypatch: pytest.MonkeyPatch, error: BaseException, name: str = "start") -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, name, refused)


def test_a_thread_is_started_if_none_is_free_up_to_the_maximum(
    started: list[threading.Thread],
) -> None:
    workers = Workers("lockstead-test", 2)
    for threads in (1, 2, 2):
        assert workers.submit(nothing)
        assert (len(started), len(workers._threads)) == (threads, threads)
    assert [(thread.name, thread.daemon) for thread in started] == [("lockstead-test", True)] * 2
    assert not workers.submit(another, queue=False)
    assert list(workers._jobs) == [nothing] * 3
    workers._free = 4
    assert workers.submit(nothing, queue=False)
    assert not workers.submit(another, queue=False), "as many jobs wait as threads are free"
    assert (list(workers._jobs), len(started)) == ([nothing] * 4, 2)
    free = Workers("lockstead-test", 2)
    free._free = 1
    assert free.submit(nothing)
    assert len(started) == 2
    assert free.submit(another, queue=False)
    assert len(started) == 3
    workers.close()
    assert not workers.submit(another)


def test_without_new_threads_running_ones_do_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("start", "__init__"):
        with monkeypatch.context() as patch:
            workers = Workers("lockstead-test", 2)
            refusing(patch, RuntimeError("can't start new thread"), name)
            assert not workers.submit(nothing)
            assert (list(workers._jobs), workers._threads) == ([], set())
            workers._threads.add(threading.current_thread())
            assert workers.submit(nothing)
            assert (list(workers._jobs), workers._threads) == ([nothing], {threading.current_thread()})
            workers._threads.clear()
            workers._jobs.clear()
            assert workers._without_new_thread(nothing, None), "somebody has taken it meanwhile"


def test_a_thread_that_was_never_begun_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("lockstead-test", 2)
    refusing(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        workers.submit(nothing)
    assert workers._threads == set()

    def interrupted(thread: Any) -> None:
        thread._ident = 7
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.submit(nothing)
    assert len(workers._threads) == 1, "it has begun"
    refusing(monkeypatch, KeyboardInterrupt(), "__init__")
    with pytest.raises(KeyboardInterrupt):
        workers.submit(nothing)
    assert len(workers._threads) == 1


class FakeCondition:
    """The condition on which a free thread waits: each time something happens, and it is told whether it was
    notified."""

    def __init__(self, workers: Workers, *happens: tuple[Callable[[], object], bool]) -> None:
        self.workers, self.happens = workers, list(happens)
        self.seen: list[tuple[float, int]] = []

    def wait(self, seconds: float) -> bool:
        self.seen.append((seconds, self.workers._free))
        work, was_woken = self.happens.pop(0)
        work()
        return was_woken


@pytest.fixture
def workers() -> Iterator[Workers]:
    one = Workers("lockstead-test", 2, idle=7.0)
    one._threads.add(threading.current_thread())
    return one


def waiting(workers: Workers, *happens: tuple[Callable[[], object], bool]) -> tuple[object, list[tuple[float, int]]]:
    waits = FakeCondition(workers, *happens)
    workers._changed = waits  # type: ignore[assignment] # what it asks of a condition
    return workers._next(), waits.seen


def test_a_thread_waits_for_a_job_and_ends_if_none_comes_in_time(workers: Workers) -> None:
    assert waiting(workers, (int, True), (lambda: workers._jobs.append(nothing), True)) == (nothing, [(7.0, 1)] * 2)
    assert (workers._free, list(workers._jobs)) == (0, [])
    assert waiting(workers, (lambda: workers._jobs.append(nothing), False)) == (nothing, [(7.0, 1)])
    workers._jobs.extend([nothing, another])
    assert waiting(workers) == (nothing, [])
    assert list(workers._jobs) == [another]
    workers._jobs.clear()
    assert workers._threads
    assert waiting(workers, (int, False)) == (None, [(7.0, 1)])
    assert (workers._free, workers._threads) == (0, set())


def test_a_thread_ends_with_the_crew_once_all_jobs_are_done(workers: Workers) -> None:
    workers._jobs.append(nothing)
    workers.close()
    assert workers._next() is nothing
    assert workers._next() is None
    assert workers._threads == set()


def test_a_job_is_done_and_forgotten_and_one_that_fails_is_reported(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Job:
        def __call__(self) -> None:
            done.append("done")

    def fails() -> None:
        raise KeyboardInterrupt

    done: list[str] = []
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    jobs: list[Any] = [Job(), fails]
    ref = weakref.ref(jobs[0])
    is_alive: list[bool] = []

    def following() -> Any:
        is_alive.append(ref() is not None)
        return jobs.pop(0) if jobs else None

    workers._threads.clear()
    monkeypatch.setattr(workers, "_next", following)
    workers._work()
    assert (done, is_alive) == (["done"], [True, False, False])
    (args,) = reported
    assert (args.exc_type, args.thread) == (KeyboardInterrupt, threading.current_thread())
    assert workers._threads == {threading.current_thread()}


def test_free_threads_get_the_jobs_and_end_on_close() -> None:
    workers, met = Workers("lockstead-test", 3, idle=600), threading.Barrier(3)
    for _ in range(3):
        assert workers.submit(lambda: bool(met.wait(60)))
    until(lambda: workers._free == 3)
    done = threading.Event()
    assert workers.submit(done.set)
    assert done.wait(30), "a thread that is free is woken"
    threads = list(workers._threads)
    assert len(threads) == 3
    until(lambda: workers._free == 3)
    workers.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
