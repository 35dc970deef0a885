"""A lease that is taken away: the body is aborted in time, the run fails as LeaseLost, and its retries take it anew."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow, Task, flow, get_client, task

from lockstead import AsyncLease, FenceGuard, Lease, LeaseLost, Lock, SqlFenceStore, current_lease
from prefect_lockstead import locked
from tests.servers.prefect import PrefectServer

TTL = 4.0

IN_TIME = TTL / 8 + 1
"""Seconds from the loss to the end of the body, at the latest: one renewal, and one second."""

PAUSE = 600


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db#apt?ttl={TTL}s"


class Thief:
    """Takes the lock away as soon as a body runs, and holds it; each time that `inside` is released, `times` in all."""

    def __init__(self, url: str, times: int = 1) -> None:
        self.inside = threading.Semaphore(0)
        self.taken_at: list[float] = []
        self._url, self._times = url, times
        self._pool = ThreadPoolExecutor(1)
        self._lease: Future[Lease] = self._pool.submit(self._steal)

    def _steal(self) -> Lease:
        lock = Lock(self._url, owner="thief")
        for turn in range(self._times):
            assert self.inside.acquire(timeout=120)
            assert lock.break_lease(reason="a test", now=True) is not None
            lease = lock.acquire(30)
            self.taken_at.append(time.monotonic())
            if turn < self._times - 1:
                lease.release()
        return lease

    def end(self) -> None:
        """Check that the new owner was left alone, and give the lock back."""
        lease = self._lease.result()
        lease.check()
        seen = Lock(self._url).inspect()
        assert seen is not None
        assert seen.holder == lease.holder
        assert lease.release()
        self._pool.shutdown()


@pytest.fixture
def thief(url: str) -> Iterator[Thief]:
    one = Thief(url)
    yield one
    one.inside.release()  # it must end, also where nothing ran
    one._pool.shutdown()


def sleeper(thief: Thief, ended_at: list[float], *, is_async: bool) -> Callable[..., Any]:
    def sleep() -> None:
        thief.inside.release()
        try:
            time.sleep(PAUSE)
        finally:
            ended_at.append(time.monotonic())

    async def asleep() -> None:
        thief.inside.release()
        try:
            await asyncio.sleep(PAUSE)
        finally:
            await asyncio.sleep(0.05)  # a clean-up that awaits
            ended_at.append(time.monotonic())

    return asleep if is_async else sleep


def ended(work: Any) -> Any:
    state = work(return_state=True)
    return asyncio.run(state) if asyncio.iscoroutine(state) else state


@pytest.mark.parametrize("limit", [None, 300], ids=["no-timeout", "timeout"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("decorator", [flow, task])
def test_a_sleeping_body_is_aborted_in_time_without_a_timeout(
    server: PrefectServer, url: str, thief: Thief, decorator: Any, is_async: bool, limit: int | None
):
    ended_at: list[float] = []
    work = decorator(timeout_seconds=limit)(locked(url)(sleeper(thief, ended_at, is_async=is_async)))
    state = ended(work)
    with pytest.raises(LeaseLost, match=r"is lost, (REVOKED|TAKEN)"):
        state.result()
    assert state.is_failed()
    assert state.name != "TimedOut"
    thief.end()
    assert ended_at[0] < thief.taken_at[0] + IN_TIME


def test_a_timeout_during_the_cleanup_does_not_hide_the_loss(server: PrefectServer, url: str, thief: Thief):
    @flow(timeout_seconds=4)
    @locked(url)
    def publish() -> None:
        thief.inside.release()
        try:
            time.sleep(PAUSE)
        finally:
            time.sleep(PAUSE)  # until the time-out

    state = ended(publish)
    with pytest.raises(LeaseLost):
        state.result()
    assert state.name != "TimedOut"
    thief.end()


def test_a_body_cancelled_during_its_loss_stays_cancelled(server: PrefectServer, url: str, thief: Thief):
    ended_at: list[float] = []
    work = flow(locked(url)(sleeper(thief, ended_at, is_async=True)))

    async def cancelled_too() -> None:
        running = asyncio.create_task(work())
        while not thief.taken_at:  # noqa: ASYNC110 - it is a thread that is waited for
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled_too())
    assert len(ended_at) == 1
    thief.end()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("decorator", [flow, task])
def test_retries_take_new_leases_and_the_last_loss_is_named(
    server: PrefectServer, url: str, decorator: Any, is_async: bool
):
    thief, tokens, hooked = Thief(url, times=3), list[int](), list[str]()
    body = sleeper(thief, [], is_async=is_async)

    def attempt() -> None:
        tokens.append(current_lease().sequencer().token)
        body()

    async def aattempt() -> None:
        tokens.append((await current_lease(AsyncLease).sequencer()).token)
        await body()

    def hook(of: Any, run: Any, state: Any) -> None:
        hooked.append(state.name)

    work = decorator(retries=2, name="publish", on_failure=[hook])(locked(url)(aattempt if is_async else attempt))
    state = ended(work)
    thief.end()
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3
    assert len(hooked) == 1
    assert state.name == "LeaseLost"
    assert isinstance(work, Flow | Task)
    if isinstance(work, Flow):
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(state.state_details.flow_run_id)
        assert (run.state.name, run.state.is_failed(), run.run_count) == ("LeaseLost", True, 3)


def test_a_directly_called_task_raises_and_its_flow_may_continue(server: PrefectServer, url: str, thief: Thief):
    work = task(locked(url)(sleeper(thief, [], is_async=False)))

    @flow
    def publish() -> str:
        with pytest.raises(LeaseLost):
            work()
        return "went on"

    assert publish() == "went on"
    thief.end()


def test_a_thread_in_a_c_call_ends_late_and_its_write_is_refused(
    server: PrefectServer, url: str, thief: Thief, tmp_path: Path
):
    """The documented limit: C code that does not come back to the interpreter cannot be interrupted in any thread."""
    data = tmp_path / "totals.db"
    refused: list[str] = []
    with closing(sqlite3.connect(data)) as rows, rows:
        SqlFenceStore(rows).create_table()

    gate, opened = threading.Lock(), list[bool]()

    def open_when_lost(lease: Lease) -> None:
        while not (thief.taken_at and not lease.is_held):
            time.sleep(0.01)
        opened.append(True)
        gate.release()

    @task
    @locked(url)
    def total() -> None:
        lease = current_lease()
        assert isinstance(lease, Lease)
        sequencer = lease.sequencer()
        gate.acquire()
        opener = threading.Thread(target=open_when_lost, args=(lease,))
        opener.start()
        try:
            thief.inside.release()
            gate.acquire()  # one call of C, which nothing interrupts outside the main thread
            while True:  # the interrupt may come a moment after the loss is known
                time.sleep(0.01)
        finally:
            assert opened
            opener.join()
            # a body that does not look, and writes
            with closing(sqlite3.connect(data)) as rows, rows:
                FenceGuard(SqlFenceStore(rows)).admit(thief._lease.result().sequencer())
                try:
                    FenceGuard(SqlFenceStore(rows)).admit(sequencer)
                except LeaseLost as late:
                    refused.append(str(late))

    @flow
    def publish() -> None:
        with pytest.raises(LeaseLost):
            total.submit().result()

    publish()
    assert len(refused) == 1
    thief.end()
