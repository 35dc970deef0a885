"""A run that is over is noticed by who works for it, and a database that hangs holds nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from dagster_lockstead import watching
from dagster_lockstead.watching import Watch
from tests.dagster.taking import until


@dg.job
def nothing() -> None:
    """Do nothing."""


@pytest.fixture
def store(instance: dg.DagsterInstance) -> dg.DagsterInstance:
    """Return an instance with runs of no process."""
    return instance


def running(store: dg.DagsterInstance) -> str:
    """Return a run that goes on."""
    run = store.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED)
    return run.run_id


_OTHERS: set[threading.Thread] = set()
"""What tests before have left: their database may still keep a question waiting, for as long as SQLite does."""


def threads() -> list[threading.Thread]:
    """Return the threads of this test's watches."""
    names = ("lockstead-run", "lockstead-parent")
    return [one for one in threading.enumerate() if one.name in names and one not in _OTHERS]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    _OTHERS.clear()
    _OTHERS.update(threads())
    watched = set(watching._WATCHED)
    yield
    until(lambda: not threads(), "the threads end", 20)
    assert set(watching._WATCHED) <= watched


def test_each_watch_is_notified_once_of_a_canceled_run(store: dg.DagsterInstance) -> None:
    run_id = running(store)
    first: list[str] = []
    second: list[str] = []
    one, two = Watch(store, run_id, gone=first.append), Watch(store, run_id, gone=second.append)
    one.start()
    two.start()
    assert len(threads()) == 1
    time.sleep(2 * watching.ASK_EVERY)
    assert first == second == []
    store.report_run_canceled(store.get_run_by_id(run_id))
    until(lambda: first and second, "both are told")
    assert first == second == [f"the run {run_id} has ended: CANCELED"]
    one.stop()
    two.stop()


def test_a_run_that_is_deleted_is_over(store: dg.DagsterInstance) -> None:
    run_id = running(store)
    told: list[str] = []
    watch = Watch(store, run_id, gone=told.append)
    watch.start()
    store.delete_run(run_id)
    until(lambda: told, "it is told")
    assert told == [f"the run {run_id} no longer exists"]
    watch.stop()


def test_who_stops_is_not_told_while_others_are(store: dg.DagsterInstance) -> None:
    run_id = running(store)
    first: list[str] = []
    second: list[str] = []
    one, two = Watch(store, run_id, gone=first.append), Watch(store, run_id, gone=second.append)
    one.start()
    two.start()
    one.stop()
    store.report_run_canceled(store.get_run_by_id(run_id))
    until(lambda: second, "the other is told")
    assert first == []
    two.stop()


def test_who_comes_after_the_news_hears_it_too(store: dg.DagsterInstance) -> None:
    run_id = running(store)
    first: list[str] = []
    second: list[str] = []
    one = Watch(store, run_id, gone=first.append)
    one.start()
    store.report_run_canceled(store.get_run_by_id(run_id))
    until(lambda: first, "it is told")
    two = Watch(store, run_id, gone=second.append)
    two.start()
    until(lambda: second, "the late one is told")
    one.stop()
    two.stop()


class Away:
    """Stands where an instance would whose database is away: it hangs until it is let go, or raises."""

    is_ephemeral = False

    def __init__(self, *, hangs: bool) -> None:
        self.asked = threading.Event()
        self.back = threading.Event()
        self._hangs = hangs

    def get_run_by_id(self, run_id: str) -> Any:
        self.asked.set()
        if self._hangs:
            self.back.wait(60)
        raise OSError("the database is away")


def test_a_hanging_database_delays_no_one_and_adds_no_threads() -> None:
    away = Away(hangs=True)
    told: list[str] = []
    watch = Watch(away, "run", gone=told.append)  # type: ignore[arg-type]
    watch.start()
    assert away.asked.wait(20)
    began_at = time.monotonic()
    for _ in range(50):
        watch.stop()
        watch.start()
    watch.stop()
    assert time.monotonic() - began_at < 1.0
    assert len(threads()) == 1
    away.back.set()
    until(lambda: not threads(), "the thread ends", 20)
    assert told == []


def test_a_database_that_raises_says_nothing_about_the_run() -> None:
    away = Away(hangs=False)
    told: list[str] = []
    watch = Watch(away, "run", gone=told.append)  # type: ignore[arg-type]
    watch.start()
    for _ in range(2):
        away.asked.clear()
        assert away.asked.wait(20)
    assert told == []
    watch.stop()
