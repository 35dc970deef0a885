"""A place in a store's queue: taken by a waiter, and removed when it stops waiting, however it stops."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lockstead
from lockstead import AsyncClient, Client, NotAcquired
from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Command, Conflict, Create, Replace
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name
from tests.runtime.faulty import Faulty, lost, quiet, until

QUICK: dict[str, Any] = {"ttl": 30, "request_timeout": 0.5, "backoff_min": 0.01, "backoff_max": 0.05}


class Queueing(Faulty):
    """A store that grants in order of arrival. left: every waiter_id whose place was removed, once for each removal."""

    def __init__(self) -> None:
        super().__init__()
        self.line: list[str] = []
        self.left: list[str] = []
        self.refusals: list[Exception] = []
        self.entering: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, Create | Replace) and command.waiter_id:
            with self._lock:
                if self.line and self.line[0] != command.waiter_id:
                    self.seen.append(command)
                    return Conflict(is_queued=True)
                answer = super().perform(command, limit)
                if not isinstance(answer, Conflict) and self.line:
                    self.line.remove(command.waiter_id)
                return answer
        return super().perform(command, limit)

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        return self.inner.subscribe(name, on_change)

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        self.entering()
        with self._lock:
            if waiter_id not in self.line:
                self.line.append(waiter_id)

        def changed(_is_free: bool) -> None:
            if self.line[:1] == [waiter_id]:
                on_turn(name not in self.inner._memory.entries)

        return self.subscribe(name, changed)

    def leave(self, name: Name, waiter_id: str, limit: float) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        with self._lock:
            self.left.append(waiter_id)
            if waiter_id in self.line:
                self.line.remove(waiter_id)


@pytest.fixture
def held() -> Any:
    """Return a store on which another client holds `apt`."""
    store = Queueing()
    with Client(store, listener=quiet) as client:
        lease = client.lock("apt", **QUICK, owner="holder").acquire()
        yield store, lease


def test_who_waits_stands_in_the_queue_and_is_granted_from_there(held: Any) -> None:
    store, lease = held
    with Client(store, listener=quiet) as client:
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(client.lock("apt", **QUICK).acquire()))
        waiting.start()
        until(lambda: len(store.line) == 1)
        lease.release()
        waiting.join(20)
        assert got[0].is_held
        assert store.line == []
        assert store.left == []


def test_who_tries_once_takes_no_place_and_gives_none_up(held: Any) -> None:
    store, _lease = held
    with Client(store, listener=quiet) as client:
        assert client.lock("apt", **QUICK).try_acquire() is None
    assert store.line == store.left == []


def test_whose_turn_it_is_not_is_told_that_others_asked_first() -> None:
    store = Queueing()
    store.line = ["somebody"]
    with (
        Client(store, listener=quiet) as client,
        pytest.raises(NotAcquired, match="'apt' is queued: earlier waiters go first"),
    ):
        client.lock("apt", **QUICK).acquire(0)


def test_h18_who_gives_up_in_time_leaves_the_queue(held: Any) -> None:
    store, _lease = held
    with Client(store, listener=quiet) as client:
        with pytest.raises(NotAcquired):
            client.lock("apt", **QUICK).acquire(0.2)
        until(lambda: store.left)
        assert store.line == []


def test_h18_a_place_that_could_not_be_given_up_is_given_up_again(held: Any) -> None:
    store, _lease = held
    store.refusals = [OutcomeUnknown("lost"), StoreUnavailable("refused"), RuntimeError("a bug of the store")]
    with Client(store, listener=quiet) as client:
        with pytest.raises(NotAcquired):
            client.lock("apt", **QUICK).acquire(0.2)
        until(lambda: store.left, 60)
        assert store.refusals == []
        assert store.line == []


def test_h18_ctrl_c_leaves_the_queue(held: Any) -> None:
    store, _lease = held
    with Client(store, listener=quiet) as client:
        main = threading.main_thread().ident
        assert main is not None
        store.entering = lambda: signal.pthread_kill(main, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            client.lock("apt", **QUICK).acquire()
        store.entering = lambda: None
        until(lambda: store.left)
        assert store.line == []


def test_h18_a_task_that_is_cancelled_leaves_the_queue(held: Any) -> None:
    store, _lease = held

    async def use() -> None:
        async with AsyncClient(store, listener=quiet) as client:
            asking = asyncio.create_task(client.lock("apt", **QUICK).acquire())
            await asyncio.to_thread(until, lambda: store.line)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await asyncio.to_thread(until, lambda: store.left)
            await asyncio.to_thread(until, lambda: not store.line)

    asyncio.run(use())


def test_who_reclaims_after_waiting_leaves_the_queue() -> None:
    store = Queueing()
    with Client(store, listener=quiet) as first, Client(store, listener=quiet) as second:
        dead = first.lock("apt", **QUICK, owner="airflow").acquire()
        ticket = dead.share()
        got: list[Any] = []

        def reclaim() -> None:
            got.append(second.lock("apt", **QUICK, owner="airflow", drain=0.1).acquire(20, reclaim=True))

        # its member lives, so who reclaims waits, and takes a place
        waiting = threading.Thread(target=reclaim)
        waiting.start()
        until(lambda: store.line)
        for name in [name for name in store.inner._memory.entries if name.part]:
            del store.inner._memory.entries[name]
        waiting.join(20)
        assert got[0].is_held
        until(lambda: not store.line)
        assert lockstead.LeaseTicket.parse(str(ticket)).key == "apt"
        until(lambda: lost(dead))
