"""How a script is driven from an event loop: the awaiting twin of `run`, its bell, and its threads.

A store without an awaiting side performs in threads of the engine's own. The loop's executor would not do: its few
threads are joined at exit, so a store that hangs would hang the interpreter, and they are the user's.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from lockstead.errors import LocksteadError, OutcomeUnknown, StoreError
from lockstead.protocol.commands import Command, Pause, Paused, Reply, Script
from lockstead.protocol.record import stamped
from lockstead.runtime.aside import in_thread
from lockstead.runtime.engine import Engine
from lockstead.runtime.local_queue import LOOK_AGAIN
from lockstead.runtime.run import STALLED, Limits, paused, unknown, watching
from lockstead.stores.port import AsyncStore, Store

T = TypeVar("T")

LATE: Final = 0.05
"""Seconds that a thread may take longer than its request's limit."""


class AsyncWaker:
    """An awaiting waiter's bell; belongs to the event loop it was made in, which may end before the waiter does.

    came_late is called in a thread of the engine's when a request of the waiter's has ended there that it awaits no
    more. What the request did, it did until then.
    """

    __slots__ = ("_async", "_loop", "_thread", "came_late", "is_deserted", "is_over")

    def __init__(self, came_late: Callable[[], None] | None = None) -> None:
        self.came_late = came_late
        self.is_deserted = False
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._async = asyncio.Event()
        self._thread = threading.Event()

    @property
    def is_gone(self) -> bool:
        """Whether the event loop is closed, so that the waiter can never ask again."""
        return self._loop.is_closed()

    @property
    def is_stopped(self) -> bool:
        """Whether the event loop does not run, so that the waiter cannot ask now."""
        return not self._loop.is_running()

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        self._thread.set()
        with suppress(RuntimeError):  # the loop is closed, so nobody waits in it
            self._loop.call_soon_threadsafe(self._async.set)

    def wait(self, seconds: float) -> bool:
        """Sleep in a thread, up to `seconds`; True as soon as it was rung, or nobody awaits the thread any more."""
        return self.is_deserted or self._thread.wait(seconds)

    async def awaited(self, seconds: float) -> bool:
        """Await up to `seconds`; True as soon as it was rung."""
        try:
            async with asyncio.timeout(seconds):
                return await self._async.wait()
        except TimeoutError:
            return False

    def take(self) -> bool:
        """Return whether it was rung, and silence it."""
        was = self._thread.is_set()
        self._thread.clear()
        self._async.clear()
        return was

    def hush(self) -> None:
        """Make a thread that waits come back at once: who awaited it has gone (`is_deserted`)."""
        self.is_deserted = True
        self._thread.set()


async def arun(script: Script[T], engine: Engine, limits: Limits, bell: AsyncWaker) -> T:
    """Drive a script to its end, awaiting. Cancelled at any await, it leaves the outcome of that command unknown.

    A call that blocks the event loop may outlast the wait. The loop's own timers then drop the answers that came
    meanwhile, and what was seen before is old, so the script has to ask again: it gets the time for that.
    """
    clock = engine.clock
    back_by = limits.ends()  # when the loop was stopped before the first request, that one is still sent
    try:
        command = next(script)
        while True:
            sent_at = clock.now()
            if sent_at >= back_by:
                limits = limits.resumed(sent_at)
            back_by = math.inf
            try:
                answer: Any
                if isinstance(command, Pause):
                    back_by = limits.back_by(sent_at)
                    answer = await _pause(command, engine, limits, sent_at, bell)
                else:
                    limit = limits.of(sent_at)
                    back_by = sent_at + limit + LATE + STALLED
                    answer = await _perform(stamped(command, clock.wall(), engine.traits.clock), engine, limit, bell)
            except StoreError as error:
                command = script.throw(error)
            except LocksteadError:
                raise
            except Exception as error:  # noqa: BLE001 - a foreign store's unknown failure is an unknown outcome
                command = script.throw(unknown(error))
            else:
                command = script.send(Reply(answer, sent_at, clock.now()))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        script.close()


async def _perform(command: Command[Any], engine: Engine, limit: float, bell: AsyncWaker) -> Any:
    store: Store = engine.store
    try:
        if isinstance(store, AsyncStore):
            async with asyncio.timeout(limit):
                return await store.aperform(command, limit)
        async with asyncio.timeout(limit + LATE):
            call = partial(store.perform, command, limit)
            return await in_thread(engine.calls, call, came_late=bell.came_late)
    except TimeoutError as error:
        raise OutcomeUnknown(f"no answer within {limit:.3g} s") from error


async def _pause(command: Pause, engine: Engine, limits: Limits, sent_at: float, bell: AsyncWaker) -> Paused:
    seconds = limits.pause(command, sent_at)
    watch = watching(command, engine.store, seconds, bell)
    if watch is not None:

        def watched() -> bool:
            try:
                return watch()
            finally:
                # cancelled while this thread was about to queue: the place was given up before it was taken
                if bell.is_deserted and command.waiter_id:
                    engine.leave_queue(command.name, command.waiter_id, limits.request_timeout)

        try:
            changed = await in_thread(engine.watches, watched, queue=False)
        except asyncio.CancelledError:
            bell.hush()
            raise
        except GeneratorExit:  # it is being collected, perhaps by who rings the bell: nothing is entered
            bell.is_deserted = True
            raise
        except Exception:  # noqa: BLE001, S110 - no thread is free, or the store cannot watch: it is polled
            pass
        else:
            return paused(command, engine.store, seconds, changed, bell)
    await bell.awaited(seconds)
    return Paused(seconds, bell.take())


async def wait_in_line(engine: Engine, key: str, bell: AsyncWaker, gives_up_at: float | None) -> bool:
    """Await this waiter's turn to ask the store; False if the time ran out before."""
    while not engine.is_closed:
        left = LOOK_AGAIN if gives_up_at is None else gives_up_at - engine.clock.now()
        if left <= 0:
            return False
        if engine.lines.is_first(key, bell):
            return True
        await bell.awaited(min(left, LOOK_AGAIN))
        bell.take()
    return True
