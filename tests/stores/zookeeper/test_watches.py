"""How a store on ZooKeeper watches: in one thread, without a request of the caller's, and over lost connections."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from kazoo.client import KazooClient

import lockstead
from lockstead.aio_lock import AsyncClient
from lockstead.errors import StoreError
from lockstead.protocol.commands import Absent, Extend, Read, Remove, Snapshot
from lockstead.stores import url as store_urls
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import Name
from tests.servers.base import free_port
from tests.servers.zookeeper import ZookeeperServer, four_letters
from tests.stores.zookeeper.server import APT, LIMIT, opened, server, space, store, taken, until
from tests.stores.zookeeper.test_queue import Waiter, asks, in_line, places
from tests.stores.zookeeper.test_store import expire

__all__ = ["server", "space", "store"]

THREAD = "lockstead-zookeeper-watch"


def quiet(_event: object) -> None:
    pass


def watches(server: ZookeeperServer, space: str) -> list[str]:
    """Return the watched paths below a store's path, once for each session."""
    base, seen, path = f"/{space.rpartition('/')[2]}", [], ""
    for line in four_letters(server.port, b"wchp").decode().splitlines():
        path = line if line.startswith("/") else path
        if line.startswith("\t") and path.startswith(f"{base}/"):
            seen.append(path.removeprefix(base))
    return seen


def test_a_thousand_awaiting_waiters_of_200_keys_take_no_thread_each(server: ZookeeperServer, space: str) -> None:
    keys = [f"key-{number}" for number in range(200)]
    holder, waiting = lockstead.Client(opened(space), listener=quiet), opened(space)
    held = [holder.lock(key, ttl=60).acquire(LIMIT) for key in keys]
    threads = set(threading.enumerate())

    async def crowd() -> None:
        async with AsyncClient(waiting, listener=quiet) as client:
            locks = [client.lock(key, ttl=60) for key in keys for _ in range(5)]
            acquiring = [asyncio.create_task(lock.acquire(120)) for lock in locks]
            await asyncio.to_thread(until, lambda: len(watches(server, space)) == len(keys))
            started = [one.name for one in set(threading.enumerate()) - threads]
            assert [name for name in started if name == "lockstead-watch"] == []
            assert started.count(THREAD) == 1
            assert started.count("lockstead-zookeeper") == 3, "kazoo's own"
            for lease in held:
                await asyncio.to_thread(lease.release)
            for done in asyncio.as_completed(acquiring):
                await (await done).release()

    asyncio.run(crowd())
    holder.close()
    assert THREAD not in [one.name for one in threading.enumerate() if one not in threads]


def test_a_thousand_places_take_one_thread_and_one_watch_each(
    server: ZookeeperServer, space: str, store: ZookeeperStore
) -> None:
    names = [Name(f"key-{number}") for number in range(200)]
    made = [taken(store, "holder", name) for name in names]
    threads = threading.active_count()
    waiters = {(name, number): Waiter(store, f"{number}", name) for name in names for number in range(5)}
    until(lambda: len(watches(server, space)) == len(waiters))
    assert len(set(watches(server, space))) == len(waiters)
    assert threading.active_count() <= threads + 1
    for name, one in zip(names, made, strict=True):
        store.perform(Remove(name, one.incarnation), LIMIT)
    until(lambda: sum(one.has_turn.is_set() for one in waiters.values()) == len(names))
    assert all(sum(waiters[name, number].has_turn.is_set() for number in range(5)) == 1 for name in names)


def test_subscribers_to_one_record_share_one_watch(server: ZookeeperServer, space: str, store: ZookeeperStore) -> None:
    held = taken(store)
    several = [Changed(store) for _ in range(50)]
    until(lambda: watches(server, space) == ["/lock/apt"])
    store.perform(Extend(APT, {"n": "1"}, held.incarnation), LIMIT)
    assert all(one.called(LIMIT) for one in several)
    until(lambda: watches(server, space) == ["/lock/apt"])
    for one in several:
        one.close()
    # the next change is noticed, and nobody looks again
    store.perform(Extend(APT, {"n": "2"}, held.incarnation), LIMIT)
    until(lambda: watches(server, space) == [])


def test_subscribing_does_not_block_without_a_client(server: ZookeeperServer, space: str) -> None:
    may_make, asked = threading.Event(), threading.Event()

    def make() -> KazooClient:
        asked.set()
        assert may_make.wait(LIMIT)
        return KazooClient(hosts=server.address, timeout=5.0)

    store = store_urls.open_store(space, make)
    assert isinstance(store, ZookeeperStore)
    try:
        changes, waiter = Changed(store), Waiter(store, "waiter")
        assert asked.wait(LIMIT)
        assert not changes.seen.is_set()
        may_make.set()
        assert changes.called(LIMIT)
        assert waiter.has_turn.wait(LIMIT)
    finally:
        may_make.set()
        store.close()


def test_a_waiter_before_the_server_starts_is_notified_later(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    late = ZookeeperServer(tmp_path_factory.mktemp("late"), port=free_port())
    store = opened(f"zk://{late.address}/locks")
    try:
        changes, waiter = Changed(store), Waiter(store, "waiter")
        assert not waiter.has_turn.wait(0.3)
        with late:
            assert changes.called(LIMIT)
            assert waiter.has_turn.wait(LIMIT)
            changes.close()
            waiter.end()
            store.close()
    finally:
        store.close()


def test_changes_during_a_lost_connection_are_found_later(server: ZookeeperServer, space: str) -> None:
    waiting, other = opened(f"{space}?session=4"), opened(space)
    held, name = taken(waiting), Name("yum")
    seen = taken(waiting, "holder", name)
    try:
        with Changed(waiting, name) as changes, in_line(server, (waiting, "waiter")) as (waiter,):
            changes.settle()
            server.kill()
            until(lambda: not waiting._connection.started()[1].is_set())
            server.start()
            # the watches may be set again by then, or not
            until(lambda: isinstance(answered(other, Read(APT)), Snapshot))
            other.perform(Remove(APT, held.incarnation), LIMIT)
            other.perform(Remove(name, seen.incarnation), LIMIT)
            assert changes.called(LIMIT)
            assert waiter.has_turn.wait(LIMIT)
    finally:
        waiting.close()
        other.close()


def answered(store: ZookeeperStore, command: Read) -> Snapshot | Absent | None:
    try:
        return store.perform(command, LIMIT)
    except StoreError:
        return None


def test_a_record_that_changed_between_two_sessions_is_notified(server: ZookeeperServer, space: str) -> None:
    waiting, other = opened(f"{space}?session=2"), opened(space)
    held = taken(other)
    try:
        with Changed(waiting) as changes:
            changes.settle()
            expire(waiting, server)
            changes.settle()
            other.perform(Extend(APT, {"n": "1"}, held.incarnation), LIMIT)
            assert changes.called(LIMIT), "the watch went with the session, and no other was set"
    finally:
        waiting.close()
        other.close()


def test_a_place_is_not_made_while_a_grant_is_under_way(store: ZookeeperStore, server: ZookeeperServer) -> None:
    taken(store)
    store._queue.begin_grant((APT, "waiter"))
    waiter = Waiter(store, "waiter")
    with in_line(server, (store, "next")):
        assert [one.who for one in store.standing(APT, LIMIT)] == ["next"]
    store._queue.end_grant((APT, "waiter"))
    until(lambda: len(places(server, store.url)) == 2)
    waiter.end()


def test_a_place_that_a_late_grant_did_not_take_out_is_removed(store: ZookeeperStore, server: ZookeeperServer) -> None:
    taken(store)
    with in_line(server, (store, "waiter")):
        # as the answer to a newcomer's request that comes when the waiter has a place already
        store._queue.granted((APT, "waiter"), "")
        until(lambda: places(server, store.url) == [])


def test_the_first_waiter_is_notified_again_if_it_was_overtaken(store: ZookeeperStore, server: ZookeeperServer) -> None:
    held = taken(store)
    with in_line(server, (store, "waiter")) as (waiter,):
        store.perform(Remove(APT, held.incarnation), LIMIT)
        assert waiter.has_turn.wait(LIMIT)
        # without a waiter's identity the queue is passed by, as whoever reclaims a lease does
        for _ in range(3):
            held = taken(store, "", APT)
            waiter.has_turn.clear()
            store.perform(Remove(APT, held.incarnation), LIMIT)
            assert waiter.has_turn.wait(LIMIT)
        asks(store, "waiter")


FORKED = """
import os, sys, threading
from lockstead.protocol.commands import Create
from lockstead.stores import url
from lockstead.values import Name

store = url.open_store(sys.argv[1])
store.perform(Create(Name("apt"), {"v": "1"}, 30.0), 20.0)
first = store.enqueue(Name("apt"), "parent", lambda is_free: None)
while [one.who for one in store.standing(Name("apt"), 20.0)] != ["parent"]:
    pass
child = os.fork()
if not child:
    store.after_fork()
    called = threading.Event()
    changes = store.subscribe(Name("yum"), lambda is_free: called.set())
    second = store.enqueue(Name("yum"), "child", lambda is_free: called.set())
    seen = called.wait(20.0)
    names = [one.name for one in threading.enumerate()]
    store.close()
    os._exit(0 if seen and names.count("lockstead-zookeeper-watch") == 1 else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), *[one.who for one in store.standing(Name("apt"), 20.0)])
store.close()
"""


def test_h13_a_forked_child_watches_in_its_own_thread(space: str) -> None:
    run = subprocess.run([sys.executable, "-c", FORKED, space], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split() == ["0", "parent"], run.stderr
