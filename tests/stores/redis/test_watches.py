"""Who is notified by Redis: one process of all that wait, the first of them, by one thread for each server."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import lockstead
from lockstead.protocol.commands import Conflict, Create, Extend, Read, Remove, Removed, Snapshot
from lockstead.stores import url
from lockstead.stores.redis.store import RedisStore
from lockstead.values import Name
from tests.runtime.faulty import quiet
from tests.servers.redis import ClusterPlace, RedisPlace, RedisServer
from tests.stores.redis.usage import APT, LIMIT, made, until

DESCRIPTORS = Path("/proc/self/fd")
THREAD = "lockstead-redis-watch"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    place = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield place
    place.stop()


@pytest.fixture
def admin(place: RedisPlace) -> Iterator[Any]:
    with place.server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def space() -> str:
    return f"s{uuid4().hex[:10]}"


@pytest.fixture
def opened(place: RedisPlace, admin: Any, space: str) -> Iterator[Callable[[], RedisStore]]:
    stores: list[RedisStore] = []

    def opens() -> RedisStore:
        store = place.open(space)
        assert isinstance(store, RedisStore)
        stores.append(store)
        return store

    yield opens
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[[], RedisStore]) -> RedisStore:
    return opened()


@pytest.fixture
def twin(opened: Callable[[], RedisStore]) -> RedisStore:
    return opened()


def threads() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


class Subscriber:
    """A subscription, and what it was called with."""

    def __init__(self, store: RedisStore, name: Name = APT) -> None:
        self.calls: list[bool] = []
        self.subscription = store.subscribe(name, self.calls.append)

    def called(self, *, is_free: bool = True) -> None:
        """Wait for a call, and forget all."""
        until(lambda: is_free in self.calls)
        self.calls.clear()

    def close(self) -> None:
        self.subscription.close()


def listed(admin: Any, space: str, key: str = "apt") -> list[bytes]:
    found: list[bytes] = admin.zrange(f"{space}:{{{key}}}:waiters", 0, -1)
    return found


def subscribed(store: RedisStore, admin: Any, space: str) -> Subscriber:
    """Subscribe, and wait until this process is enrolled."""
    subscriber = Subscriber(store)
    until(lambda: store._watches.channel in listed(admin, space))
    return subscriber


# --- who is notified ---------------------------------------------------------------------------------------------


def test_a_release_notifies_the_first_waiting_process(
    store: RedisStore, twin: RedisStore, opened: Callable[[], RedisStore], admin: Any, space: str
) -> None:
    third = opened()
    held = made(store)
    first, second = subscribed(twin, admin, space), subscribed(third, admin, space)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    first.called()
    taken = made(twin)
    first.close()
    assert listed(admin, space) == [third._watches.channel]
    assert second.calls == []
    twin.perform(Remove(APT, taken.incarnation), LIMIT)
    second.called()


def test_a_process_is_listed_once_and_calls_all_subscribers(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    held = made(store)
    several = [subscribed(twin, admin, space) for _ in range(50)]
    assert listed(admin, space) == [twin._watches.channel]
    store.perform(Remove(APT, held.incarnation), LIMIT)
    for one in several:
        one.called()


def test_a_dead_process_is_passed_over(store: RedisStore, twin: RedisStore, admin: Any, space: str) -> None:
    held = made(store)
    admin.zadd(f"{space}:{{apt}}:waiters", {f"{space}:wake:dead-{number}": number for number in range(3)})
    waiter = subscribed(twin, admin, space)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


def test_a_process_that_was_notified_and_waits_no_more_passes_it_on(
    store: RedisStore, twin: RedisStore, opened: Callable[[], RedisStore], admin: Any, space: str
) -> None:
    held = made(store)
    subscribed(twin, admin, space).close()
    waiter = subscribed(opened(), admin, space)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


def test_an_unused_notification_is_passed_on(
    store: RedisStore, twin: RedisStore, opened: Callable[[], RedisStore], admin: Any, space: str
) -> None:
    third = opened()
    held = made(store)
    idle, waiter = subscribed(twin, admin, space), subscribed(third, admin, space)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    idle.called()
    waiter.called()
    made(third)
    until(lambda: listed(admin, space)[:1] == [twin._watches.channel])


def test_a_process_that_was_notified_in_vain_keeps_its_place(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    held = made(store)
    waiter = subscribed(twin, admin, space)
    ((channel, since),) = admin.zrange(f"{space}:{{apt}}:waiters", 0, -1, withscores=True)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    made(store)
    waiter.called()
    admin.zadd(f"{space}:{{apt}}:waiters", {"later": since + 1})
    assert isinstance(twin.perform(Create(APT, {}), LIMIT), Conflict)
    until(lambda: len(listed(admin, space)) == 2)
    assert listed(admin, space) == [channel, b"later"]


def test_a_process_that_got_the_lock_has_lost_its_place(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    held = made(store)
    waiter = subscribed(twin, admin, space)
    ((_, since),) = admin.zrange(f"{space}:{{apt}}:waiters", 0, -1, withscores=True)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()
    made(twin)
    until(lambda: bool(listed(admin, space)))
    assert admin.zscore(f"{space}:{{apt}}:waiters", twin._watches.channel) > since


def test_a_holder_is_not_listed_and_not_notified(store: RedisStore, twin: RedisStore, admin: Any, space: str) -> None:
    held = made(store)
    waiter = subscribed(twin, admin, space)
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()
    made(twin)
    waiter.close()
    admin.config_resetstat()
    time.sleep(0.5)
    assert "cmdstat_zadd" not in admin.info("commandstats")


def test_a_renewal_and_a_release_notify_the_first_waiter(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    held = made(store)
    waiter = subscribed(twin, admin, space)
    for number in range(3):
        store.perform(Extend(APT, {"n": f"{number}"}, held.incarnation), LIMIT)
        waiter.called(is_free=False)
        until(lambda: bool(listed(admin, space)))
    assert True not in waiter.calls
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


# --- what may be missed ------------------------------------------------------------------------------------------


def test_a_change_between_the_look_and_the_subscription_is_noticed(store: RedisStore, twin: RedisStore) -> None:
    held = made(store)
    assert isinstance(twin.perform(Read(APT), LIMIT), Snapshot)
    store.perform(Extend(APT, {"ended": "1"}, held.incarnation), LIMIT)
    Subscriber(twin).called(is_free=False)


def test_a_connection_that_is_cut_is_made_anew(store: RedisStore, twin: RedisStore, admin: Any, space: str) -> None:
    held = made(store)
    waiter = subscribed(twin, admin, space)
    admin.client_kill_filter(_type="pubsub")
    waiter.called(is_free=False)  # it may have missed something
    until(lambda: bool(admin.pubsub_channels(f"{space}:*")))
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


def test_a_list_that_is_lost_is_written_again(
    store: RedisStore, twin: RedisStore, admin: Any, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstead.stores.redis.watches.ENROLS_AGAIN", 0.05)
    held = made(store)
    waiter = subscribed(twin, admin, space)
    admin.delete(f"{space}:{{apt}}:waiters")
    until(lambda: bool(listed(admin, space)))
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


def test_who_may_not_subscribe_polls_and_comes_in(place: RedisPlace, admin: Any, space: str) -> None:
    admin.execute_command("ACL", "SETUSER", "anna", "reset", "on", ">s3cret", "~*", "&*", "+@all", "-subscribe")
    address = f"127.0.0.1:{place.ports[0]}?prefix={space}"
    with (
        lockstead.connect(f"redis://{address}") as holder,
        lockstead.connect(f"redis://anna:s3cret@{address}") as waiter,
    ):
        held = holder.lock("apt", ttl=30).acquire()
        got: list[bool] = []
        lock = waiter.lock("apt", ttl=30, backoff_min=0.05, backoff_max=0.1)
        thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=LIMIT).release()))
        thread.start()
        time.sleep(0.2)
        assert listed(admin, space) == []
        held.release()
        thread.join(LIMIT)
        assert got == [True]


def test_a_foreign_value_of_the_list_prevents_no_notification(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    other = Name("other")
    held, others = made(store), made(store, other)
    admin.set(f"{space}:{{apt}}:waiters", "something else")
    polls, waiter = Subscriber(twin), Subscriber(twin, other)
    until(lambda: bool(listed(admin, space, "other")))
    store.perform(Remove(APT, held.incarnation), LIMIT)
    store.perform(Remove(other, others.incarnation), LIMIT)
    waiter.called()
    assert polls.calls == []


def test_messages_that_name_nothing_of_ours_are_passed_over(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    held = made(store)
    waiter = subscribed(twin, admin, space)
    for message in (b"", b"\xff\xfe", b" changed", f"{space}:{{apt}}:nonsense".encode(), f"{space}:{{}}:lock".encode()):
        assert admin.publish(twin._watches.channel, message) == 1
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


# --- threads and requests ----------------------------------------------------------------------------------------


def test_a_subscriber_without_news_asks_the_server_nothing(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    made(store)
    waiter = subscribed(twin, admin, space)
    before = admin.info("stats")["total_commands_processed"]
    time.sleep(0.5)
    # this client's own two looks are counted
    assert admin.info("stats")["total_commands_processed"] - before <= 2
    assert waiter.calls == []


WHO_CONNECTS: list[str] | None = None


def _audit(event: str, _arguments: object) -> None:
    if event == "socket.connect" and WHO_CONNECTS is not None:
        WHO_CONNECTS.append(threading.current_thread().name)


def test_who_subscribes_makes_no_request_in_its_own_thread(
    store: RedisStore, opened: Callable[[], RedisStore], admin: Any, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(store)
    fresh = opened()
    connects: list[str] = []
    sys.addaudithook(_audit)  # it cannot be taken away again
    monkeypatch.setattr(sys.modules[__name__], "WHO_CONNECTS", connects)
    subscribed(fresh, admin, space)
    assert set(connects) == {THREAD}


def test_subscribing_to_an_unknown_server_sends_no_request(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ClusterPlace(tmp_path_factory.mktemp("cluster"))
    try:
        store, other = cluster.open("space"), cluster.open("space")
        assert isinstance(store, RedisStore)
        assert isinstance(other, RedisStore)
        names = [Name(f"key-{number}") for number in range(30)]
        grants = {name: made(other, name) for name in names}
        connects: list[str] = []
        sys.addaudithook(_audit)
        monkeypatch.setattr(sys.modules[__name__], "WHO_CONNECTS", connects)
        several = {name: Subscriber(store, name) for name in names}
        assert set(connects) <= {THREAD}
        until(lambda: all(_is_listed(cluster, name) for name in names))
        # one for each master, and the one that found out which these are has ended
        until(lambda: len(store._watches.listeners) == 3 and None not in store._watches.listeners)
        for name in names:
            other.perform(Remove(name, grants[name].incarnation), LIMIT)
        for one in several.values():
            one.called()
        store.close()
        other.close()
    finally:
        cluster.stop()


def _is_listed(cluster: ClusterPlace, name: Name) -> bool:
    key = f"space:{{{name.key}}}:waiters"
    return any(node.says("ZCARD", key) == b":1\r\n" for node in cluster.nodes)


def test_a_master_that_stands_still_keeps_no_news_of_the_others_away(tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = ClusterPlace(tmp_path_factory.mktemp("cluster"))
    try:
        for node in cluster.nodes:
            node.says("CONFIG", "SET", "cluster-node-timeout", "60000")
        store, other = cluster.open("space"), cluster.open("space")
        assert isinstance(store, RedisStore)
        assert isinstance(other, RedisStore)
        names = [Name(f"key-{number}") for number in range(30)]
        grants = {name: made(other, name) for name in names}
        several = {name: Subscriber(store, name) for name in names}
        until(lambda: all(_is_listed(cluster, name) for name in names))
        on_first = {name for name in names if b"MOVED" not in cluster.nodes[0].says("EXISTS", f"space:{{{name.key}}}:")}
        assert 0 < len(on_first) < len(names)
        cluster.nodes[0].pause()
        try:
            for name in on_first:
                store._watches.place(name)  # its listener asks a server that does not answer
            for name in set(names) - on_first:
                other.perform(Remove(name, grants[name].incarnation), LIMIT)
                several[name].called()
        finally:
            cluster.nodes[0].resume()
        for name in on_first:
            other.perform(Remove(name, grants[name].incarnation), LIMIT)
            several[name].called()
        store.close()
        other.close()
    finally:
        cluster.stop()


def test_an_idle_thread_ends_and_a_subscription_starts_another(
    store: RedisStore, twin: RedisStore, admin: Any, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("ENROLS_AGAIN", 0.05), ("IDLES", 0.05)):
        monkeypatch.setattr(f"lockstead.stores.redis.watches.{name}", seconds)
    held = made(store)
    subscribed(twin, admin, space).close()
    until(lambda: threads() == 0)
    assert (twin._watches.listeners, twin._watches.homes) == ({}, {})
    until(lambda: not admin.pubsub_channels(f"{space}:*"))
    monkeypatch.undo()
    waiter = Subscriber(twin)
    until(lambda: bool(admin.pubsub_channels(f"{space}:*")))
    store.perform(Remove(APT, held.incarnation), LIMIT)
    waiter.called()


def test_nothing_is_left_of_a_closed_store(place: RedisPlace, admin: Any, space: str) -> None:
    store = place.open(space)
    assert isinstance(store, RedisStore)
    made(store)
    descriptors = len([*DESCRIPTORS.iterdir()])
    waiter = subscribed(store, admin, space)
    assert threads() == 1
    store.close()
    waiter.called(is_free=False)
    until(lambda: not [client for client in admin.client_list() if client["id"] != str(admin.client_id())])
    until(lambda: threads() == 0)
    assert len([*DESCRIPTORS.iterdir()]) < descriptors
    assert Subscriber(store).calls == []
    assert threads() == 0


def test_a_server_that_comes_back_is_listened_to_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server, server.client() as admin:
        store, twin = url.open_store(f"redis://{server.address}"), url.open_store(f"redis://{server.address}")
        assert isinstance(store, RedisStore)
        assert isinstance(twin, RedisStore)
        made(store)
        waiter = subscribed(twin, admin, "lockstead")
        server.kill()
        waiter.called(is_free=False)
        server.start()
        waiter.called()  # it came back empty
        held = made(store)
        waiter.called(is_free=False)
        store.perform(Remove(APT, held.incarnation), LIMIT)
        waiter.called()
        store.close()
        twin.close()


WAITERS, KEYS = 1000, 200


def test_a_thousand_awaiting_waiters_need_no_thread_each(place: RedisPlace, admin: Any, space: str) -> None:
    address = f"redis://127.0.0.1:{place.ports[0]}?prefix={space}"
    granted: list[int] = []

    async def use(client: lockstead.AsyncClient, number: int) -> None:
        async with client.lock(f"key-{number % KEYS}", ttl=300, backoff_max=60).hold():
            granted.append(number)

    def all_listed() -> bool:
        return all(len(listed(admin, space, f"key-{number}")) == 1 for number in range(KEYS))

    async def wait() -> None:
        async with await lockstead.connect_async(address, listener=quiet) as client:
            await (await client.lock("warm").acquire()).release()
            before = set(threading.enumerate())
            waiting = [asyncio.create_task(use(client, number)) for number in range(WAITERS)]
            await asyncio.to_thread(until, all_listed, 240)
            added = {thread.name for thread in set(threading.enumerate()) - before}
            # the one of asyncio.to_thread is this test's own
            assert {name for name in added if not name.startswith("asyncio")} == {THREAD}
            assert threads() == 1
            assert admin.pubsub_channels(f"{space}:*") == [client._engine.store._watches.channel]
            for lease in held:
                await asyncio.to_thread(lease.release)
            await asyncio.gather(*waiting)

    with lockstead.connect(address, listener=quiet) as holder:
        held = [holder.lock(f"key-{number}", ttl=300).acquire() for number in range(KEYS)]
        asyncio.run(wait())
    assert sorted(granted) == list(range(WAITERS))


def test_a_record_without_subscribers_needs_no_thread(
    store: RedisStore, twin: RedisStore, admin: Any, space: str
) -> None:
    held = made(store)
    subscribed(twin, admin, space).close()
    assert isinstance(store.perform(Remove(APT, held.incarnation), LIMIT), Removed)
    until(lambda: not twin._watches.homes)
    made(store)
    before = threading.active_count()
    for _ in range(5):
        assert isinstance(twin.perform(Read(APT), LIMIT), Snapshot)
    assert threading.active_count() <= before
    assert not twin._watches.homes
