"""Readers and writers of one process and of several, through the public classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from lockstead import Client, Lease, NotAcquired, StoreRefused
from lockstead.errors import LocksteadError
from lockstead.protocol.commands import Create
from lockstead.values import Name, Space
from tests.runtime.faulty import Faulty, quiet, until
from tests.runtime.fifo import FifoStore

APT = Name("apt")


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def client(store: Faulty) -> Iterator[Client]:
    with Client(store, listener=quiet) as client:
        yield client


@pytest.fixture
def other(store: Faulty) -> Iterator[Client]:
    with Client(store.beside(), listener=quiet) as other:
        yield other


def test_a_reader_renews_for_the_ttl_of_the_group_that_it_joined(client: Client, other: Client) -> None:
    founder = client.lock("apt", ttl=2, mode="shared").acquire()
    joined = other.lock("apt", ttl=600, mode="shared").acquire()
    assert joined.ttl == founder.ttl == 2
    ends_at = time.monotonic() + 3
    while time.monotonic() < ends_at:
        founder.check()
        joined.check()
        time.sleep(0.05)
    joined.release()
    founder.release()


def test_m12_the_holder_of_a_shared_lease_that_asks_again_gets_an_error(client: Client, other: Client) -> None:
    """With a writer waiting between the two, it would wait for itself."""
    lock = client.lock("apt", ttl=60, mode="shared")
    with lock.hold():
        waiting = threading.Thread(target=lambda: other.lock("apt", ttl=60).acquire().release())
        waiting.start()
        until(lambda: (info := lock.inspect()) is not None and info.wanted_by)
        for mode in ("shared", "exclusive"):
            with pytest.raises(LocksteadError, match="already"):
                lock.acquire(mode=mode)
    waiting.join(10)
    assert not waiting.is_alive()


def test_readers_behind_a_reader_of_one_process_go_on_at_once(client: Client, other: Client) -> None:
    writer = other.lock("apt", ttl=60).acquire()
    leases: list[Lease] = []
    all_read = threading.Barrier(9)

    def read() -> None:
        lease = client.lock("apt", ttl=60, mode="shared").acquire(timeout=30)
        leases.append(lease)
        all_read.wait(30)
        lease.release()

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: client._engine.local_queue.is_followed("apt"))
    writer.release()
    # each holds the lock until all do
    all_read.wait(30)
    for thread in threads:
        thread.join(30)
    assert len({lease.token for lease in leases}) == 1


def test_a_writer_of_the_same_process_gets_in_between_readers(client: Client) -> None:
    first = client.lock("apt", ttl=60, mode="shared").acquire()
    order: list[str] = []

    def ask(mode: str) -> None:
        with client.lock("apt", ttl=60, mode=mode).hold(timeout=30):
            order.append(mode)

    writer = threading.Thread(target=ask, args=("exclusive",))
    writer.start()
    until(lambda: (info := client.lock("apt").inspect()) is not None and info.wanted_by)
    later = threading.Thread(target=ask, args=("shared",))
    later.start()
    until(lambda: client._engine.local_queue.is_followed("apt"))
    first.release()
    writer.join(30)
    later.join(30)
    assert order == ["exclusive", "shared"]


def test_only_a_reader_that_was_shown_is_broken(client: Client) -> None:
    lock = client.lock("apt", ttl=60, mode="shared")
    with lock.hold() as lease:
        shown = lock.inspect()
        assert shown is not None
        for given, name in ((lease.holder, lease.holder), (shown, shown.holder)):
            with pytest.raises(ValueError, match=f"'{name}' is not a reader; pass one of lock.inspect"):
                lock.break_lease(reason="stuck", reader=given)  # type: ignore[arg-type]  # a holder's name is no LockInfo
        assert lease.is_held


def test_a_writer_that_gives_up_leaves_neither_mark_nor_place(client: Client, other: Client) -> None:
    lock = client.lock("apt", ttl=60, mode="shared")
    with lock.hold():
        with pytest.raises(NotAcquired):
            other.lock("apt", ttl=60).acquire(timeout=0.5)
        until(lambda: (info := lock.inspect()) is not None and not info.wanted_by)
        assert other.lock("apt", ttl=60, mode="shared").try_acquire() is not None


def test_a_reader_that_gives_up_leaves_no_registration(store: Faulty, client: Client, other: Client) -> None:
    """It withdrew twice from a group, under two names."""
    with client.lock("apt", ttl=60, mode="shared").hold():
        assert other.lock("apt", ttl=60, mode="shared").acquire().release()
        group = other._engine.observations.groups[APT]
        waiting = threading.Thread(target=lambda: client.lock("apt", ttl=60).acquire().release())
        waiting.start()
        until(lambda: (info := client.lock("apt").inspect()) is not None and info.wanted_by)
        for _ in range(2):
            other._engine.observations.note_group(APT, group)
            assert other.lock("apt", mode="shared", ttl=60).try_acquire() is None
        until(lambda: len((client.lock("apt").inspect() or pytest.fail("it is held")).readers) == 1)
    waiting.join(30)


def test_readers_and_writers_of_a_queue_all_get_in() -> None:
    """Each is of a process of its own, and reads or writes more than once; nobody reads while another writes."""
    first = FifoStore()
    inside: list[str] = []
    lock, rounds = threading.Lock(), 4
    overlaps: list[list[str]] = []

    def work(number: int) -> None:
        mode = "exclusive" if number % 3 == 0 else "shared"
        with Client(first.beside(), listener=quiet) as client:
            for _ in range(rounds):
                with client.lock("apt", ttl=60, mode=mode, backoff_max=0.2).hold(timeout=60):
                    with lock:
                        inside.append(mode)
                        if len(inside) > 1 and "exclusive" in inside:
                            overlaps.append([*inside])
                    time.sleep(0.002)
                    with lock:
                        inside.remove(mode)
                    done[number] += 1

    done = [0] * 9
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(done))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert overlaps == []
    assert done == [rounds] * len(done)
    until(lambda: first.waiting(APT) == [])


def test_h24_a_writer_behind_an_unreadable_registration_is_told_and_does_not_keep_the_group_alive(
    store: Faulty, client: Client, other: Client
) -> None:
    """A mark renews the group, so a writer that waited for it would wait forever."""
    reader = client.lock("apt", ttl=2, mode="shared").acquire()
    group = client._engine.observations.groups[APT]
    evil = Name("apt", Space.MEMBER, f"{group.incarnation}/evil")
    store.perform(Create(evil, {"v": "1", "identity": "evil", "ttl": "soon"}), 1.0)
    writer = other.lock("apt", ttl=2)
    with pytest.raises(NotAcquired):
        writer.acquire(timeout=0.2)  # a live reader is waited for
    assert reader.release()  # the list that it cannot read is the writer's matter
    with pytest.raises(StoreRefused, match=r"'apt' is damaged: ttl is 'soon'; break it with now=True"):
        writer.acquire(timeout=30)

    def is_free() -> bool:
        try:
            lease = writer.try_acquire()
        except StoreRefused:
            return False
        return lease is not None and lease.release()

    until(is_free)
