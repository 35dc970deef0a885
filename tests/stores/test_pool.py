"""The connection pool that the stores share: which caller gets which connection, how many there are, what is closed
when."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from itertools import count

import pytest

from lockstead.errors import StoreUnavailable
from lockstead.stores.aio_pool import AsyncPool
from lockstead.stores.pool import Pool
from tests.runtime.interrupted import everywhere_in

LIMIT = 30.0


class Connection:
    """Notes what becomes of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.opened_at = time.monotonic()
        self.is_good = True
        self.permit: object = None
        self.is_there = True
        self.is_closed = False

    def is_usable(self) -> bool:
        return self.is_there

    def close(self) -> None:
        self.is_closed = True


class AsyncConnection(Connection):
    async def is_usable(self) -> bool:  # type: ignore[override]  # awaiting
        await asyncio.sleep(0)
        return self.is_there

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True


class Opener:
    """Opens connections, or fails to."""

    def __init__(self) -> None:
        self.numbers = count()
        self.failure: Exception | None = None

    def __call__(self, key: str, ends_at: float) -> Connection:
        assert (key, ends_at > time.monotonic()) in {("a", True), ("b", True)}
        if self.failure is not None:
            raise self.failure
        return Connection(next(self.numbers))

    async def awaited(self, key: str, ends_at: float) -> AsyncConnection:
        await asyncio.sleep(0)
        return AsyncConnection(self(key, ends_at).number)


def soon(seconds: float = LIMIT) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def pool(opener: Opener) -> Pool[str, Connection]:
    return Pool("demo:", opener, 2)


# --- one thread ----------------------------------------------------------------------------------------------------


def test_the_latest_returned_connection_is_used_first(pool: Pool[str, Connection]) -> None:
    first, second = pool.take("a", soon()), pool.take("a", soon())
    assert first is not second
    pool.give_back("a", first)
    pool.give_back("a", second)
    assert pool.take("a", soon()) is second
    assert pool.take("a", soon()) is first


def test_a_key_is_served_by_its_own_connections(pool: Pool[str, Connection]) -> None:
    one = pool.take("a", soon())
    pool.give_back("a", one)
    other = pool.take("b", soon())
    assert other is not one
    pool.give_back("b", other)
    assert pool.take("a", soon()) is one


def test_a_bad_connection_is_closed_and_replaced(pool: Pool[str, Connection]) -> None:
    spoiled = pool.take("a", soon())
    spoiled.is_good = False
    pool.give_back("a", spoiled)
    assert spoiled.is_closed
    ended = pool.take("a", soon())
    assert ended is not spoiled
    pool.give_back("a", ended)
    ended.is_there = False
    assert pool.take("a", soon()) not in (spoiled, ended)
    assert ended.is_closed


@pytest.mark.parametrize("ends", [{"age_max": 0.0}, {"idle_max": 0.0}])
def test_what_is_too_old_or_has_idled_for_too_long_is_closed(opener: Opener, ends: dict[str, float]) -> None:
    pool = Pool[str, Connection]("demo:", opener, 2, **ends)
    first = pool.take("a", soon())
    pool.give_back("a", first)
    assert pool.take("a", soon()) is not first
    assert first.is_closed


def test_a_connection_idle_for_too_long_is_closed(opener: Opener) -> None:
    pool = Pool[str, Connection]("demo:", opener, 2, idle_max=0.05)
    first, second = pool.take("a", soon()), pool.take("a", soon())
    pool.give_back("a", first)
    while time.monotonic() - first.opened_at < 0.1:
        time.sleep(0.01)
    assert not first.is_closed
    pool.give_back("a", second)
    assert (first.is_closed, second.is_closed) == (True, False)


def test_what_has_idled_for_too_long_does_not_serve_again(opener: Opener) -> None:
    pool = Pool[str, Connection]("demo:", opener, 2, idle_max=0.05)
    first = pool.take("a", soon())
    pool.give_back("a", first)
    while time.monotonic() - first.opened_at < 0.2:
        time.sleep(0.01)
    assert pool.take("a", soon()) is not first
    assert first.is_closed


def test_a_server_that_failed_loses_its_idle_connections_and_no_other(pool: Pool[str, Connection]) -> None:
    one, other = pool.take("a", soon()), pool.take("b", soon())
    pool.give_back("a", one)
    pool.give_back("b", other)
    pool.drop("a")
    pool.drop("a")
    assert (one.is_closed, other.is_closed) == (True, False)


def test_a_full_pool_makes_callers_wait_and_then_fail(pool: Pool[str, Connection]) -> None:
    _used = pool.take("a", soon()), pool.take("b", soon())
    with pytest.raises(StoreUnavailable, match="demo:: all 2 connections were busy for too long"):
        pool.take("a", soon(0.02))


def test_a_connection_that_cannot_be_opened_takes_no_room(pool: Pool[str, Connection], opener: Opener) -> None:
    opener.failure = StoreUnavailable("no")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="no"):
            pool.take("a", soon())
    opener.failure = None
    assert {pool.take("a", soon()).number, pool.take("a", soon()).number} == {0, 1}


def test_a_closed_pool_refuses_and_closes_returned_connections(pool: Pool[str, Connection]) -> None:
    idle, used = pool.take("a", soon()), pool.take("a", soon())
    pool.give_back("a", idle)
    pool.close()
    pool.close()
    assert (idle.is_closed, used.is_closed) == (True, False)
    pool.give_back("a", used)
    assert used.is_closed
    with pytest.raises(StoreUnavailable, match="the store demo: is closed"):
        pool.take("a", soon())


def test_h34_an_interrupt_anywhere_takes_no_room_for_longer(pool: Pool[str, Connection]) -> None:
    def use() -> None:
        connection = pool.take("a", soon())
        try:
            assert not connection.is_closed
        finally:
            pool.give_back("a", connection)

    places = 0
    for _place in everywhere_in(use):
        places += 1
        first, second = pool.take("a", soon(5)), pool.take("a", soon(5))
        with pytest.raises(StoreUnavailable, match="all 2 connections were busy"):
            pool.take("a", soon(0))
        pool.give_back("a", first)
        pool.give_back("a", second)
        del first, second
    assert places > 10


# --- threads -------------------------------------------------------------------------------------------------------


def in_thread(job: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def run() -> None:
        try:
            found.append(job())
        except StoreUnavailable as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_a_waiting_thread_gets_what_another_gives_back(pool: Pool[str, Connection]) -> None:
    first, _other = pool.take("a", soon()), pool.take("a", soon())
    thread, found = in_thread(lambda: pool.take("a", soon()))
    assert found == []
    pool.give_back("a", first)
    thread.join(LIMIT)
    assert found == [first]


def test_closing_the_store_wakes_all_waiting_threads(pool: Pool[str, Connection]) -> None:
    _used = pool.take("a", soon()), pool.take("a", soon())
    waiting = [in_thread(lambda: pool.take("a", soon())) for _ in range(3)]
    pool.close()
    for thread, found in waiting:
        thread.join(LIMIT / 2)
        assert "is closed" in str(found)


def test_many_threads_share_few_connections(opener: Opener) -> None:
    pool = Pool[str, Connection]("demo:", opener, 3)
    users = [0] * 10_000

    def use() -> int:
        for _ in range(500):
            connection = pool.take("a", soon())
            users[connection.number] += 1
            assert users[connection.number] == 1
            users[connection.number] -= 1
            pool.give_back("a", connection)
        return 1

    jobs = [in_thread(use) for _ in range(8)]
    for thread, found in jobs:
        thread.join(LIMIT)
        assert found == [1]
    assert next(opener.numbers) <= 3


# --- event loops ---------------------------------------------------------------------------------------------------


def test_an_event_loop_shares_few_connections_in_the_same_way(opener: Opener) -> None:
    async def use(pool: AsyncPool[str, AsyncConnection]) -> None:
        for _ in range(50):
            connection = await pool.take("a", soon())
            assert not connection.is_closed
            await asyncio.sleep(0)
            await pool.give_back("a", connection)

    async def main() -> None:
        pool = AsyncPool("demo:", opener.awaited, 3)
        await asyncio.gather(*(use(pool) for _ in range(8)))
        one, two, three = [await pool.take("a", soon()) for _ in range(3)]
        assert {one.number, two.number, three.number} == {0, 1, 2}
        with pytest.raises(StoreUnavailable, match="were busy for too long"):
            await pool.take("a", soon(0.02))
        await pool.give_back("a", one)
        one.is_there = False
        four = await pool.take("a", soon())
        assert four.number == 3
        assert one.is_closed
        waiting = [asyncio.ensure_future(pool.take("a", soon())) for _ in range(3)]
        await asyncio.sleep(0)
        await pool.aclose()
        async with asyncio.timeout(LIMIT / 2):
            assert ["is closed" in str(said) for said in await asyncio.gather(*waiting, return_exceptions=True)] == [
                True
            ] * 3
        await pool.give_back("a", two)
        assert two.is_closed

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_task_that_is_cancelled_while_it_takes_leaves_all_the_room(opener: Opener, turns: int) -> None:
    async def main() -> None:
        pool = AsyncPool("demo:", opener.awaited, 1)
        if turns % 2:
            await pool.give_back("a", await pool.take("a", soon()))
        taking = asyncio.ensure_future(pool.take("a", soon()))
        waiting = asyncio.ensure_future(pool.take("a", soon()))
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in (waiting, taking):
            task.cancel()
        for taken in await asyncio.gather(taking, waiting, return_exceptions=True):
            if isinstance(taken, AsyncConnection):
                await pool.give_back("a", taken)
        assert isinstance(await pool.take("a", soon()), AsyncConnection)

    asyncio.run(main())


def test_what_an_event_loop_takes_is_bounded_in_time(opener: Opener) -> None:
    async def main() -> None:
        pool = AsyncPool("demo:", opener.awaited, 1, age_max=math.inf)
        _used = await pool.take("a", soon())
        began_at = time.monotonic()
        results = await asyncio.gather(*(pool.take("a", soon(0.02)) for _ in range(5)), return_exceptions=True)
        assert {type(said) for said in results} == {StoreUnavailable}
        assert time.monotonic() - began_at < LIMIT / 2

    asyncio.run(main())
