"""How one call works under a lease that somebody else holds: every outcome of a loss is LeaseLost."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

import lockstead
from prefect_lockstead.members import Cancel, awaiting, blocking


@pytest.fixture
def lock(tmp_path: Path) -> lockstead.Lock:
    return lockstead.Lock(f"sqlite:///{tmp_path}/locks.db#apt?ttl=5s")


def broken(lock: lockstead.Lock) -> None:
    lock.break_lease(reason="a test", now=True)


def test_a_call_in_a_thread_is_interrupted(lock: lockstead.Lock):
    lease, at_work, raised = lock.acquire(), threading.Event(), []

    def spin() -> None:
        at_work.set()
        ends_at = time.monotonic() + 30
        while time.monotonic() < ends_at:
            time.sleep(0.01)

    def work() -> None:
        try:
            blocking([lease], spin)
        except lockstead.LeaseLost as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert at_work.wait(10)
    broken(lock)
    thread.join(20)
    assert [one.holder for one in raised] == [lease.holder]


@pytest.mark.parametrize("is_parent_first", [True, False])
def test_a_task_is_cancelled_once_and_its_cleanup_awaits(lock: lockstead.Lock, is_parent_first: bool):
    cleaned = []

    async def body() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.2)
            cleaned.append(True)

    async def main(lease: lockstead.Lease) -> None:
        cancels: list[Cancel] = []

        async def member() -> None:
            cancels.append(Cancel())
            await awaiting(cancels[0], [lease], body)

        task = asyncio.create_task(member())
        await asyncio.sleep(0)
        broken(lock)
        while lease.is_held:  # noqa: ASYNC110 - a keeper's thread finds it
            await asyncio.sleep(0.02)
        cancels[0].fire()
        if is_parent_first:
            task.cancel()
        with pytest.raises(lockstead.LeaseLost):
            await task

    asyncio.run(main(lock.acquire()))
    assert cleaned == [True]


def test_a_cancellation_without_a_loss_stays_one(lock: lockstead.Lock):
    async def main(lease: lockstead.Lease) -> None:
        async def member() -> None:
            await awaiting(Cancel(), [lease], lambda: asyncio.sleep(30))

        task = asyncio.create_task(member())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with lock.hold() as lease:
        asyncio.run(main(lease))


def test_a_member_that_swallows_its_cancellation_still_raises(lock: lockstead.Lock):
    async def body() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "done"
        return "not cancelled"

    async def main(lease: lockstead.Lease) -> None:
        cancel = Cancel()
        broken(lock)
        lease.on_lost(cancel.fire)
        with pytest.raises(lockstead.LeaseLost):
            await awaiting(cancel, [lease], body)
        await asyncio.sleep(0)  # nothing is left that would cancel what follows

    asyncio.run(main(lock.acquire()))
