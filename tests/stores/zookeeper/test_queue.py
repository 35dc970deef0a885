"""The queue on ZooKeeper: who watches what, and what becomes of a place with its session, process and answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Conflict, Create, Read, Remove, Snapshot
from lockstead.script import drive
from lockstead.stores.zookeeper.encoding import in_order
from lockstead.stores.zookeeper.queue import LOOKS_MAX
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.values import Name
from tests.servers.zookeeper import ZookeeperServer, asked, four_letters, operations, standing
from tests.stores.zookeeper.server import APT, LIMIT, opened, server, space, store, taken, until
from tests.stores.zookeeper.test_store import expire

__all__ = ["server", "space", "store"]

CREATE = 1


class Waiter:
    """A subscription to a turn. has_turn is set when the lock is free and it is this waiter's turn."""

    def __init__(self, store: ZookeeperStore, waiter_id: str, name: Name = APT) -> None:
        self.has_turn = threading.Event()
        self._subscription = store.enqueue(name, waiter_id, self._on_turn)

    def _on_turn(self, is_free: bool) -> None:
        if is_free:
            self.has_turn.set()

    def end(self) -> None:
        self._subscription.close()


def places(server: ZookeeperServer, url: str) -> list[str]:
    """Name the places in the queue, in order."""
    with asked(server.address) as client:
        found = standing(client, "/" + url.partition("?")[0].rpartition("/")[2])
    return in_order([one.rpartition("/")[2] for one in found if one.startswith("queue/apt/")])


@contextmanager
def in_line(server: ZookeeperServer, *askers: tuple[ZookeeperStore, str]) -> Iterator[list[Waiter]]:
    """Queue these waiters, in this order."""
    waiters: list[Waiter] = []
    try:
        for store, waiter_id in askers:
            waiters.append(Waiter(store, waiter_id))
            until(lambda: len(places(server, store.url)) == len(waiters))  # noqa: B023
        yield waiters
    finally:
        for one in waiters:
            one.end()


def asks(store: ZookeeperStore, waiter_id: str) -> Snapshot | Conflict:
    return store.perform(Create(APT, {"v": "1", "identity": waiter_id}, 30.0, waiter_id, 33.0), LIMIT)


def test_everybody_watches_another_node_so_that_a_release_wakes_one(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    held = taken(store)
    with in_line(server, *((store, f"waiter-{number}") for number in range(5))) as waiters:
        base = "/" + space.rpartition("/")[2]
        order = places(server, space)
        expected = {f"{base}/lock/apt", *(f"{base}/queue/apt/{place}" for place in order[:-1])}

        def watched() -> set[str]:
            said = four_letters(server.port, b"wchp").decode()
            return {line for line in said.splitlines() if line.startswith(base + "/")}

        until(lambda: watched() == expected)
        store.perform(Remove(APT, held.incarnation), LIMIT)
        assert waiters[0].has_turn.wait(LIMIT)
        assert [one.has_turn.is_set() for one in waiters[1:]] == [False] * 4
        assert isinstance(asks(store, "waiter-0"), Snapshot)
        assert places(server, space) == order[1:]


def left(server: ZookeeperServer, space: str) -> list[str]:
    """Return the names of all nodes below a store's path."""
    with asked(server.address) as client:
        return standing(client, "/" + space.rpartition("/")[2])


def test_the_last_waiter_removes_the_queue_at_its_release(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    held = taken(store)
    with in_line(server, (store, "granted"), (store, "gone")) as (granted, gone):
        gone.end()
        store.leave(APT, "gone", LIMIT)
        store.perform(Remove(APT, held.incarnation), LIMIT)
        assert granted.has_turn.wait(LIMIT)
        answer = asks(store, "granted")
        assert isinstance(answer, Snapshot)
    store.perform(Remove(APT, answer.incarnation), LIMIT)
    until(lambda: left(server, space) == [])


def test_who_clears_up_stops_at_those_who_came_meanwhile(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    held = taken(store)
    with in_line(server, (store, "first"), (store, "second")) as (first, second):
        store.perform(Remove(APT, held.incarnation), LIMIT)
        assert first.has_turn.wait(LIMIT)
        granted = asks(store, "first")
        assert isinstance(granted, Snapshot)
        store.perform(Remove(APT, granted.incarnation), LIMIT)
        assert second.has_turn.wait(LIMIT)
        assert places(server, space), "the place of the second was cleared away"
        assert asks(store, "newcomer") == Conflict(is_queued=True)
        assert isinstance(asks(store, "second"), Snapshot)


def test_a_leftover_queue_node_is_removed_by_the_next_waiter(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    # as the last in line leaves it that dies with the lock
    with asked(server.address) as client:
        client.create(f"/{space.rpartition('/')[2]}/queue/apt", makepath=True)
    answer = asks(store, "newcomer")
    assert isinstance(answer, Snapshot)
    store.perform(Remove(APT, answer.incarnation), LIMIT)
    assert left(server, space) == []


def test_a_place_that_went_with_its_session_is_taken_again_at_the_end(server: ZookeeperServer, space: str) -> None:
    store, other = opened(f"{space}?session=2"), opened(space)
    held = taken(other)
    try:
        with in_line(server, (store, "expired"), (other, "second")) as (expired, second):
            before = places(server, space)
            expire(store, server)
            until(lambda: len(places(server, space)) == 2 and places(server, space)[0] == before[1])
            other.perform(Remove(APT, held.incarnation), LIMIT)
            assert second.has_turn.wait(LIMIT)
            assert not expired.has_turn.is_set()
            refused = asks(store, "expired")
            assert isinstance(refused, Conflict)
            assert refused.is_queued
            granted = asks(other, "second")
            assert isinstance(granted, Snapshot)
            other.perform(Remove(APT, granted.incarnation), LIMIT)
            assert expired.has_turn.wait(LIMIT)
            assert isinstance(asks(store, "expired"), Snapshot)
    finally:
        store.close()
        other.close()


def test_a_grant_with_a_place_that_is_gone_does_not_overtake(server: ZookeeperServer, space: str) -> None:
    store, other = opened(space), opened(space)
    held = taken(other)
    try:
        with in_line(server, (store, "expired"), (other, "second")) as (expired, _second):
            # it knows that it is first, and does not know yet that its place is gone
            expired.end()
            expire(store, server)
            other.perform(Remove(APT, held.incarnation), LIMIT)
            refused = asks(store, "expired")
            assert isinstance(refused, Conflict)
            assert refused.is_queued
    finally:
        store.close()
        other.close()


WAITER = """
import sys, time
from lockstead.stores import url
from lockstead.values import Name
store = url.open_store(sys.argv[1])
subscription = store.enqueue(Name("apt"), "stopped", lambda is_free: None)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_h06_a_stopped_or_killed_process_loses_its_place(
    store: ZookeeperStore, server: ZookeeperServer, space: str, number: signal.Signals
) -> None:
    held = taken(store)
    child = subprocess.Popen([sys.executable, "-c", WAITER, f"{space}?session=1"])
    try:
        until(lambda: len(places(server, space)) == 1)
        with in_line_behind(server, store, space) as second:
            os.kill(child.pid, number)
            store.perform(Remove(APT, held.incarnation), LIMIT)
            assert second.has_turn.wait(LIMIT)
            assert isinstance(asks(store, "second"), Snapshot)
    finally:
        child.kill()
        child.wait()


@contextmanager
def in_line_behind(server: ZookeeperServer, store: ZookeeperStore, url: str) -> Iterator[Waiter]:
    second = Waiter(store, "second")
    try:
        until(lambda: len(places(server, url)) == 2)
        yield second
    finally:
        second.end()


def test_h18_a_waiter_that_left_before_it_enqueues_takes_no_place(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    taken(store)
    store.leave(APT, "never-came", LIMIT)
    late = Waiter(store, "never-came")
    with in_line(server, (store, "next")):
        assert [one.who for one in store.standing(APT, LIMIT)] == ["next"]
    late.end()


class Relay:
    """Between a client and its server. cut_after(code): the next request of this kind is passed on, its answer is not,
    and the connection ends."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._code = 0
        self.seen: list[int] = []
        self.has_cut = threading.Event()
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, job: Callable[..., None], *ends: socket.socket) -> None:
        self._threads.append(threading.Thread(target=job, args=ends, daemon=True))
        self._threads[-1].start()

    def cut_after(self, code: int) -> None:
        self._code = code

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._behind))
            self._sockets += [client, server]
            for job in (self._up, self._down):
                self._begin(job, client, server)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        for sent in _pieces(client):
            codes = list(operations(sent))
            self.seen += codes
            if self._code in codes:
                self._code = 0
                _end(client)
                server.sendall(sent)
                self.has_cut.set()
                return
            server.sendall(sent)
        _end(server)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        for sent in _pieces(server):
            try:
                client.sendall(sent)
            except OSError:
                return
        _end(client)

    def close(self) -> None:
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join(LIMIT)
        for one in self._sockets:
            one.close()


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _pieces(source: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            sent = source.recv(65536)
        except OSError:
            return
        if not sent:
            return
        yield sent


@pytest.fixture
def relayed(server: ZookeeperServer) -> Iterator[Relay]:
    relay = Relay(server.port)
    yield relay
    relay.close()


def through(relay: Relay, url: str, server: ZookeeperServer) -> ZookeeperStore:
    return opened(url.replace(f":{server.port}", f":{relay.port}"))


def test_h28_a_queue_place_without_a_reply_is_found_again(
    server: ZookeeperServer, space: str, relayed: Relay, store: ZookeeperStore
) -> None:
    held = taken(store)
    cut = through(relayed, space, server)
    try:
        cut.perform(Read(APT), LIMIT)
        with in_line(server, (store, "first-of-all")):
            relayed.cut_after(CREATE)
            waiter = Waiter(cut, "waiter")
            assert relayed.has_cut.wait(LIMIT)
            until(lambda: len(places(server, space)) == 2)
            # it goes on: a second place would come with the next look
            until(lambda: relayed.seen.count(CREATE) == 1 and cut._queue._places[APT, "waiter"].node)
            assert len(places(server, space)) == 2
            assert relayed.seen.count(CREATE) == 1
        store.leave(APT, "first-of-all", LIMIT)
        store.perform(Remove(APT, held.incarnation), LIMIT)
        assert waiter.has_turn.wait(LIMIT)
        assert isinstance(asks(cut, "waiter"), Snapshot)
        waiter.end()
    finally:
        cut.close()


def test_h28_leaving_without_a_reply_leaves_no_queue_place(
    server: ZookeeperServer, space: str, relayed: Relay, store: ZookeeperStore
) -> None:
    taken(store)
    with in_line(server, (store, "first-of-all")):  # so that the queue's node is there
        cut = through(relayed, space, server)
        try:
            cut.perform(Read(APT), LIMIT)
            relayed.cut_after(CREATE)
            waiter = Waiter(cut, "waiter")
            assert relayed.has_cut.wait(LIMIT)
            leave_until_it_works(lambda: cut.leave(APT, "waiter", LIMIT))
            assert len(places(server, space)) == 1
            assert relayed.seen.count(CREATE) == 1
            waiter.end()
        finally:
            cut.close()


def leave_until_it_works(leave: Callable[[], None]) -> None:
    def works() -> bool:
        try:
            leave()
        except Exception:
            return False
        return True

    until(works)


class Forgetful:
    """A server that makes places and never lists one."""

    def __init__(self) -> None:
        self.made = 0

    def create_async(self, path: str, *_rest: object) -> str:
        self.made += 1
        return f"{path}{self.made:010}"

    def get_children_async(self, _path: str) -> list[str]:
        return []


def test_a_server_that_never_lists_a_place_is_asked_only_so_often(store: ZookeeperStore) -> None:
    store._watches.close()  # the test drives the look itself
    waiter, forgetful = Waiter(store, "waiter"), Forgetful()
    place = store._queue._places[APT, "waiter"]
    with pytest.raises(StoreUnavailable, match="changes with every look"):
        drive(store._queue.look(place), lambda request: [*request.send(forgetful)])
    assert 1 < forgetful.made <= LOOKS_MAX
    waiter.end()
