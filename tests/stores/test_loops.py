"""What belongs to an event loop is made once in it, and closed in it: when the loop ends, or when its owner closes."""

from __future__ import annotations

import asyncio
import threading

from lockstead.stores.loops import PerLoop


class Thing:
    """Says in which event loop it was closed, each time."""

    def __init__(self) -> None:
        self.closed_in: list[asyncio.AbstractEventLoop] = []

    async def close(self) -> None:
        self.closed_in.append(asyncio.get_running_loop())


def test_each_loop_has_one_and_closes_it_at_its_end() -> None:
    kept = PerLoop(Thing, Thing.close)

    async def ask() -> tuple[Thing, asyncio.AbstractEventLoop]:
        first, second = await asyncio.gather(kept.get(), kept.get())
        assert first is second
        assert kept._kept
        assert first.closed_in == []
        return first, asyncio.get_running_loop()

    one, loop = asyncio.run(ask())
    other, other_loop = asyncio.run(ask())
    assert one is not other
    assert one.closed_in == [loop]
    assert other.closed_in == [other_loop]
    assert not kept._kept


def test_closing_elsewhere_closes_each_in_its_own_loop_and_once() -> None:
    kept = PerLoop(Thing, Thing.close)
    asked, over = threading.Event(), threading.Event()
    things: list[Thing] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def ask() -> None:
        things.append(await kept.get())
        loops.append(asyncio.get_running_loop())
        asked.set()
        await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(ask(),))
    thread.start()
    try:
        assert asked.wait(30)
        kept.close()
        assert not kept._kept
        assert things[0].closed_in == loops
    finally:
        over.set()
        thread.join()
    assert things[0].closed_in == loops


def test_a_loop_that_was_left_without_its_end_is_forgotten() -> None:
    kept = PerLoop(Thing, Thing.close)
    dead = asyncio.new_event_loop()
    dead.run_until_complete(kept.get())
    dead.close()  # without shutdown_asyncgens(): nobody can await in it any more
    assert kept._kept

    async def ask() -> None:
        await kept.get()

    asyncio.run(ask())
    assert not kept._kept
    kept.close()
