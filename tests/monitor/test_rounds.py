"""Rounds: each store is listed once for all watchers, and one that does not answer is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockstead import AsyncClient, StoreUnavailable
from lockstead.monitor.leases import leases
from lockstead.monitor.rounds import ERROR_BYTES_MAX, Round, Rounds, rounds
from lockstead.protocol.commands import Command
from lockstead.views import LockInfo
from tests.runtime.faulty import Faulty, quiet


class Noted:
    """A watcher that notes what it is shown."""

    def __init__(self, on_end: Callable[[Round], None] = lambda _done: None) -> None:
        self.said: list[object] = []
        self.on_end = on_end

    def began(self, at: float) -> None:
        self.said.append("began")

    def saw(self, info: LockInfo) -> None:
        self.said.append(info.key)

    def ended(self, done: Round) -> None:
        self.said.append(done)
        self.on_end(done)

    @property
    def rounds(self) -> list[Round]:
        return [one for one in self.said if isinstance(one, Round)]


def with_client(body: Callable[[AsyncClient, Faulty], Awaitable[None]]) -> None:
    store = Faulty()

    async def run() -> None:
        async with AsyncClient(store, listener=quiet) as client, asyncio.timeout(30):
            await body(client, store)

    asyncio.run(run())


def unavailable(_command: Command[Any]) -> None:
    raise StoreUnavailable("it is down\n\x1b[31m" + "x" * 1000)


def test_a_round_lists_once_for_all_watchers() -> None:
    async def body(client: AsyncClient, store: Faulty) -> None:
        async with client.lock("apt").hold(), client.lock("yum").hold():
            one, two = Noted(), Noted()
            before = len(store.seen)
            done = await Rounds(client, [one, two], 30.0).once()
            assert len(store.seen) - before == 1
            assert one.said == two.said == ["began", "apt", "yum", done]
            assert (done.number, done.locks, done.error) == (1, 2, None)

    with_client(body)


def test_a_store_that_does_not_answer_fails_the_round_in_one_bounded_line() -> None:
    async def body(client: AsyncClient, store: Faulty) -> None:
        watcher = Noted()
        store.before = unavailable
        done = await Rounds(client, [watcher], 30.0).once()
        assert watcher.said == ["began", done]
        assert done.error is not None
        assert done.error.startswith("it is down")
        assert done.error.isprintable()
        assert len(done.error.encode()) <= ERROR_BYTES_MAX

    with_client(body)


def test_pauses_grow_with_failures_and_shrink_with_the_first_answer() -> None:
    async def body(client: AsyncClient, store: Faulty) -> None:
        made = Rounds(client, [], 1.0, chance=lambda: 1.0)
        pauses = []
        for down in (False, True, True, True, True, True, True, False):
            store.before = unavailable if down else lambda _command: None
            await made.once()
            pauses.append(made.pause())
        assert pauses == [1, 2, 4, 8, 16, 30, 30, 1]
        store.before = unavailable
        slow = Rounds(client, [], 90.0, chance=lambda: 0.0)
        await slow.once()
        assert slow.pause() == 45

    with_client(body)


def test_rounds_go_on_after_a_failure_until_they_are_stopped() -> None:
    async def body(client: AsyncClient, store: Faulty) -> None:
        stop = asyncio.Event()

        def ended(done: Round) -> None:
            store.before = unavailable if done.number == 2 else lambda _command: None
            if done.number == 4:
                stop.set()

        watcher = Noted(ended)
        await rounds(client, [watcher], 0.001, stop)
        assert [done.error is None for done in watcher.rounds] == [True, True, False, True]

    with_client(body)


def test_wake_begins_a_round_at_once_and_stop_ends_a_pause() -> None:
    async def body(client: AsyncClient, _store: Faulty) -> None:
        stop = asyncio.Event()

        def ended(done: Round) -> None:
            if done.number < 3:
                made.wake()
            else:
                asyncio.get_running_loop().call_soon(stop.set)

        watcher = Noted(ended)
        made = Rounds(client, [watcher], 3600.0)
        await made.run(stop)
        assert len(watcher.rounds) == 3

    with_client(body)


def test_an_error_of_a_watcher_is_not_taken_for_the_stores() -> None:
    async def body(client: AsyncClient, _store: Faulty) -> None:
        def ended(_done: Round) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await rounds(client, [Noted(ended)], 0.001, asyncio.Event())

    with_client(body)


def test_the_leases_of_a_listing_are_readers_permits_and_locks() -> None:
    async def body(client: AsyncClient, _store: Faulty) -> None:
        reader = client.lock("index", mode="shared")
        pool = client.semaphore("pool", 3)
        held = [await lock.try_acquire() for lock in (reader, reader, pool, client.lock("apt"))]
        one, two, permit, lease = (found.holder for found in held if found is not None)
        shown = {info.key: [found.holder for found in leases(info)] for info in await client.list()}
        assert shown == {"index": [one, two], "pool": [permit], "apt": [lease]}

    with_client(body)
