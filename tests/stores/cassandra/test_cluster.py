"""Three nodes of Cassandra and three copies: what holds while nodes die, are stopped and come back.

The tests run one after the other on the same nodes: each leaves all three running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

import lockstead
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Create, Extend, Read, Remove, Replace, Snapshot
from lockstead.stores import url
from lockstead.stores.port import Store
from lockstead.values import Name
from tests.servers.cassandra import CassandraServer
from tests.servers.cassandra.place import knows

APT = Name("apt")
LIMIT = 5.0
ENOUGH = 240.0
"""Seconds, for a broken server and not for a slow machine."""

pytestmark = [
    pytest.mark.cassandra,
    pytest.mark.slow,
    pytest.mark.xdist_group("cassandra nodes"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CassandraServer]]:
    running: list[CassandraServer] = []
    try:
        for number in range(3):
            beside = running[-1] if running else None
            running.append(CassandraServer(tmp_path_factory.mktemp(f"node-{number}"), beside=beside))
            running[-1].start()
        everybody = {node.host for node in running}
        # a node that does not know of the others yet is a majority by itself; Cassandra waits for gossip to settle
        # before it serves, and these were told not to
        for node in running:
            until(lambda: knows(node) == everybody - {node.host})  # noqa: B023 - called at once
        yield running
    finally:
        for node in running:
            node.stop()


@pytest.fixture
def place(nodes: list[CassandraServer]) -> str:
    hosts = ",".join(f"{node.host}:{node.port}" for node in nodes)
    return f"cassandra://{hosts}/s{uuid4().hex[:11]}?replication=3"


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    store = url.open_store(place)
    until(lambda: isinstance(store.perform(Read(APT), 30.0), Absent))
    yield store
    store.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; what the store cannot answer does not."""
    ends_at = time.monotonic() + ENOUGH
    while time.monotonic() < ends_at:
        with suppress(StoreError):
            if condition():
                return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def shows(answer: object) -> Snapshot:
    assert isinstance(answer, Snapshot), answer
    return answer


@dataclass
class Counter:
    """Threads that count in a record by replacing it: what was answered, and what the record says in the end."""

    store: Store
    done: int = 0
    unknown: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: threading.Event = field(default_factory=threading.Event)

    def step(self) -> None:
        try:
            seen = shows(self.store.perform(Read(APT), LIMIT))
        except StoreError:
            return
        following = {"n": str(int(seen.fields["n"]) + 1)}
        try:
            answer = self.store.perform(Replace(APT, following, seen.incarnation, seen.revision), LIMIT)
        except OutcomeUnknown:
            with self.lock:
                self.unknown += 1
        except StoreUnavailable:
            time.sleep(0.05)
        else:
            with self.lock:
                self.done += isinstance(answer, Snapshot)

    def run(self) -> None:
        while not self.is_over.is_set():
            self.step()


def counted(store: Store, trouble: Callable[[Callable[[int], None]], None]) -> None:
    """Let four threads count while trouble(wait for so many steps more) happens; no step may be lost or doubled."""
    shows(store.perform(Create(APT, {"n": "0"}), LIMIT))
    counter = Counter(store)
    threads = [threading.Thread(target=counter.run) for _ in range(4)]
    for thread in threads:
        thread.start()

    def more(steps: int) -> None:
        until_at, ends_at = counter.done + steps, time.monotonic() + ENOUGH
        while counter.done < until_at:
            assert time.monotonic() < ends_at, "nobody counts any more"
            time.sleep(0.02)

    try:
        trouble(more)
    finally:
        counter.is_over.set()
        for thread in threads:
            thread.join(60.0)
    last: list[int] = []
    until(lambda: last.append(int(shows(store.perform(Read(APT), LIMIT)).fields["n"])) is None)
    assert counter.done <= last[-1] <= counter.done + counter.unknown, (counter.done, counter.unknown, last)


def test_a_node_that_was_alone_when_it_was_asked_may_die(store: Store, nodes: list[CassandraServer]) -> None:
    shows(store.perform(Create(APT, {"identity": "me"}), LIMIT))
    driver = store._connection._opened(time.monotonic() + LIMIT).cluster  # type: ignore[attr-defined]
    # as the driver does when the node that it listens to does not know of the others yet
    last = nodes[2].host
    for host in driver.metadata.all_hosts():
        if host.address != last:
            driver.remove_host(host)
    nodes[2].kill()
    try:
        until(lambda: shows(store.perform(Read(APT), LIMIT)).fields["identity"] == "me")
    finally:
        nodes[2].start()


def test_h11_no_increment_is_lost_while_a_node_restarts(store: Store, nodes: list[CassandraServer]) -> None:
    def trouble(more: Callable[[int], None]) -> None:
        more(10)
        nodes[2].kill()
        more(10)
        nodes[2].start()
        more(10)

    counted(store, trouble)


def test_h11_no_increment_is_lost_while_a_majority_is_stopped(store: Store, nodes: list[CassandraServer]) -> None:
    def trouble(more: Callable[[int], None]) -> None:
        more(10)
        for node in nodes[1:]:
            node.pause()
        time.sleep(3.0)
        for node in nodes[1:]:
            node.resume()
        more(10)

    counted(store, trouble)


def test_without_a_quorum_nothing_succeeds_until_it_is_back(store: Store, nodes: list[CassandraServer]) -> None:
    made = shows(store.perform(Create(APT, {"identity": "me"}), LIMIT))
    for node in nodes[1:]:
        node.pause()
    try:
        # a vote that only one of three can give: the server's word for it is a WriteTimeout of the type CAS
        with pytest.raises(OutcomeUnknown):
            store.perform(Remove(APT, made.incarnation), LIMIT)
        with pytest.raises(StoreUnavailable):
            store.perform(Read(APT), LIMIT)
        with pytest.raises(StoreUnavailable):
            store.perform(Extend(APT, {}, made.incarnation), LIMIT)
    finally:
        for node in nodes[1:]:
            node.resume()
    # the removal may be done late, by a node that stood still when it was asked; never is it undone, for whoever reads
    twin = url.open_store(store.url)
    seen: list[Snapshot | Absent] = []
    try:
        for reader in (store, twin) * 6:
            until(lambda: seen.append(reader.perform(Read(APT), LIMIT)) is None)  # noqa: B023 - called at once
        there = [isinstance(one, Snapshot) for one in seen]
        assert there == sorted(there, reverse=True)
        assert {one.revision for one in seen if isinstance(one, Snapshot)} <= {made.revision}
        until(lambda: isinstance(twin.perform(Remove(APT, made.incarnation), LIMIT), Absent))
        until(lambda: isinstance(twin.perform(Create(APT, {}), LIMIT), Snapshot | Conflict))
    finally:
        twin.close()


def test_a_lease_outlives_a_node_and_sixteen_threads_take_turns(place: str, nodes: list[CassandraServer]) -> None:
    steps, counter, inside = 2, [0], [0]
    with ExitStack() as stack:
        # a client each four threads: those of one stand in one line
        clients = [stack.enter_context(lockstead.connect(place)) for _ in range(4)]
        kept = clients[0].lock("kept", ttl=60).acquire(ENOUGH)

        def work(client: lockstead.Client) -> None:
            for _ in range(steps):
                with client.lock("shared", ttl=60).acquire(ENOUGH):
                    inside[0] += 1
                    assert inside[0] == 1
                    seen = counter[0]
                    time.sleep(0.001)
                    counter[0] = seen + 1
                    inside[0] -= 1

        threads = [threading.Thread(target=work, args=(clients[number % 4],)) for number in range(16)]
        for thread in threads:
            thread.start()
        nodes[1].kill()
        for thread in threads:
            thread.join(ENOUGH)
        nodes[1].start()
        assert counter[0] == 16 * steps
        assert kept.is_held
        assert kept.release() is True
