"""What stores wait for in an event loop, and in a thread: a socket, and a call that may block."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lockstead.stores import awaiting, blocking

LIMIT = 30.0


def soon(seconds: float = LIMIT) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        yield here, there


def fill(end: socket.socket) -> None:
    try:
        while True:
            end.send(b"x" * 65536)
    except BlockingIOError:
        return


def test_a_thread_waits_for_a_socket_within_its_time(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    with pytest.raises(TimeoutError):
        blocking.ready(here.fileno(), soon(0.01))
    blocking.ready(here.fileno(), soon(), writes=True)
    there.send(b"x")
    blocking.ready(here.fileno(), soon())
    blocking.ready(here.fileno(), soon(-1.0))
    fill(here)
    with pytest.raises(TimeoutError):
        blocking.ready(here.fileno(), soon(0.01), reads=False, writes=True)
    blocking.ready(here.fileno(), soon(), writes=True)


def test_a_task_waits_for_a_socket_within_its_time(ends: tuple[socket.socket, socket.socket]) -> None:
    async def main() -> None:
        here, there = ends
        with pytest.raises(TimeoutError):
            await awaiting.ready(here.fileno(), soon(0.01))
        await awaiting.ready(here.fileno(), soon(), writes=True)
        there.send(b"x")
        await awaiting.ready(here.fileno(), soon())
        await awaiting.ready(here.fileno(), soon(-1.0))
        fill(here)
        with pytest.raises(TimeoutError):
            await awaiting.ready(here.fileno(), soon(0.01), reads=False, writes=True)
        await awaiting.ready(here.fileno(), soon(), writes=True)

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_no_socket_watched(ends: tuple[socket.socket, socket.socket]) -> None:
    async def main() -> None:
        here, _ = ends
        fill(here)
        waiting = asyncio.ensure_future(awaiting.ready(here.fileno(), soon(), writes=True))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(here.fileno())
        assert not loop.remove_writer(here.fileno())

    asyncio.run(main())


def test_h17_a_wait_that_ends_in_a_forked_child_goes_on_in_its_parent(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    async def main() -> None:
        here, there = ends
        waiting = awaiting.ready(here.fileno(), soon())
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0)
        child = os.fork()
        if child == 0:
            waiting.close()  # as the garbage collector does at the exit
            os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222 - the child ends at once
        there.send(b"x")
        await task

    asyncio.run(main())


def test_a_blocking_call_is_awaited_without_blocking_the_loop() -> None:
    hangs = threading.Event()

    async def main() -> None:
        assert await awaiting.aside(threading.get_ident, soon()) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await awaiting.aside(lambda: 1 // 0, soon())
        with pytest.raises(TimeoutError):
            await awaiting.aside(hangs.wait, soon(0.01))
        hanging = [thread.daemon for thread in threading.enumerate() if thread.name == "lockstead-aside"]
        assert hanging == [True], "the end of the process waits for no thread"

    began_at = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began_at < LIMIT, "the end of the loop waits for no thread"
    hangs.set()
    assert blocking.aside(threading.get_ident, soon()) == threading.get_ident()


@pytest.mark.parametrize("when", ["after the time", "after a cancellation", "as it is cancelled", "after its loop"])
def test_what_a_blocking_call_returns_to_nobody_is_discarded(when: str) -> None:
    begun, hangs, discarded = threading.Event(), threading.Event(), threading.Event()

    def call() -> threading.Event:
        begun.set()
        hangs.wait()
        return discarded

    async def main() -> None:
        task = asyncio.create_task(
            awaiting.aside(call, soon(0.01 if when == "after the time" else LIMIT), threading.Event.set)
        )
        await asyncio.to_thread(begun.wait)
        if when == "as it is cancelled":
            hangs.set()
            (thread,) = (one for one in threading.enumerate() if one.name == "lockstead-aside")
            thread.join()  # its result is on the way, and the loop has not seen it
        if when != "after the time":
            task.cancel()
        with pytest.raises(TimeoutError if when == "after the time" else asyncio.CancelledError):
            await task
        if when != "after its loop":
            hangs.set()
            assert await asyncio.to_thread(discarded.wait, LIMIT)

    asyncio.run(main())
    hangs.set()
    assert discarded.wait(LIMIT)
