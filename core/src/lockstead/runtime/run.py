"""What drivers of scripts have in common: limits, wakers, how a pause ends; and the driver of many scripts at once.

The driver of one script is `drive`. Must not know what a script is about.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused
from lockstead.frozen import frozen
from lockstead.protocol.acquire import OutOfTime
from lockstead.protocol.commands import Command, Pause, Paused, Reply, Script
from lockstead.protocol.record import with_timestamps
from lockstead.runtime.clock import Clock
from lockstead.stores.port import Store, SupportsBatching

T = TypeVar("T")

OVERTIME: Final = 0.9
"""Seconds after the end of a wait in which its last try must be over."""

STALLED: Final = 0.1
"""Seconds by which an answer, a turn or the end of a pause has to come later than it can before a stop is blamed."""


def _never() -> bool:
    return False


@frozen
class Limits:
    """How long a request may take (seconds), and when a whole wait ends.

    gives_up_at is an instant on the boot clock, None for never. is_closed: whether the client was closed meanwhile,
    so that nothing will ever come of the wait.
    """

    request_timeout: float
    gives_up_at: float | None = None
    is_closed: Callable[[], bool] = _never

    def of(self, now: float) -> float:
        """Return the limit of a request that is sent now; OutOfTime if the wait is over."""
        if self.is_closed():
            raise StoreRefused("the client was closed: open another one")
        if self.gives_up_at is None:
            return self.request_timeout
        left = self.ends() - now
        if left <= 0:
            raise OutOfTime("the time to wait is over")
        return min(self.request_timeout, left)

    def ends(self) -> float:
        """Return the instant until which the last request must be over."""
        return math.inf if self.gives_up_at is None else self.gives_up_at + OVERTIME

    def resumed(self, now: float) -> Limits:
        """Return limits of a wait that was stopped from outside until now: its last try has the time of any other."""
        gives_up_at = None if self.gives_up_at is None else max(self.gives_up_at, now)
        return Limits(self.request_timeout, gives_up_at, self.is_closed)

    def back_by(self, now: float) -> float:
        """Return the instant by which a pause that begins now is over, unless the process or its loop was stopped."""
        return max(self.ends(), now + STALLED)

    def pause(self, command: Pause, now: float) -> float:
        """Draw how long to pause, not beyond the end of the wait."""
        drawn = command.draw(random.random)
        if self.gives_up_at is None:
            return drawn
        return max(0.0, min(drawn, self.gives_up_at - now))


@dataclass(slots=True, eq=False)
class _Talk:
    """One script of many: what it asks next, and how it ended."""

    number: int
    script: Script[Any]
    command: Command[Any] | None = None
    result: Any = None

    def step(self, move: Callable[[], Command[Any]]) -> None:
        try:
            self.command = move()
        except StopIteration as stop:
            self.command, self.result = None, stop.value
        except Exception as error:  # noqa: BLE001 - it is this script's result, and no other's
            self.command, self.result = None, error


def run_many(
    scripts: Sequence[Script[Any]], store: SupportsBatching, clock: Clock, limit: float
) -> Iterator[tuple[int, Any]]:
    """Drive many scripts side by side, each round of what they ask in one batch. limit is seconds for each batch.

    Gives, as soon as a script has ended, its position and what it returned or the exception that it raised: those that
    have more to ask keep nobody waiting. A script that wants to pause comes on with its next question at once.
    """
    asking = [_Talk(number, script) for number, script in enumerate(scripts)]
    for talk in asking:
        talk.step(partial(next, talk.script))
    while asking:
        yield from ((talk.number, talk.result) for talk in asking if talk.command is None)
        asking = [talk for talk in asking if talk.command is not None]
        sent_at = clock.now()
        asked = [talk for talk in asking if not isinstance(talk.command, Pause)]
        answers = _perform_many([talk.command for talk in asked if talk.command is not None], store, clock, limit)
        received_at = clock.now()
        for talk in asking:
            if isinstance(talk.command, Pause):
                talk.step(partial(talk.script.send, Reply(Paused(0.0), sent_at, sent_at)))
        for talk, answer in zip(asked, answers, strict=True):
            if isinstance(answer, StoreError):
                talk.step(partial(talk.script.throw, answer))
            else:
                talk.step(partial(talk.script.send, Reply(answer, sent_at, received_at)))


def _perform_many(commands: list[Command[Any]], store: SupportsBatching, clock: Clock, limit: float) -> Sequence[Any]:
    if not commands:
        return []
    wall, kind = clock.wall(), cast(Store, store).traits.clock
    try:
        answers = store.perform_many([with_timestamps(command, wall, kind) for command in commands], limit)
    except Exception as error:  # noqa: BLE001 - a foreign store's unknown failure is an unknown outcome
        return [error if isinstance(error, StoreError) else unknown(error) for _ in commands]
    if len(answers) == len(commands):
        return answers
    # whose answer is missing nobody can tell
    why = f"{len(commands)} commands were answered by {len(answers)} answers"
    return [OutcomeUnknown(why) for _ in commands]


def unknown(error: Exception) -> OutcomeUnknown:
    """Put an error that a store should not have raised into the safe side of doubt."""
    doubt = OutcomeUnknown(f"unexpected store error: {type(error).__name__}: {error}")
    doubt.__cause__ = error
    return doubt
