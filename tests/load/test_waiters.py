"""Crowds that wait for one key: they ask the store like one, write nothing while it is held, and all come in (H15)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

import lockstead
from gcs_emulator import GcsServer, LoggedRequest
from lockstead import AsyncClient, AsyncLease, NotAcquired
from tests.load.crowd import crowd, said
from tests.runtime.faulty import quiet, until

WAITERS = 1000
THREADS = 200
PROCESSES = 8
POLL = 0.25
"""Seconds: the shortest pause between two looks of one waiter."""
SETTINGS = {"ttl": 300, "backoff_min": POLL, "backoff_max": POLL}


@pytest.fixture
def holder(gcs: GcsServer) -> Iterator[lockstead.Lease]:
    """Hold the key in another client."""
    with lockstead.connect("gs://b/locks", listener=quiet) as client:
        lease = client.lock("apt", ttl=300, owner="nightly").acquire(0)
        gcs.requests.clear()
        yield lease


def assert_polled_like_one(lines: list[LoggedRequest]) -> None:
    """One look at a time, each at least a pause after the last; no write but the first one's first attempt."""
    assert {line.kind for line in lines} <= {"insert", "get"}
    writes = [line for line in lines if line.kind == "insert"]
    assert [line.status for line in writes] == [412]
    looks = [line.at for line in lines if line.kind == "get"]
    # the pause starts when the answer has come, so a slow machine makes these gaps longer and never shorter
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert len(looks) >= 5
    assert min(gaps) >= POLL * 0.98, sorted(gaps)[:3]


async def settled(client: AsyncClient, count: int) -> None:
    """Wait until this many are queued."""
    lines = client._engine.local_queue
    await asyncio.to_thread(until, lambda: len(lines._queues.get("apt", ())) == count, 60)


@pytest.mark.slow
def test_h15_a_thousand_tasks_read_like_one_and_all_acquire(gcs: GcsServer, holder: lockstead.Lease) -> None:
    order: list[int] = []
    inside: list[int] = []

    async def wait(client: AsyncClient, number: int) -> None:
        async with client.lock("apt", **SETTINGS).hold() as lease:
            inside.append(number)
            assert inside == [number], "two hold it at once"
            lease.check()
            order.append(number)
            inside.clear()

    async def use() -> None:
        async with await lockstead.connect_async("gs://b/locks", listener=quiet) as client:
            waiting = [asyncio.create_task(wait(client, number)) for number in range(WAITERS)]
            await settled(client, WAITERS)
            await asyncio.to_thread(gcs.requests.wait_for, 8, "get", timeout=60)
            assert_polled_like_one(gcs.requests.all())
            gcs.requests.clear()
            await asyncio.to_thread(holder.release)
            await asyncio.gather(*waiting)

    asyncio.run(use())
    assert order == list(range(WAITERS))
    # each looked, acquired and released; none requested what another one of the same process held
    counts = gcs.requests.counts()
    assert counts["insert"] == WAITERS
    assert counts["delete"] == WAITERS + 1
    assert counts["get"] <= 2 * WAITERS + 2, counts
    assert "locks/apt" not in gcs.objects("b")


@pytest.mark.slow
def test_h15_two_hundred_threads_read_like_one_and_all_acquire(gcs: GcsServer, holder: lockstead.Lease) -> None:
    order: list[int] = []
    inside: list[int] = []
    with lockstead.connect("gs://b/locks", listener=quiet) as client:

        def wait(number: int) -> None:
            with client.lock("apt", **SETTINGS).hold() as lease:
                inside.append(number)
                if inside == [number] and lease.is_held:
                    order.append(number)
                inside.clear()

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        until(lambda: len(client._engine.local_queue._queues.get("apt", ())) == THREADS, 60)
        assert gcs.requests.wait_for(8, "get", timeout=60)
        assert_polled_like_one(gcs.requests.all())
        gcs.requests.clear()
        holder.release()
        for thread in threads:
            thread.join(60)
    assert sorted(order) == list(range(THREADS))
    counts = gcs.requests.counts()
    assert counts["insert"] == THREADS
    assert counts["delete"] == THREADS + 1
    assert "locks/apt" not in gcs.objects("b")


def test_h15_h18_cancelled_waiters_send_and_leave_nothing(gcs: GcsServer, holder: lockstead.Lease) -> None:
    async def use() -> None:
        async with await lockstead.connect_async("gs://b/locks", listener=quiet) as client:
            lock = client.lock("apt", **SETTINGS)
            waiting: list[asyncio.Task[AsyncLease]] = [asyncio.create_task(lock.acquire()) for _ in range(WAITERS)]
            await settled(client, WAITERS)
            await asyncio.to_thread(gcs.requests.wait_for, 1, "get", timeout=60)
            gcs.requests.clear()
            for task in waiting[: WAITERS // 2] + waiting[WAITERS // 2 + 1 :]:
                task.cancel()
            await asyncio.gather(*waiting[: WAITERS // 2], *waiting[WAITERS // 2 + 1 :], return_exceptions=True)
            # the remaining one is first now, and polls
            await asyncio.to_thread(gcs.requests.wait_for, 3, "get", timeout=60)
            # who had asked looks once whether anything of it landed; who only stood in line had asked nothing
            assert gcs.requests.count("get") <= 3 + 4
            assert gcs.requests.count("mutation") == 0
            await asyncio.to_thread(holder.release)
            await (await waiting[WAITERS // 2]).release()
            assert not client._engine.local_queue._queues
            assert not client._engine.pending_holders
        assert not [name for name in gcs.objects("b") if "/companion/" not in name]

    asyncio.run(use())


def test_h15_waiters_out_of_time_together_do_not_all_try_again(gcs: GcsServer, holder: lockstead.Lease) -> None:
    async def use() -> list[object]:
        async with await lockstead.connect_async("gs://b/locks", listener=quiet) as client:
            lock = client.lock("apt", **SETTINGS)
            asked = [asyncio.create_task(lock.acquire(timeout=3)) for _ in range(WAITERS)]
            return list(await asyncio.gather(*asked, return_exceptions=True))

    began_at = time.monotonic()
    answers = asyncio.run(use())
    took = time.monotonic() - began_at
    assert all(isinstance(answer, NotAcquired) for answer in answers), answers[:3]
    # and each of them knows the holder
    assert {answer.holder for answer in answers if isinstance(answer, NotAcquired)} == {"nightly"}
    assert gcs.requests.count("mutation") == 1
    # only the one that was first at that moment looked
    assert gcs.requests.count("get") <= took / POLL + WAITERS / 10


WAITER = """
import threading
from lockstead.stores.url import open_store

lines = []

class Noting:
    def __init__(self, inner):
        self.inner, self.traits, self.url, self.close = inner, inner.traits, inner.url, inner.close
        self.after_fork = inner.after_fork

    def perform(self, command, limit):
        answer = self.inner.perform(command, limit)
        said = f"{type(command).__name__} {type(answer).__name__} {threading.current_thread().name}"
        lines.append(f"{time.monotonic():.6f} {said}")
        return answer

client = lockstead.Client(Noting(open_store(URL)))
lock = client.lock("apt", ttl=300, backoff_min=0.1, backoff_max=1.0)

def wait():
    with lock.hold():
        told("in", number)

threads = [threading.Thread(target=wait, name=str(place)) for place in range(3)]
for thread in threads:
    thread.start()
while len(client._engine.local_queue._queues.get("apt", ())) < len(threads):
    time.sleep(0.005)
told("in line", number)
for thread in threads:
    thread.join()
with open(os.path.join(os.environ["NOTES"], str(number)), "w") as notes:
    notes.write("\\n".join(lines))
"""


def test_h15_eight_processes_poll_at_random_and_write_if_free(
    gcs: GcsServer, holder: lockstead.Lease, tmp_path: Path
) -> None:
    with crowd(WAITER, "gs://b/locks", PROCESSES, PROCESSES, NOTES=str(tmp_path)) as waiters:
        # a waiter that comes after the release writes at once, as the first of its process should
        assert sorted(waiters.hear() for _ in range(PROCESSES)) == [f"in line {number}" for number in range(PROCESSES)]
        assert gcs.requests.wait_for(PROCESSES * 12, "get", timeout=120)
        while_held = gcs.requests.all()
        assert gcs.requests.count("delete") == 0
        assert sum(line.kind == "insert" for line in while_held) <= PROCESSES
        assert holder.release() is True
        lines = said(waiters)
    assert sorted(line for line in lines if line.startswith("in ")) == sorted(
        f"in {number}" for number in range(PROCESSES) for _ in range(3)
    )
    gaps: list[float] = []
    for number in range(PROCESSES):
        asked = [line.split() for line in (tmp_path / str(number)).read_text().splitlines()]
        # the first attempt is a write; every later one comes straight after a look of that waiter that found it free
        assert asked[0][1] == "Create"
        for place in "012":
            own = [one[1:3] for one in asked if one[3] == place]
            before = [earlier for earlier, later in pairwise(own) if later[0] == "Create"]
            assert before == [["Read", "Absent"]] * len(before)
            assert own.count(["Create", "Snapshot"]) == 1
        # until a waiter of this process releases it, which makes the next one look at once
        polls = [float(one[0]) for one in takewhile(lambda one: one[1:3] == ["Read", "Snapshot"], asked[1:])]
        gaps += [later - earlier for earlier, later in pairwise(polls)]
    assert len(gaps) >= PROCESSES * 10
    assert min(gaps) >= 0.1 * 0.98
    # drawn at random: of so many some are short and some long
    assert min(gaps) < 0.4
    assert max(gaps) > 0.5
    assert "locks/apt" not in gcs.objects("b")
