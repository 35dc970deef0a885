"""Decides how a script is driven: stamps every command's send and receipt, limits it, and throws what went wrong.

Two drivers, one blocking and one awaiting, run the very same scripts. Must not know what a script is about.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from lockstead.errors import LocksteadError, OutcomeUnknown, StoreError
from lockstead.protocol.acquire import OutOfTime
from lockstead.protocol.commands import Command, Pause, Paused, Reply, Script
from lockstead.protocol.record import stamped
from lockstead.runtime.clock import Clock
from lockstead.stores.port import Awaits, Store, Waits

T = TypeVar("T")

OVERTIME: Final = 0.9
"""Seconds after the end of a wait in which its last try must be over."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a request may take (seconds), and when a whole wait ends (boot clock; None: never)."""

    request_timeout: float
    gives_up_at: float | None = None

    def of(self, now: float) -> float:
        """Give the limit of a request that is sent now; OutOfTime if the wait is over."""
        if self.gives_up_at is None:
            return self.request_timeout
        left = self.gives_up_at + OVERTIME - now
        if left <= 0:
            raise OutOfTime("the time to wait is over")
        return min(self.request_timeout, left)

    def pause(self, command: Pause, now: float) -> float:
        """Draw how long to pause, not beyond the end of the wait."""
        drawn = random.uniform(command.at_least, command.at_most)
        if self.gives_up_at is None:
            return drawn
        return max(0.0, min(drawn, self.gives_up_at - now))


class Bell(Protocol):
    """What ends a pause early: rung by a release in this very process, or by who wants the waiter to stop."""

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`; True as soon as it was rung."""
        ...

    def take(self) -> bool:
        """Tell whether it was rung, and silence it."""
        ...


def run(script: Script[T], store: Store, clock: Clock, limits: Limits, bell: Bell) -> T:
    """Drive a script to its end, blocking. Raises what the script raises."""
    try:
        command = next(script)
        while True:
            sent_at = clock.now()
            try:
                answer: Any
                if isinstance(command, Pause):
                    answer = _pause(command, store, limits.pause(command, sent_at), bell)
                else:
                    answer = store.perform(stamped(command, clock.wall()), limits.of(sent_at))
            except StoreError as error:
                command = script.throw(error)
            except LocksteadError:
                raise
            except Exception as error:  # noqa: BLE001 - a foreign store's unknown failure is an unknown outcome
                command = script.throw(_unknown(error))
            else:
                command = script.send(Reply(answer, sent_at, clock.now()))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        script.close()


def _pause(command: Pause, store: Store, seconds: float, bell: Bell) -> Paused:
    if isinstance(store, Waits):
        changed = store.wait(command.name, seconds, bell.wait)
    else:
        changed = bell.wait(seconds)
    return Paused(seconds, bell.take() or changed)


class AsyncBell(Protocol):
    """The awaiting side of `Bell`; `wait` and `take` serve a store that waits in a thread."""

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds` in a thread; True as soon as it was rung."""
        ...

    def take(self) -> bool:
        """Tell whether it was rung, and silence it."""
        ...

    async def awaited(self, seconds: float) -> bool:
        """Await up to `seconds`; True as soon as it was rung."""
        ...

    def hush(self) -> None:
        """Make a thread that waits come back at once."""
        ...


InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call in a thread of the engine's own and awaits its end."""


async def arun(
    script: Script[T], store: Store, clock: Clock, limits: Limits, bell: AsyncBell, in_thread: InThread
) -> T:
    """Drive a script to its end, awaiting. Cancelled at any await, it leaves the outcome of that command unknown."""
    awaits = store if isinstance(store, Awaits) else None
    try:
        command = next(script)
        while True:
            sent_at = clock.now()
            try:
                answer: Any
                if isinstance(command, Pause):
                    answer = await _apause(command, store, limits.pause(command, sent_at), bell, in_thread)
                else:
                    ready = stamped(command, clock.wall())
                    limit = limits.of(sent_at)
                    if awaits is not None:
                        answer = await _within(awaits, ready, limit)
                    else:
                        answer = await in_thread(partial(store.perform, ready, limit))
            except StoreError as error:
                command = script.throw(error)
            except LocksteadError:
                raise
            except Exception as error:  # noqa: BLE001 - a foreign store's unknown failure is an unknown outcome
                command = script.throw(_unknown(error))
            else:
                command = script.send(Reply(answer, sent_at, clock.now()))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        script.close()


async def _within(store: Awaits, command: Command[Any], limit: float) -> Any:
    try:
        async with asyncio.timeout(limit):
            return await store.aperform(command, limit)
    except TimeoutError as error:
        raise OutcomeUnknown(f"no answer within {limit:.3g} s") from error


async def _apause(command: Pause, store: Store, seconds: float, bell: AsyncBell, in_thread: InThread) -> Paused:
    if isinstance(store, Waits):
        try:
            changed = await in_thread(partial(store.wait, command.name, seconds, bell.wait))
        except asyncio.CancelledError:
            bell.hush()
            raise
    else:
        changed = await bell.awaited(seconds)
    return Paused(seconds, bell.take() or changed)


def _unknown(error: Exception) -> OutcomeUnknown:
    unknown = OutcomeUnknown(f"the store failed in a way it does not know: {type(error).__name__}: {error}")
    unknown.__cause__ = error
    return unknown
