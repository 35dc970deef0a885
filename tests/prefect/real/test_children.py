"""What Prefect runs within a section works under its lease, and no longer: threads, asyncio tasks, subflows."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.futures import wait
from prefect.task_runners import ThreadPoolTaskRunner

import lockstead
from prefect_lockstead import locked
from prefect_lockstead.children import inherited

pytestmark = pytest.mark.usefixtures("server")

LIMIT = 1.0
"""Seconds after the loss was noticed within which every child has to have stopped."""


class Diary:
    """What the children wrote, when, and when the loss was noticed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begun: list[int] = []
        self.written_at: list[float] = []
        self.noticed_at: list[float] = []
        self.at_work = threading.Semaphore(0)

    def begin(self, part: int) -> None:
        self.begun.append(part)
        self.at_work.release()

    def write(self) -> None:
        self.written_at.append(time.monotonic())

    def watch(self, lease: lockstead.Lease | lockstead.AsyncLease) -> None:
        lease.on_lost(lambda: self.noticed_at.append(time.monotonic()))

    def take_away(self, begun: int) -> threading.Thread:
        """Break the lease as soon as so many children are at work."""

        def take() -> None:
            for _one in range(begun):
                assert self.at_work.acquire(timeout=30)
            lockstead.Lock(self.url).break_lease(reason="a test", now=True)

        thread = threading.Thread(target=take)
        thread.start()
        return thread

    def assert_nobody_wrote_later(self) -> None:
        assert self.noticed_at
        assert max(self.written_at) < self.noticed_at[0] + LIMIT


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(f"sqlite:///{tmp_path}/locks.db#apt?ttl=5s")


def work_of(diary: Diary, seconds: float = 20.0):
    """Return a task that writes until it is stopped."""

    @task(retries=2, retry_delay_seconds=60)
    def work(part: int) -> None:
        diary.begin(part)
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            diary.write()
            time.sleep(0.02)

    return work


def end_of(future: Any) -> str:
    """Tell how a submitted task ended, by what its own thread gave back; the server hears of it at some later time."""
    try:
        future.wait()
    except (asyncio.CancelledError, concurrent.futures.CancelledError):
        return "cancelled"
    return "LeaseLost" if future.state.is_failed() and "LeaseLost" in future.state.message else repr(future.state)


@pytest.mark.parametrize("way", ["submit", "map"])
def test_eight_children_stop_on_a_loss_and_queued_ones_too(diary: Diary, way: str):
    work = work_of(diary)
    states = []

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=4))
    def publish() -> None:
        futures = []
        try:
            with lockstead.Lock(diary.url).hold(interrupt=True) as lease, inherited(lease):
                diary.watch(lease)
                if way == "map":
                    futures = list(work.map(range(8)))
                else:
                    futures = [work.submit(part) for part in range(8)]
                wait(futures)
        finally:
            wait(futures)
            states.extend(one.state for one in futures)

    taker = diary.take_away(begun=4)
    with pytest.raises(lockstead.LeaseLost):
        publish()
    taker.join()
    diary.assert_nobody_wrote_later()
    assert sorted(diary.begun) == [0, 1, 2, 3]
    assert [one.name for one in states] == ["Failed"] * 8
    assert all("LeaseLost" in one.message for one in states), [one.message for one in states]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_children_of_a_locked_flow_stop_on_a_loss_of_its_lease(diary: Diary, is_async: bool):
    work = work_of(diary)
    futures: list[Any] = []

    @locked(diary.url)
    def submits() -> None:
        diary.watch(lockstead.current_lease())
        futures.extend(work.submit(part) for part in range(8))
        wait(futures)

    @locked(diary.url)
    async def asubmits() -> None:
        diary.watch(lockstead.current_lease())
        futures.extend(work.submit(part) for part in range(8))
        await asyncio.sleep(600)

    publish = flow(task_runner=ThreadPoolTaskRunner(max_workers=4))(asubmits if is_async else submits)
    taker = diary.take_away(begun=4)
    with pytest.raises(lockstead.LeaseLost):
        asyncio.run(publish()) if is_async else publish()
    taker.join()
    ends = [end_of(one) for one in futures]
    diary.assert_nobody_wrote_later()
    assert sorted(diary.begun) == [0, 1, 2, 3]
    # a flow that ends closes its pool, and that may cancel what is queued before it is refused
    assert set(ends[:4]) == {"LeaseLost"}
    assert set(ends[4:]) <= {"LeaseLost", "cancelled"}


def test_a_flow_that_ignores_the_loss_ends_without_its_queue(diary: Diary):
    work = work_of(diary)

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=2))
    def publish() -> None:
        with lockstead.Lock(diary.url).hold(interrupt=True) as lease, inherited(lease):
            diary.watch(lease)
            wait(work.map(range(4)))

    taker = diary.take_away(begun=2)
    state = publish(return_state=True)
    ended_at = time.monotonic()
    taker.join()
    diary.assert_nobody_wrote_later()
    assert sorted(diary.begun) == [0, 1]
    assert state.is_failed()
    assert "LeaseLost" in state.message
    assert ended_at < diary.noticed_at[0] + 15  # and not after the delay of a retry, 60 s


def test_children_of_a_subflow_stop_too(diary: Diary):
    work = work_of(diary)

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=2))
    def inner() -> None:
        wait(work.map(range(2)))

    @flow
    def outer() -> None:
        with lockstead.Lock(diary.url).hold(interrupt=True) as lease, inherited(lease):
            diary.watch(lease)
            inner()

    taker = diary.take_away(begun=2)
    with pytest.raises(lockstead.LeaseLost):
        outer()
    taker.join()
    diary.assert_nobody_wrote_later()


def test_a_task_that_is_called_directly_stops_with_the_section(diary: Diary):
    work = work_of(diary)

    @flow
    def publish() -> None:
        with lockstead.Lock(diary.url).hold(interrupt=True) as lease, inherited(lease):
            diary.watch(lease)
            try:
                work(0)
            except Exception:  # what a flow might do; it must not outlive its lease by that
                diary.begin(1)

    taker = diary.take_away(begun=1)
    with pytest.raises(lockstead.LeaseLost):
        publish()
    taker.join()
    diary.assert_nobody_wrote_later()
    assert diary.begun == [0]


def awaiting_work_of(diary: Diary, cleaned: list[int]):
    @task(retries=2, retry_delay_seconds=60)
    async def work(part: int) -> None:
        diary.begin(part)
        try:
            for _turn in range(1000):
                diary.write()
                await asyncio.sleep(0.02)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(part)

    return work


@pytest.mark.parametrize("way", ["gather", "group", "tasks", "submit", "await"])
def test_async_children_stop_with_the_lease_after_their_cleanup(diary: Diary, way: str):
    cleaned: list[int] = []
    work = awaiting_work_of(diary, cleaned)
    states = []

    @flow
    async def publish() -> None:
        async with lockstead.AsyncLock(diary.url).hold(interrupt=True) as lease, inherited(lease):
            diary.watch(lease)
            if way == "gather":
                await asyncio.gather(work(0), work(1))
            elif way == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(work(0))
                    group.create_task(work(1))
            elif way == "tasks":
                states.extend(asyncio.ensure_future(work(part)) for part in range(2))
                await asyncio.sleep(30)
            elif way == "submit":
                states.extend(work.submit(part) for part in range(2))
                await asyncio.sleep(30)
            else:
                await asyncio.gather(work(0), asyncio.sleep(30))

    async def run() -> None:
        with pytest.raises(lockstead.LeaseLost):
            await publish()
        if way == "tasks":
            for one in states:
                with pytest.raises(lockstead.LeaseLost):
                    await one

    begun = 1 if way == "await" else 2
    taker = diary.take_away(begun)
    asyncio.run(run())
    taker.join()
    diary.assert_nobody_wrote_later()
    assert sorted(cleaned) == list(range(begun))
    if way == "submit":
        assert {end_of(one) for one in states} == {"LeaseLost"}


def test_a_blocking_task_of_an_async_flow_is_interrupted(diary: Diary):
    work = work_of(diary)

    @flow
    async def publish() -> None:
        async with lockstead.AsyncLock(diary.url).hold(interrupt=True) as lease, inherited(lease):
            diary.watch(lease)
            work(0)

    taker = diary.take_away(begun=1)
    with pytest.raises(lockstead.LeaseLost):
        asyncio.run(publish())
    taker.join()
    diary.assert_nobody_wrote_later()


def test_the_lease_is_the_current_one_in_its_children(diary: Diary):
    @task
    def holder() -> str:
        return lockstead.current_lease().holder

    @flow
    def publish() -> tuple[str, str, str]:
        with lockstead.Lock(diary.url).hold(interrupt=True) as lease, inherited(lease):
            return lease.holder, holder.submit().result(), holder()

    assert len(set(publish())) == 1


def test_a_sections_end_waits_for_begun_children_only(diary: Diary):
    released_at = []

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=1))
    def publish():
        with lockstead.Lock(diary.url).hold(interrupt=True) as lease:
            with inherited(lease):
                first = work_of(diary, seconds=1.0).submit(0)
                assert diary.at_work.acquire(timeout=30)
                second = work_of(diary).submit(1)
            released_at.append(time.monotonic())
        wait([first, second])
        return first.state, second.state

    first, second = publish()
    assert first.is_completed()
    assert max(diary.written_at) < released_at[0]
    assert second.is_failed()
    assert "ended before this began" in second.message
    assert diary.begun == [0]


def test_a_child_with_a_ticket_is_accepted_after_the_section(diary: Diary):
    @task
    def attach(ticket: lockstead.LeaseTicket) -> str:
        lease = lockstead.Lock(diary.url).attach(ticket)
        lease.release()
        return lease.holder

    @flow
    def publish():
        lock = lockstead.Lock(diary.url)
        lease = lock.acquire()
        with lease.guard(), inherited(lease):
            ticket = lease.detach()
        holder = attach.submit(ticket).result()
        assert lock.release(ticket)
        return holder == lease.holder

    assert publish()
