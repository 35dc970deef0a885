"""Time limits that all drivers of scripts share, and the driver of many scripts at once.

The driver of one script is `drive`. Must not know what a script is about.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from lockstead.errors import LocksteadError, OutcomeUnknown, StoreError
from lockstead.frozen import frozen
from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Command, OutOfTime, Pause, Paused, Reply, Script
from lockstead.protocol.record import with_timestamps
from lockstead.runtime.clock import Clock
from lockstead.runtime.observed import report_batch
from lockstead.stores.port import Store, SupportsBatching

T = TypeVar("T")

OVERTIME: Final = 0.9
"""Seconds after the end of a wait within which its last try must end."""

STALLED: Final = 0.1
"""Seconds by which a reply, a turn or the end of a pause must be late before the process or its loop counts as stopped.
"""


def _pass() -> None:
    pass


@frozen
class Limits:
    """The time limits of a script: of each request (seconds), and of the whole wait.

    gives_up_at is an instant on the boot clock; infinity waits indefinitely. refuse_if_closed is called after each
    pause; it raises StoreRefused if the client was closed meanwhile, so that the wait can never succeed.
    """

    request_timeout: float
    gives_up_at: float = math.inf
    refuse_if_closed: Callable[[], None] = _pass

    def of(self, now: float) -> float:
        """Return the limit of a request that is sent now, in seconds. Raises OutOfTime if the wait is over."""
        left = self.ends() - now
        if left <= 0:
            raise OutOfTime("the time to wait is over")
        return min(self.request_timeout, left)

    def ends(self) -> float:
        """Return the instant by which the last request must end; infinity if the wait is indefinite."""
        return self.gives_up_at + OVERTIME

    def resumed(self, now: float) -> Limits:
        """Return the limits of a wait whose process or loop was stopped until now: its last try gets its full time."""
        return Limits(self.request_timeout, max(self.gives_up_at, now), self.refuse_if_closed)

    def back_by(self, now: float) -> float:
        """Return the instant by which a pause that begins now ends, unless the process or its loop is stopped."""
        return max(self.ends(), now + STALLED)

    def pause(self, command: Pause, now: float) -> float:
        """Return a random length for a pause, in seconds, that does not exceed the end of the wait."""
        return max(0.0, min(command.draw(random.random), self.gives_up_at - now))


@dataclass(slots=True, eq=False)
class _Running:
    """One script of many: its next command, or its result."""

    number: int
    script: Script[Any]
    command: Command[Any] | None = None
    result: Any = None

    def step(self, move: Callable[[], Command[Any]]) -> None:
        try:
            self.command = move()
        except StopIteration as stop:
            self.command, self.result = None, stop.value
        except Exception as error:  # noqa: BLE001 - it is the result of this script, and must not end the others
            self.command, self.result = None, error


def run_many(
    scripts: Sequence[Script[Any]], store: SupportsBatching, clock: Clock, limit: float
) -> Iterator[tuple[int, Any]]:
    """Drive many scripts concurrently, and send the commands of each round in one batch. limit: seconds for each batch.

    Yields, as soon as a script has ended, its position and its return value or the exception that it raised; scripts
    that are not finished do not delay it. A script that yields a pause continues at once.
    """
    running = [_Running(number, script) for number, script in enumerate(scripts)]
    for one in running:
        one.step(partial(next, one.script))
    while running:
        yield from ((one.number, one.result) for one in running if one.command is None)
        running = [one for one in running if one.command is not None]
        sent_at = clock.now()
        sending = [one for one in running if not isinstance(one.command, Pause)]
        answers = _perform_many([one.command for one in sending if one.command is not None], store, clock, limit)
        received_at = clock.now()
        for one in running:
            if isinstance(one.command, Pause):
                one.step(partial(one.script.send, Reply(Paused(0.0), sent_at, sent_at)))
        for one, answer in zip(sending, answers, strict=True):
            if isinstance(answer, StoreError):
                one.step(partial(one.script.throw, answer))
            else:
                one.step(partial(one.script.send, Reply(answer, sent_at, received_at)))


def _perform_many(commands: list[Command[Any]], store: SupportsBatching, clock: Clock, limit: float) -> Sequence[Any]:
    if not commands:
        return []
    wall, kind = clock.wall(), cast(Store, store).traits.clock
    stamped = [with_timestamps(command, wall, kind) for command in commands]
    sent_at = clock.now()
    try:
        answers = store.perform_many(stamped, limit)
    except Exception as error:  # noqa: BLE001 - an unexpected error of a third-party store leaves the outcome unknown
        if LISTENERS.every:
            report_batch(len(commands), cast(Store, store), clock.now() - sent_at, error)
        return [error if isinstance(error, StoreError) else unknown(error) for _ in commands]
    if LISTENERS.every:
        report_batch(len(commands), cast(Store, store), clock.now() - sent_at)
    if len(answers) == len(commands):
        return answers
    # it is unknown which command's answer is missing
    why = f"{len(commands)} commands were answered by {len(answers)} answers"
    return [OutcomeUnknown(why) for _ in commands]


def thrown(error: BaseException) -> LocksteadError:
    """Return what a script is told of a request that raised this error. Raises it if it is not about the request."""
    if not isinstance(error, Exception):
        raise error
    return error if isinstance(error, LocksteadError) else unknown(error)


def unknown(error: Exception) -> OutcomeUnknown:
    """Return OutcomeUnknown for an error that a store must not raise: the request may have taken effect."""
    doubt = OutcomeUnknown(f"unexpected store error: {type(error).__name__}: {error}")
    doubt.__cause__ = error
    return doubt
