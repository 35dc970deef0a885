"""An event of a step process that died with its lock can be set; locks of those who live are left alone."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

import pytest

from dagster_lockstead import multiprocessing_workaround
from dagster_lockstead.multiprocessing_workaround import SemaphoreRepair, free
from tests.dagster.taking import until

CONTEXT = multiprocessing.get_context("spawn")


def take(event: Event, has_it: Any, *, dies: bool) -> None:
    """Take an event's inner lock, and end with it, or keep it until this is killed."""
    event._cond._lock.acquire()  # type: ignore[attr-defined]
    has_it.send(True)
    if dies:
        os._exit(0)
    threading.Event().wait(600)


@contextmanager
def taken(event: Event, *, dies: bool) -> Iterator[Any]:
    """Return a process that has taken an event's inner lock."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=take, args=(event, there), kwargs={"dies": dies})
    process.start()
    try:
        assert here.poll(100)
        yield process
    finally:
        process.kill()
        process.join()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing_workaround, "LOOK_EVERY", 0.05)


def test_an_event_can_be_set_after_its_process_died() -> None:
    event = CONTEXT.Event()
    with taken(event, dies=True) as process:
        process.join()
        setting = threading.Thread(target=event.set, daemon=True)
        setting.start()
        setting.join(0.5)
        assert setting.is_alive(), "nothing was stuck"
        with SemaphoreRepair(lambda: [(event, process)]):
            setting.join(100)
        assert not setting.is_alive()
    assert event.is_set()
    # and its lock is as good as before
    assert not free(event)
    event.clear()
    event.set()
    assert event.wait(100)


def test_a_process_that_lives_keeps_the_lock() -> None:
    event = CONTEXT.Event()
    looks: list[int] = []
    with taken(event, dies=False) as process:
        with SemaphoreRepair(lambda: looks.append(1) or [(event, process)]):  # type: ignore[func-returns-value]
            until(lambda: len(looks) > 3, "it was looked at")
        assert not event._cond._lock.acquire(block=False)  # type: ignore[attr-defined]


def test_a_thread_of_the_run_worker_keeps_the_lock() -> None:
    event = CONTEXT.Event()
    with event._cond:  # type: ignore[attr-defined]
        seen: list[bool] = []
        looking = threading.Thread(target=lambda: seen.append(free(event)))
        looking.start()
        looking.join()
        assert seen == [False]
        assert event._cond._lock._semlock._is_mine()  # type: ignore[attr-defined]
    assert not free(event)
