"""How a driven script watches: one subscription over its pauses, none that is left open, and no thread for a waiter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lockstead import AsyncClient, Client
from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Create, Pause, Paused, Read, Remove, Snapshot
from lockstead.runtime.drive import run
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.runtime.run import Limits
from lockstead.values import Name
from tests.runtime.faulty import Faulty, SetClock, Watching, quiet, until
from tests.runtime.keeping import APT, asked


class Notifies(Faulty):
    """A store that notifies when the test wants it. subscribed: each subscription that was ever made."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribed: list[tuple[Name, Callable[[bool], None]]] = []
        self.closed = 0

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Any:
        self.subscribed.append((name, on_change))
        return self

    def close(self) -> None:
        self.closed += 1

    def notify(self, is_free: bool = False) -> None:
        self.subscribed[-1][1](is_free)


def driven(store: Any, *commands: Any) -> list[Any]:
    return [getattr(one, "answer", one) for one in run(asked(*commands), store, SetClock(), Limits(5.0), ThreadWaker())]


def pause(waiter_id: str = "a", seconds: float = 10.0, **settings: Any) -> Pause:
    return Pause(APT, seconds, seconds, waiter_id, **settings)


def test_a_subscription_lasts_over_pauses_and_misses_nothing() -> None:
    store = Notifies()
    store.before = lambda _read: store.notify()
    first, _read, second = driven(store, pause(seconds=0.01), Read(APT), pause())
    assert (first, second) == (Paused(0.01), Paused(10.0, True))
    assert ([name for name, _ in store.subscribed], store.closed) == ([APT], 1)


@pytest.mark.parametrize(("waiter_id", "is_free"), [("a", True), ("a", False), ("", True)])
def test_a_notified_pause_ends_and_a_gone_record_is_created(waiter_id: str, is_free: bool) -> None:
    store = Notifies()
    threading.Thread(target=lambda: (until(lambda: store.subscribed), store.notify(is_free))).start()
    assert driven(store, pause(waiter_id)) == [Paused(10.0, True, is_free and bool(waiter_id))]


def test_a_change_that_is_no_release_is_not_worth_a_write() -> None:
    store = Notifies()
    store.before = lambda _read: store.notify()
    assert driven(store, pause(seconds=0.01), Read(APT), pause())[2] == Paused(10.0, True, is_turn=False)


def test_a_release_before_the_subscription_is_noticed() -> None:
    assert driven(Watching(), pause(seconds=2.0)) == [Paused(2.0, True)]


def test_a_change_after_an_unknown_outcome_ends_no_pause() -> None:
    store = Notifies()
    store.before = lambda _read: store.notify(is_free=True)
    _first, _read, unheeded, heeded = driven(
        store, pause(seconds=0.01), Read(APT), pause(seconds=0.01, wake_on_change=False), pause(seconds=0.01)
    )
    assert (unheeded, heeded) == (Paused(0.01), Paused(0.01))
    assert (len(store.subscribed), store.closed) == (2, 2)


def test_a_store_that_cannot_be_subscribed_to_is_polled() -> None:
    class Down(Notifies):
        def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Any:
            raise StoreUnavailable("down")

    assert driven(Down(), pause(seconds=0.01), Read(APT))[0] == Paused(0.01)


def held(store: Watching, key: str = "apt") -> Snapshot:
    made = store.beside().perform(Create(Name(key), {"v": "1", "identity": "other/1", "ttl": "60"}), 1.0)
    assert isinstance(made, Snapshot)
    return made


@pytest.mark.parametrize("way", ["cancelled", "timed out", "granted"])
def test_no_subscription_is_left_open_however_a_wait_ends(way: str) -> None:
    store = Watching()
    made, subscriptions = held(store), store.inner._memory.subscriptions

    async def use() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            waits = client.lock("apt", ttl=60).acquire(0.2 if way == "timed out" else 60)
            task = asyncio.create_task(waits)
            await asyncio.to_thread(until, lambda: subscriptions)
            if way == "cancelled":
                task.cancel()
            elif way == "granted":
                store.beside().perform(Remove(APT, made.incarnation), 1.0)
            await asyncio.wait([task], timeout=30)
            assert (task.cancelled(), task.done() and not task.cancelled() and task.exception() is None) == (
                way == "cancelled",
                way == "granted",
            )

    asyncio.run(use())
    assert not subscriptions


def test_a_wait_that_timed_out_leaves_no_subscription() -> None:
    store = Watching()
    held(store)
    driven(store, pause(seconds=0.01))
    assert not store.inner._memory.subscriptions


def test_many_awaiting_waiters_need_one_subscription_a_key() -> None:
    store = Watching()
    keys = [f"{number}" for number in range(200)]
    made = {key: held(store, key) for key in keys}

    async def crowd() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            waiting = [asyncio.create_task(client.lock(key, ttl=60).acquire(60)) for key in keys for _ in range(3)]
            await asyncio.to_thread(until, lambda: len(store.inner._memory.subscriptions) == len(keys))
            assert not [one.name for one in threading.enumerate() if one.name == "lockstead-watch"]
            for key, record in made.items():
                store.beside().perform(Remove(Name(key), record.incarnation), 1.0)
            for done in asyncio.as_completed(waiting):
                await (await done).release()

    asyncio.run(crowd())
    assert not store.inner._memory.subscriptions


def test_a_forked_child_has_no_subscription_of_its_parent() -> None:
    store = Watching()
    held(store)
    seen: list[bool] = []
    subscription = store.subscribe(APT, seen.append)
    with store.inner._memory.subscriptions._lock:  # as another thread may hold it at the fork
        store.after_fork()
    assert not store.inner._memory.subscriptions
    with Client(store, listener=quiet) as client:
        client.lock("other").acquire().release()
    subscription.close()
    assert seen == []
