"""Locks in memory."""

from __future__ import annotations

import pytest

from lockstead.protocol.commands import Create, Extend, Pause, Read, Remove, Snapshot
from lockstead.stores import url
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name

APT = Name("apt")


def test_time_is_what_the_given_clock_says_and_never_goes_back() -> None:
    now = [100.0]
    store = MemoryStore(clock=lambda: now[0])
    made = store.perform(Create(APT, {}), 1.0)
    assert isinstance(made, Snapshot)
    assert (made.updated_at, made.store_now) == (100.0, 100.0)
    now[0] = 50.0
    extended = store.perform(Extend(APT, {}, made.incarnation), 1.0)
    assert isinstance(extended, Snapshot)
    assert extended.updated_at == 100.0
    now[0] = 250.0
    seen = store.perform(Read(APT), 1.0)
    assert isinstance(seen, Snapshot)
    assert (seen.updated_at, seen.store_now) == (100.0, 250.0)


def test_two_made_by_hand_share_nothing() -> None:
    one, two = MemoryStore(), MemoryStore()
    for store in (one, two):
        assert isinstance(store.perform(Create(APT, {}), 1.0), Snapshot)


@pytest.mark.parametrize("text", ["memory://host", "memory:a/b", "memory:a b", "memory:é"])
def test_what_is_no_memory_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a memory store"):
        url.open_store(text)


def test_what_is_no_command_for_a_store_is_told() -> None:
    with pytest.raises(TypeError, match="not a command for a store: Pause"):
        MemoryStore().perform(Pause(APT, 0.0, 1.0), 1.0)


def test_many_waiters_see_one_release() -> None:
    store, seen = MemoryStore(), list[bool]()
    made = store.perform(Create(APT, {}), 1.0)
    assert isinstance(made, Snapshot)
    subscriptions = [store.subscribe(APT, seen.append) for _ in range(20)]
    store.perform(Remove(APT, made.incarnation), 1.0)
    assert seen == [False] * 20
    subscriptions.clear()
    assert not store._memory.subscriptions, "who dropped a subscription left it open"
