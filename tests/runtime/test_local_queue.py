"""The waiters of one process: in order of arrival, with one of them sending requests, and no writes (H14, H15)."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import cast

import pytest

from lockstead import AsyncClient, Client, Lock, NotAcquired
from lockstead.events import LockEvent, Waiting
from lockstead.protocol.commands import Create, Extend, Read, Replace
from lockstead.runtime.awaiting import AsyncWaker
from lockstead.runtime.engine import Engine
from lockstead.runtime.local_queue import LocalQueue, ThreadWaker
from tests.runtime.faulty import Faulty, quiet, until


def test_h14_each_acquisition_is_a_holder_of_its_own() -> None:
    with Client(Faulty(), listener=quiet) as client:
        lock = client.lock("apt")
        holders = set()
        for _ in range(3):
            with lock.hold() as lease:
                holders.add(lease.holder)
        assert len(holders) == 3


def test_h14_the_same_thread_cannot_acquire_what_it_holds() -> None:
    with Client(Faulty(), listener=quiet) as client, client.lock("apt").hold():
        began = time.monotonic()
        with pytest.raises(NotAcquired, match="already held by this thread"):
            client.lock("apt").acquire(timeout=600)
        with pytest.raises(NotAcquired):
            client.lock("apt").acquire()
        assert client.lock("apt").try_acquire() is None
        assert time.monotonic() - began < 60


def test_h14_another_thread_waits_and_gets_it() -> None:
    with Client(Faulty(), listener=quiet) as client:
        lease = client.lock("apt").acquire()
        order: list[str] = []

        def wait() -> None:
            with client.lock("apt").hold(timeout=60):
                order.append("second")

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: client._engine.local_queue._queues)
        order.append("first")
        lease.release()
        thread.join(60)
        assert order == ["first", "second"]


def test_h14_a_lease_may_be_given_back_by_another_thread() -> None:
    with Client(Faulty(), listener=quiet) as client:
        lease = client.lock("apt").acquire()
        thread = threading.Thread(target=lease.release)
        thread.start()
        thread.join(60)
        client.lock("apt").acquire(timeout=60).release()


def test_h14_the_same_task_is_refused_and_another_task_waits() -> None:
    async def both() -> None:
        async with AsyncClient(Faulty(), listener=quiet) as client:
            lock = client.lock("apt")
            async with lock.hold():
                with pytest.raises(NotAcquired, match="already held by this thread or task"):
                    await lock.acquire()
                other = asyncio.create_task(lock.acquire(timeout=60))
                await asyncio.sleep(0.05)
                assert not other.done()
            await (await other).release()

    asyncio.run(both())


def test_h15_a_thousand_waiters_of_a_process_read_like_one() -> None:
    store = Faulty()

    async def crowd() -> list[int]:
        order: list[int] = []
        async with AsyncClient(store, listener=quiet) as client:
            lock = client.lock("apt", backoff_min=0.05, backoff_max=0.1)
            lease = await lock.acquire()

            async def wait(number: int) -> None:
                async with lock.hold():
                    order.append(number)

            waiting = [asyncio.create_task(wait(number)) for number in range(1000)]
            await asyncio.sleep(0)
            began, seen = time.monotonic(), len(store.seen)
            await asyncio.sleep(1.0)
            held_for = time.monotonic() - began
            while_held = store.seen[seen:]
            # the first one's first attempt is a write; from then on whoever waits reads
            assert sum(isinstance(command, Create | Replace | Extend) for command in while_held) <= 1
            assert sum(isinstance(command, Read) for command in while_held) <= held_for / 0.05 + 2
            await lease.release()
            await asyncio.gather(*waiting)
        return order

    assert asyncio.run(crowd()) == list(range(1000))
    # each of them looked, found it free or gone, and took it
    assert store.count(Create) <= 1000 + 2
    assert store.count(Read) <= 3 * 1000


def test_h15_waiters_out_of_time_try_once_more_and_leave() -> None:
    store = Faulty()

    async def crowd() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            lock = client.lock("apt")
            async with lock.hold():
                asked = [asyncio.create_task(lock.acquire(timeout=0.2)) for _ in range(50)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(answer, NotAcquired) for answer in answers)
            assert not client._engine.local_queue._queues

    asyncio.run(crowd())


def test_a_release_wakes_a_waiter_of_this_process() -> None:
    with Client(Faulty(), listener=quiet) as client:
        lease = client.lock("apt").acquire()
        got = threading.Event()

        def wait() -> None:
            with client.lock("apt", backoff_min=300, backoff_max=300).hold():
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: client._engine.local_queue._queues)
        time.sleep(0.1)
        lease.release()
        assert got.wait(60)
        thread.join(60)


def test_a_waiter_is_refused_when_its_client_is_closed() -> None:
    store = Faulty()
    client = Client(store, listener=quiet)
    holder = Client(store.beside(), listener=quiet)
    holder.lock("apt").acquire()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.lock("apt").acquire()
        except Exception as error:
            ended.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: client._engine.local_queue._queues)
    client.close()
    for thread in threads:
        thread.join(60)
    assert ["closed" in str(error) for error in ended] == [True] * 3
    holder.close()


def test_who_waits_is_told_of_once() -> None:
    told: list[LockEvent] = []
    store = Faulty()
    with Client(store, listener=told.append) as client, Client(store.beside(), listener=quiet) as other:
        lease = other.lock("apt", purpose="publish").acquire()
        with pytest.raises(NotAcquired, match="publish"):
            client.lock("apt", backoff_min=0.01, backoff_max=0.02).acquire(timeout=0.3)
        lease.release()
    assert [(event.key, event.purpose) for event in told if isinstance(event, Waiting)] == [("apt", "publish")]


def test_h18_a_signal_that_another_thread_received_ends_a_wait() -> None:
    def receive() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    timer = threading.Timer(0.2, receive)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ThreadWaker().wait(600.0)
    timer.join()


def test_a_bell_is_heard_until_it_is_silenced() -> None:
    bell = ThreadWaker()
    assert not bell.wait(-1.0)
    assert not bell.wait(0.01)
    assert not bell.take()
    bell.ring()
    bell.ring()
    assert bell.wait(60.0)
    assert bell.wait(float("inf"))
    assert bell.take()
    assert not bell.take()
    assert not bell.wait(0.0)


def test_a_bell_rung_by_many_threads_wakes_who_sleeps() -> None:
    bell = ThreadWaker()
    for _ in range(50):
        ringers = [threading.Thread(target=bell.ring) for _ in range(4)]
        for ringer in ringers:
            ringer.start()
        assert bell.wait(60.0)
        for ringer in ringers:
            ringer.join(60.0)
        assert bell.take()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_waiter_whose_event_loop_has_ended_keeps_nobody_waiting(is_closed: bool) -> None:
    client, loop = AsyncClient(Faulty(), listener=quiet), asyncio.new_event_loop()
    other = Client(client._engine.store, listener=quiet)
    lease = other.lock("apt").acquire()
    gone = loop.create_task(client.lock("apt").acquire())
    loop.run_until_complete(asyncio.wait([gone], timeout=0.2))
    assert list(client._engine.local_queue._queues) == ["apt"]
    if is_closed:
        loop.close()
    lease.release()

    async def acquire() -> None:
        await (await client.lock("apt").acquire(timeout=60)).release()

    asyncio.run(acquire())
    if not is_closed:
        loop.run_until_complete(loop.run_until_complete(gone).release())
        loop.close()
    client._engine.close()
    other.close()


def test_a_waiter_whose_event_loop_stands_still_keeps_its_place() -> None:
    """The one behind it sends requests meanwhile, and is passed once the loop runs again."""
    lines, behind, loop = LocalQueue(), ThreadWaker(), asyncio.new_event_loop()

    async def enter() -> AsyncWaker:
        bell = AsyncWaker(cast(Engine, None))
        assert lines.enter("apt", bell)
        return bell

    first = loop.run_until_complete(enter())
    assert lines.enter("apt", behind)

    async def look() -> bool:
        return lines.is_first("apt", first) and not lines.is_first("apt", behind)

    assert loop.run_until_complete(look())
    loop.close()
    assert lines.is_first("apt", behind)
    lines.leave("apt", behind)
    assert not lines._queues


def test_h15_a_waiter_whose_event_loop_is_blocked_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstead.runtime.drive.RECHECK_INTERVAL", 0.1)
    monkeypatch.setattr("lockstead.runtime.awaiting.ASKED_AGAIN", 0.3)
    client = AsyncClient(Faulty(), listener=quiet)
    other = Client(client._engine.store, listener=quiet)
    lease = other.lock("apt").acquire()

    async def blocks() -> None:
        first = asyncio.create_task(client.lock("apt").acquire())
        await asyncio.wait([first], timeout=0.2)
        lease.release()
        # a blocking call in a coroutine: the first waiter cannot ask before it returns
        Lock._of(client._engine, "apt", {}).acquire(timeout=60).release()
        await (await first).release()

    asyncio.run(blocks())
    client._engine.close()
    other.close()


def test_leaving_wakes_the_next_waiter_despite_a_newcomer() -> None:
    lines, waiters = LocalQueue(), [ThreadWaker() for _ in range(3)]
    assert [lines.enter("apt", one) for one in waiters[:2]] == [True, False]
    waiters[0].is_over = True
    assert not lines.enter("apt", waiters[2])
    lines.leave("apt", waiters[0])
    assert waiters[1].take()
    assert not waiters[2].take()
