"""A store with a queue: a holder leaves the queue, and the first waiter acquires without reading first."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from lockstead import Client
from lockstead.errors import NotAcquired, OutcomeUnknown
from lockstead.protocol.commands import Command, Create, Extend, Read, Remove, Snapshot
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name
from tests.runtime.faulty import until
from tests.runtime.fifo import FifoStore

APT = Name("apt")


def test_h28_a_late_grant_of_a_waiter_leaves_the_queue() -> None:
    store = FifoStore()
    other = store.beside()
    lost: list[Command[Any]] = []
    held: list[object] = []

    def hold_back_the_first_grant(command: Command[Any]) -> None:
        if isinstance(command, Create) and not lost:
            lost.append(command)
            held.append(other.perform(Create(APT, {"v": "1", "identity": "other", "ttl": "60"}), 1.0))
            raise OutcomeUnknown("no answer in time")

    def it_arrives_after_all() -> None:
        until(lambda: store.waiting(APT))
        (snapshot,) = held
        assert isinstance(snapshot, Snapshot)
        other.perform(Remove(APT, snapshot.incarnation), 1.0)
        # past the queue: it was carried out before the place was taken
        MemoryStore(store._memory).perform(lost[0], 1.0)

    store.before = hold_back_the_first_grant
    arrives = threading.Thread(target=it_arrives_after_all)
    arrives.start()
    with Client(store) as client, client.lock("apt", ttl=60).hold(timeout=30) as lease:
        assert isinstance(lost[0], Create)
        assert lost[0].waiter_id == lease.holder
        until(lambda: not store.waiting(APT))
    arrives.join()


@pytest.mark.parametrize(("is_free", "kind"), [(True, Create), (False, Read)])
def test_a_waiter_writes_at_its_turn_and_reads_after_a_change(is_free: bool, kind: type[Command[Any]]) -> None:
    store = FifoStore()
    held = store.perform(Create(APT, {"v": "1", "identity": "other", "ttl": "60"}), 1.0)
    asked: list[type] = []

    def change() -> None:
        until(lambda: store.waiting(APT))
        store.before = lambda command: asked.append(type(command))
        other = store.beside()
        if is_free:
            other.perform(Remove(APT, held.incarnation), 1.0)
        else:
            other.perform(Extend(APT, {"n": "1"}, held.incarnation), 1.0)
        until(lambda: asked)

    changes = threading.Thread(target=change)
    changes.start()
    with Client(store) as client, suppress(NotAcquired):
        client.lock("apt", ttl=60, backoff_max=60).acquire(timeout=10 if is_free else 1)
    changes.join()
    assert asked[0] is kind


def test_a_waiter_that_gives_up_leaves_the_queue_and_its_subscription() -> None:
    store = FifoStore()
    store.perform(Create(APT, {"v": "1", "identity": "other", "ttl": "60"}), 1.0)
    with Client(store) as client:
        with pytest.raises(NotAcquired):
            client.lock("apt", ttl=60).acquire(timeout=0.05)
        until(lambda: not store.waiting(APT))
        assert len(store._memory.subscriptions) == 0
