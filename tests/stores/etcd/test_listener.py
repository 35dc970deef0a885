"""The one thread that waits for a store: what it is kept up by, what keeps it up, and that it is one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from pathlib import Path

import pytest

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Create, Remove, Replace
from lockstead.stores.etcd import listener as etcd_listener
from lockstead.stores.etcd.encoding import Root
from lockstead.stores.etcd.queue import BEAT_EVERY, Queue, Session
from lockstead.stores.etcd.store import EtcdStore
from lockstead.stores.etcd.watches import STREAMS_MAX
from lockstead.stores.port import Store, SupportsFifoQueue, SupportsWatch
from lockstead.testing.conformance.base import is_a, shows
from lockstead.values import Name
from tests.servers.etcd import EtcdPlace, ask, keys_below
from tests.servers.proxy import Fault, Proxy
from tests.stores.etcd.test_queue import APT, LIMIT, Waiter, places, queued, taking, until, watching

KEYS, WAITERS = 200, 1000


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lockstead-etcd")]


@pytest.mark.timeout(500)
def test_a_thousand_awaiting_waiters_need_one_thread(etcd: EtcdPlace, space: str, store: Store, other: Store) -> None:
    held = [
        shows(other.perform(Create(Name(f"k{number}"), {"v": "1"}, 600.0, "", 600.0), LIMIT)) for number in range(5)
    ]
    queueing = is_a(SupportsFifoQueue, store)  # type: ignore[type-abstract]
    threads_before, files_before = {*threading.enumerate()}, open_files()

    def started() -> list[str]:
        """Return the threads that were started for the waiters; those that connect or close something end soon."""
        others = {"lockstead-aside", "lockstead-close"}
        new = [thread.name for thread in threading.enumerate() if thread not in threads_before]
        return [name for name in new if name not in others]

    async def wait(number: int) -> None:
        loop, turn = asyncio.get_running_loop(), asyncio.Event()

        def on_turn(is_free: bool) -> None:
            if is_free:
                loop.call_soon_threadsafe(turn.set)

        with contextlib.closing(queueing.enqueue(Name(f"k{number % KEYS}"), f"w{number}", on_turn)):
            await turn.wait()

    known = is_a(EtcdStore, store)._operations.queue.places

    async def main() -> None:
        waiters = [asyncio.create_task(wait(number)) for number in range(WAITERS)]
        await asyncio.sleep(0)
        assert started() == ["lockstead-etcd"]
        until(lambda: all(place.created for place in [*known.values()]), "not all have a place", 400.0)
        assert len(keys_below(etcd.server.port, f"{space}/queue/")) == WAITERS
        assert started() == ["lockstead-etcd"]
        assert open_files() < files_before + etcd_listener.REQUESTS_MAX + STREAMS_MAX + 8
        queues = [keys_below(etcd.server.port, f"{space}/queue/k{number}/") for number in range(KEYS)]
        for number, snapshot in enumerate(held):
            other.perform(Remove(Name(f"k{number}"), snapshot.incarnation), LIMIT)
        for queue in queues:
            first = min(queue.items(), key=lambda item: int(item[1]["create_revision"]))[0]
            await waiters[int(first.rpartition("/w")[2])]
        assert sum(waiter.done() for waiter in waiters) == KEYS, "somebody was called who is not the first"
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)

    asyncio.run(main())


def test_the_thread_ends_when_nobody_subscribes_and_comes_back(
    etcd: EtcdPlace, space: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_listener, "IDLE_MAX", 0.0)
    monkeypatch.setattr(etcd_listener, "TICK", 0.05)
    held = shows(store.perform(taking("holder"), LIMIT))
    for _ in range(2):
        waiter = Waiter(store, "waiter")
        until(lambda: places(etcd, space) == ["waiter"], "no place was taken")
        assert threads()
        waiter.leaves()
        until(lambda: not threads(), "the thread stays")
    watches = is_a(SupportsWatch, store)  # type: ignore[type-abstract]
    dropped = watches.subscribe(APT, lambda _is_free: None)
    assert threads()
    del dropped
    gc.collect()
    until(lambda: not threads(), "the thread stays for somebody who has gone")
    store.perform(Remove(APT, held.incarnation), LIMIT)


def test_a_slow_request_of_one_waiter_keeps_no_other_waiting(
    etcd: EtcdPlace, space: str, far: Store, proxy: Proxy
) -> None:
    held = shows(far.perform(taking("holder"), LIMIT))
    first = Waiter(far, "first")
    until(lambda: places(etcd, space) == ["first"], "no place was taken")
    until(lambda: proxy.open_connections >= 3, "nobody watches")
    slow = b64encode(f"{space}/queue/slow".encode())[:-4]
    late = proxy.arm(Fault.HALF_OPEN, lambda sent: slow in sent)
    other = Waiter(far, "other", Name("slow"))
    late.wait()
    far.perform(Remove(APT, held.incarnation), LIMIT)
    assert first.has_turn.wait(etcd_listener.LIMIT / 2), "it waited for another one's request"
    # and that one is helped in its turn
    assert other.has_turn.wait(LIMIT)


def test_places_are_kept_while_requests_of_waiters_fill_all_room(
    far: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_listener, "REQUESTS_MAX", 1)
    monkeypatch.setattr(etcd_listener, "LIMIT", 120.0)
    watching(far, "first", proxy)
    session = is_a(EtcdStore, far)._operations.queue.session
    assert session is not None
    stuck = proxy.arm(Fault.HALF_OPEN, lambda sent: b"POST /v3/kv/txn" in sent)
    other = Waiter(far, "other", Name("slow"))
    stuck.wait()
    before = session.beaten_at
    until(lambda: session.beaten_at > before + BEAT_EVERY, "the session is not renewed")
    assert not other.calls


def test_queue_places_are_retaken_in_order_after_a_lost_lease(
    etcd: EtcdPlace, space: str, store: Store, other: Store
) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    first, second = queued(etcd, space, [store, other])
    lease = is_a(EtcdStore, store)._operations.queue.session
    assert lease is not None
    ask(etcd.server.port, "lease/revoke", {"ID": lease.lease})
    until(lambda: places(etcd, space) == ["w01", "w00"], "no place was taken anew")
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert second.has_turn.wait(LIMIT)
    assert not first.has_turn.is_set()
    second.leaves()
    assert first.has_turn.wait(LIMIT)


def test_a_waiter_that_is_granted_the_lock_is_not_queued_again(
    etcd: EtcdPlace, space: str, store: Store, proxy: Proxy, far: Store
) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    waiter = Waiter(far, "waiter")
    until(lambda: places(etcd, space) == ["waiter"], "no place was taken")
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert waiter.has_turn.wait(LIMIT)
    # its place is gone before it knows that it has the lock, and it goes on subscribing
    proxy.arm(Fault.ANSWER_LATE, lambda sent: b"POST /v3/kv/txn" in sent, seconds=1.0)
    granted = shows(far.perform(taking("waiter"), LIMIT))
    for _ in range(2):
        assert places(etcd, space) == []
        replaced = far.perform(Replace(APT, {"v": "1"}, granted.incarnation, granted.revision, 60.0), LIMIT)
        granted = shows(replaced)
    # nor one whose grant has an unknown outcome, until it enqueues again
    far.perform(Remove(APT, granted.incarnation), LIMIT)
    held = shows(store.perform(taking("holder"), LIMIT))
    doubting = Waiter(far, "doubting")
    until(lambda: places(etcd, space) == ["doubting"], "no place was taken")
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert doubting.has_turn.wait(LIMIT)
    proxy.arm(Fault.CUT_AFTER, lambda sent: b"POST /v3/kv/txn" in sent)
    with pytest.raises(OutcomeUnknown):
        far.perform(taking("doubting"), LIMIT)
    watched = is_a(SupportsWatch, far)  # type: ignore[type-abstract]
    called = threading.Event()
    with contextlib.closing(watched.subscribe(Name("other"), lambda _is_free: called.set())):
        assert called.wait(LIMIT)  # the thread has gone on meanwhile
    assert places(etcd, space) == []
    again = Waiter(far, "doubting")
    until(lambda: places(etcd, space) == ["doubting"], "no place was taken")
    again.leaves()


class TestPlacesInMemory:
    """When a place may be taken, whoever asks for what at the same time."""

    @pytest.fixture
    def queue(self) -> Queue:
        return Queue(Root.at("x"), Session("7", float("inf")))

    def is_taken(self, queue: Queue) -> bool:
        place = queue.find(APT, "me")
        assert place is not None
        steps = queue.take(place)
        try:
            next(steps)
        except StopIteration:
            return False
        steps.close()
        place.doubt = None
        return True

    def test_not_while_its_waiter_acquires_the_lock(self, queue: Queue) -> None:
        queue.enter(APT, "me")
        assert self.is_taken(queue)
        with queue.acquiring(APT, "me"):
            assert not self.is_taken(queue)
        assert self.is_taken(queue)

    @pytest.mark.parametrize("error", [OutcomeUnknown, GeneratorExit, KeyboardInterrupt])
    def test_not_after_an_unknown_outcome_until_it_is_entered_again(
        self, queue: Queue, error: type[BaseException]
    ) -> None:
        queue.enter(APT, "me")
        with pytest.raises(error), queue.acquiring(APT, "me"):
            raise error("x")
        assert not self.is_taken(queue)
        queue.enter(APT, "me")
        assert self.is_taken(queue)

    def test_again_after_nothing_was_written(self, queue: Queue) -> None:
        queue.enter(APT, "me")
        with pytest.raises(StoreUnavailable), queue.acquiring(APT, "me"):
            raise StoreUnavailable("x")
        assert self.is_taken(queue)

    def test_not_after_its_waiter_has_left(self, queue: Queue) -> None:
        place = queue.enter(APT, "me")
        leaving = queue.leave(APT, "me")
        next(leaving)
        assert not self.is_taken(queue)
        assert place.doubt is None
        leaving.close()


FORKS = """
import os, sys, threading, time
from lockstead.stores import url
from lockstead.values import Name

def waits(store, waiter_id, behind):
    called = threading.Event()
    subscription = store.enqueue(Name("apt"), waiter_id, lambda is_free: is_free and called.set())
    while waiter_id not in [one.who for one in store.standing(Name("apt"), 20)]:
        time.sleep(0.02)
    return subscription, called

store = url.open_store(sys.argv[1])
subscription, called = waits(store, "parent", "")
child = os.fork()
if child == 0:
    store.after_fork()
    subscription.close()
    other, called = waits(store, "child", "parent")
    print("child", flush=True)
    assert called.wait(60)
    store.leave(Name("apt"), "child", 20)
    print("child had its turn", flush=True)
    os._exit(0)
assert called.wait(60)
print("parent had its turn", flush=True)
store.leave(Name("apt"), "parent", 20)
_, status = os.waitpid(child, 0)
store.close()
sys.exit(status)
"""


def test_h17_a_forked_child_waits_in_a_thread_of_its_own(etcd: EtcdPlace, space: str, store: Store) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, etcd.url(space)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "child\n"
            assert places(etcd, space) == ["parent", "child"]
            store.perform(Remove(APT, held.incarnation), LIMIT)
            assert process.stdout.read() == "parent had its turn\nchild had its turn\n"
            assert process.wait(LIMIT) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


SILENT_NAMES = """
import asyncio, socket, sys, threading
from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Read
from lockstead.stores import url
from lockstead.values import Name

asked, look = threading.Event(), socket.getaddrinfo

def silent(*args, flags=0, **kwargs):
    if flags & socket.AI_NUMERICHOST:
        return look(*args, flags=flags, **kwargs)
    asked.set()
    threading.Event().wait()

async def awaits():
    try:
        await store.aperform(Read(Name("apt")), 0.5)
    except StoreUnavailable as error:
        assert "cannot connect" in str(error)

socket.getaddrinfo = silent
store = url.open_store("etcd://etcd.example:2379/locks")
kept = {}
assert asked.wait(60)
print("asked", flush=True)
"""
ASKS = ['store.subscribe(Name("apt"), print)', 'store.enqueue(Name("apt"), "me", print)', "asyncio.run(awaits())"]


@pytest.mark.parametrize("asks", ASKS)
def test_a_silent_name_server_delays_neither_a_loop_nor_the_exit(asks: str) -> None:
    # nothing else ends it: a thread that is joined at exit, or when a loop ends, would take for ever
    ended = subprocess.run(
        [sys.executable, "-c", SILENT_NAMES.replace("{}", asks)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout == "asked\n"
