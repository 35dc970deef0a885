"""Decides what happens next: true time, one heap of events, one set of dice. Must not know locks.

Nothing here sleeps or reads a clock. Two events of one instant happen in the order in which they were planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeAlias

EVENTS_MAX: Final = 200_000
"""Events of one run; a few hundred are usual."""

Call: TypeAlias = Callable[[Any], None]


class Violation(Exception):  # noqa: N818 - the field's word
    """A property of the protocol did not hold."""


class BootClock:
    """A process's boot clock: runs at its own rate from its own zero, also while the process stands still."""

    __slots__ = ("offset", "rate")

    def __init__(self, offset: float, rate: float) -> None:
        self.offset = offset
        self.rate = rate

    def at(self, true: float) -> float:
        """Give the reading at a true instant."""
        return self.offset + self.rate * true

    def when(self, reading: float) -> float:
        """Give the true instant of a reading."""
        return (reading - self.offset) / self.rate


class Actor:
    """Somebody whom events happen to: they wait while it is stopped, and are lost when it dies.

    stopped_until is a true instant; epoch counts its deaths.
    """

    __slots__ = ("clock", "epoch", "name", "stopped_until")

    def __init__(self, name: str, clock: BootClock) -> None:
        self.name = name
        self.clock = clock
        self.epoch = 0
        self.stopped_until = 0.0


class World:
    """True time in seconds, the events to come, the dice, and the log if somebody wants to read it."""

    __slots__ = ("_events", "_number", "dice", "is_told", "log", "now")

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        self.now = 0.0
        self.dice = Random(seed)
        self.is_told = is_told
        self.log: list[str] = []
        self._events: list[tuple[float, int, Actor | None, int, Call, Any]] = []
        self._number = 0

    def at(self, when: float, actor: Actor | None, call: Call, argument: Any = None) -> None:
        """Plan a call at a true instant; for an actor, if it has not died until then."""
        self._number += 1
        epoch = 0 if actor is None else actor.epoch
        heapq.heappush(self._events, (when, self._number, actor, epoch, call, argument))

    def tell(self, who: str, what: str) -> None:
        """Write a line of the log; ask `is_told` first where the line costs something."""
        self.log.append(f"{self.now:10.4f}  {who:<10} {what}")

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> None:
        """Let everything happen that is planned up to a true instant, or until somebody says that it is over."""
        events, pop, push = self._events, heapq.heappop, heapq.heappush
        while events and events[0][0] <= until:
            if is_over is not None and is_over():
                return
            when, number, actor, epoch, call, argument = pop(events)
            if actor is not None:
                if actor.epoch != epoch:
                    continue
                if when < actor.stopped_until:
                    push(events, (actor.stopped_until, number, actor, epoch, call, argument))
                    continue
            self.now = when
            call(argument)
            if self._number > EVENTS_MAX:
                raise Violation(f"at {when:.4f}: somebody spins without end")
        if is_over is None or not is_over():
            self.now = max(self.now, until)
