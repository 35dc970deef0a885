"""What the garbage collector leaves, in a thread that is inside the client: it must not wait for a lock there."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import AsyncLease, Client
from lockstead.aio_lock import AsyncClient
from lockstead.events import LeaseDropped, LockEvent, Released
from lockstead.protocol.commands import Command, Extend, Remove
from lockstead.runtime.clock import SystemClock
from lockstead.runtime.engine import Engine
from lockstead.runtime.inside import THREADS, is_inside
from lockstead.runtime.local_queue import ThreadWaker
from tests.runtime.faulty import Faulty, client_with, until


class Garbage:
    """Something that lies in a cycle, so that nothing but a collection frees it."""

    def __init__(self, content: Any) -> None:
        self.itself = self
        self.content = content


class LeavesAtEnd:
    """Releases its lease in its finalizer."""

    def __init__(self, lease: lockstead.Lease) -> None:
        self.lease = lease

    def __del__(self) -> None:
        self.lease.release()


class Collects:
    """A lock that stands for another one, and collects once while it is held."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.lock = lock
        self.has_collected = False

    def __enter__(self) -> None:
        self.lock.__enter__()
        if not self.has_collected:
            self.has_collected = True
            gc.collect()

    def __exit__(self, *exit_of: Any) -> None:
        self.lock.__exit__(*exit_of)


class CollectsInKeeper(SystemClock):
    """A clock that starts a garbage collection when the timing thread reads it, once it is told to."""

    is_due = False

    def now(self) -> float:
        if self.is_due and threading.current_thread().name == "lockstead-keeper":
            self.is_due = False
            gc.collect()
        return super().now()


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Collect where the test says, and nowhere else."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def told() -> list[LockEvent]:
    return []


def in_time(engine: Engine, work: Callable[[], object]) -> None:
    """Call it in a thread, and fail if it does not end. The end of the process does not wait for a blocked thread."""
    failures: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(20)
    if thread.is_alive():
        engine._finalizer.detach()
        pytest.fail("the client stands still")
    for failure in failures:
        raise failure


def in_block(client: Client) -> Any:
    def rows() -> Iterator[int]:
        with client.lock("gen", ttl=60).hold():
            yield 1

    suspended = rows()
    next(suspended)
    return suspended


def in_guarded_block(client: Client) -> Any:
    def rows() -> Iterator[int]:
        with client.lock("gen", ttl=60).hold(interrupt=True):
            yield 1

    suspended = rows()
    next(suspended)
    return suspended


def with_finalizer(client: Client) -> Any:
    return LeavesAtEnd(client.lock("gen", ttl=60).acquire())


def collect_in(engine: Engine, store: Faulty, place: str) -> Collects:
    """Collect the next time that a certain lock is held."""
    owner_filter: Any = {
        "takers": engine,
        "line": engine.local_queue,
        "keeper": engine.keeper,
        "store": store.inner._memory,
        "tellers": engine.keeper._callback_threads,
    }[place]
    name = "lock" if place == "store" else "_lock"
    collects = Collects(getattr(owner_filter, name))
    setattr(owner_filter, name, collects)
    return collects


@pytest.mark.parametrize("abandon", [in_block, in_guarded_block, with_finalizer])
@pytest.mark.parametrize("place", ["takers", "line", "keeper", "store", "tellers"])
def test_h35_a_lease_collected_inside_a_lock_is_released(
    store: Faulty, told: list[LockEvent], place: str, abandon: Callable[[Client], Any]
) -> None:
    client = Client(store, listener=told.append)

    def work() -> None:
        Garbage(abandon(client))
        collects = collect_in(client._engine, store, place)
        other = client.lock("other", ttl=60).acquire(timeout=5)
        other.on_lost(lambda: None)
        client._engine.keeper._callback_threads.submit(lambda: None)
        assert collects.has_collected
        other.release()
        until(lambda: client.lock("gen").inspect() is None)

    in_time(client._engine, work)
    until(lambda: [event.key for event in told if isinstance(event, Released)] in (["other", "gen"], ["gen", "other"]))
    assert [event for event in told if isinstance(event, LeaseDropped)] == []
    client.close()


def test_h35_collecting_in_the_keepers_thread_delays_no_renewal(store: Faulty, told: list[LockEvent]) -> None:
    clock, answers, asked_in = CollectsInKeeper(), threading.Event(), list[str]()
    client = client_with(store, clock, told.append)

    def hang(command: Command[Any]) -> None:
        if isinstance(command, Remove) and command.name.key == "gen":
            asked_in.append(threading.current_thread().name)
            answers.wait(30)

    with client.lock("mine", ttl=6).hold() as mine:
        Garbage(in_block(client))
        store.before = hang
        clock.is_due = True
        until(lambda: asked_in)
        seen = store.count(Extend)
        try:
            until(lambda: store.count(Extend) > seen + 3, 10)
            assert mine.is_held
        finally:
            answers.set()
    assert asked_in == ["lockstead-give-back"]
    until(lambda: [event for event in told if isinstance(event, Released) and event.key == "gen"])
    client.close()


def test_h35_collecting_in_a_starting_thread_blocks_no_starter(
    store: Faulty, told: list[LockEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(store, listener=told.append)
    begins, has_collected = threading.Thread._bootstrap_inner, list[str]()  # type: ignore[attr-defined]

    def collect_and_begin(thread: threading.Thread) -> None:
        if thread.name == "lockstead-renewal" and not has_collected:
            has_collected.append(thread.name)
            gc.collect()
        begins(thread)

    def work() -> None:
        Garbage(in_block(client))
        monkeypatch.setattr(threading.Thread, "_bootstrap_inner", collect_and_begin)
        with client.lock("mine", ttl=5).hold(timeout=5):
            until(lambda: has_collected)
            until(lambda: client.lock("gen").inspect() is None)

    in_time(client._engine, work)
    assert [event for event in told if isinstance(event, LeaseDropped)] == []
    client.close()


def test_h35_a_coroutine_collected_inside_a_lock_is_released(store: Faulty, told: list[LockEvent]) -> None:
    client = AsyncClient(store, listener=told.append)

    class Pause:
        def __await__(self) -> Iterator[None]:
            yield

    async def hold(lease: AsyncLease) -> None:
        async with lease:
            await Pause()

    async def abandon_and_go_on() -> None:
        suspended = hold(await client.lock("gen", ttl=60).acquire())
        suspended.send(None)
        Garbage(suspended)
        del suspended
        collects = collect_in(client._engine, store, "takers")
        await (await client.lock("other", ttl=60).acquire(timeout=5)).release()
        assert collects.has_collected

    in_time(client._engine, lambda: asyncio.run(abandon_and_go_on()))
    until(lambda: [event for event in told if isinstance(event, Released) and event.key == "gen"])
    client._engine.close()


async def in_release(client: AsyncClient) -> Any:
    suspended: Any = (await client.lock("gen", ttl=60).acquire()).release()
    suspended.send(None)
    return suspended


async def in_acquire(client: AsyncClient) -> Any:
    suspended: Any = client.lock("gen", ttl=60).acquire()
    suspended.send(None)
    return suspended


async def in_wait(client: AsyncClient) -> Any:
    client.held = Client(client._engine.store).lock("gen", ttl=60).acquire()  # type: ignore[attr-defined]
    # a pause whose end would cancel this very task, which plays the other one's loop
    suspended: Any = client.lock("gen", ttl=60, backoff_min=30, backoff_max=30).acquire()
    while not client._engine.local_queue.noted("gen"):
        with suppress(StopIteration):
            suspended.send(None)
        await asyncio.sleep(0.01)
    return suspended


async def in_line(client: AsyncClient) -> Any:
    client.first = await in_wait(client)  # type: ignore[attr-defined]
    return await in_acquire(client)


@pytest.mark.parametrize("abandon", [in_release, in_acquire, in_wait, in_line])
@pytest.mark.parametrize("place", ["takers", "line", "keeper", "store"])
def test_h35_a_coroutine_collected_in_an_operation_blocks_nothing(
    store: Faulty, place: str, abandon: Callable[[AsyncClient], Any]
) -> None:
    client = AsyncClient(store)

    async def abandon_and_go_on() -> None:
        Garbage(await abandon(client))
        collects = collect_in(client._engine, store, place)
        other = await client.lock("other", ttl=60).acquire(timeout=5)
        await other.release()
        assert collects.has_collected

    in_time(client._engine, lambda: asyncio.run(abandon_and_go_on()))
    if abandon is in_line:
        # who was first is forgotten too once its loop is closed
        until(lambda: len(client._engine.local_queue._queues.get("gen", ())) < 2)
    else:
        until(lambda: not client._engine.local_queue._queues)
    until(lambda: not client._engine._owner_notes)
    if abandon in {in_release, in_acquire}:
        looking = Client(store)
        until(lambda: looking.lock("gen").inspect() is None)
        looking.close()
    client._engine.close()


def test_h35_a_client_collected_inside_a_lock_closes_in_a_thread(
    store: Faulty,
) -> None:
    closed_in: list[str] = []
    close = store.close
    store.close = lambda: closed_in.append(threading.current_thread().name)  # type: ignore[method-assign]
    client, collected = Client(store), Client(store)
    collected.lock("gen", ttl=60).acquire().release()
    Garbage(collected)
    del collected
    collect_in(client._engine, store, "store")
    in_time(client._engine, lambda: client.lock("other", ttl=60).acquire(timeout=5).release())
    until(lambda: closed_in)
    assert closed_in == ["lockstead-close"]
    client.close()
    close()


def test_a_deferred_release_is_done_when_the_client_closes(store: Faulty, told: list[LockEvent]) -> None:
    """As from the handler of a signal that ends the process."""
    client, answers = Client(store, listener=told.append), list[bool]()
    lease = client.lock("gen", ttl=60).acquire()
    keeper = client._engine.keeper
    keeper._changed = ThreadWaker()  # the keeper sleeps on
    keeper._wait_until(lambda: answers.append(lease.release()) is None, 0)
    assert answers == [False]
    client.close()
    assert [type(event) for event in told if event.key == "gen"][1:] == [Released]
    assert not lease.is_held


def test_a_listener_or_a_callback_is_no_code_of_ours(store: Faulty) -> None:
    """What it releases is released when the call returns."""
    said: list[bool] = []
    with Client(store, listener=lambda _event: said.append(is_inside())) as client:
        lease = client.lock("gen", ttl=60).acquire()
        lease.on_lost(lambda: said.append(is_inside()))
        client._engine.keeper.lose(lease._kept, lockstead.LossReason.REVOKED)
        until(lambda: len(said) == 3)
    assert said == [False, False, False]


def test_a_callback_of_an_election_is_no_code_of_ours() -> None:
    said: list[bool] = []
    election = lockstead.Election("memory:collected#boss", ttl=60)

    def deposed(_why: str) -> None:
        said.append(is_inside())
        election.close()

    election.run(lambda _term: None, on_deposed=deposed)
    assert said == [False]


def test_every_thread_that_the_package_starts_is_known() -> None:
    package = Path(lockstead.__file__).parent
    text = "\n".join(path.read_text() for part in ("runtime", "stores") for path in (package / part).rglob("*.py"))
    names = re.findall(r"(?:Workers\(|\bname=)\"(lockstead-[\w-]+)\"", text)
    assert len(names) > 10
    assert set(names) == THREADS
