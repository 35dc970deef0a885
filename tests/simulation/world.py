"""The simulated world: true time, the schedule of events, one random generator, the history. Must not know locks.

It never sleeps or reads a clock. Two events of one instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Final, TypeAlias

EVENTS_MAX: Final = 200_000
"""Maximum events of one run; a few hundred are usual."""

Call: TypeAlias = Callable[[Any], None]


class Violation(Exception):
    """An invariant did not hold."""


class Halt(Exception):
    """Raised by an event to end the current phase of a run."""


@dataclass(slots=True)
class BootClock:
    """A process's boot clock: it has its own rate and offset, and runs while the process is paused."""

    offset: float
    rate: float

    def at(self, true: float) -> float:
        """Return the reading at a true instant."""
        return self.offset + self.rate * true

    def when(self, reading: float) -> float:
        """Return the true instant of a reading."""
        return (reading - self.offset) / self.rate


class Actor:
    """A target of events: they are delayed while it is paused, and lost when it dies.

    paused_until is a true instant. epoch is the number of its deaths.
    """

    def __init__(self, name: str, clock: BootClock) -> None:
        self.name = name
        self.clock = clock
        self.epoch = 0
        self.paused_until = 0.0


class World:
    """True time in seconds, the scheduled events, the random generator, and the history if it is kept.

    events: a heap of (true instant, number, actor or None, its epoch, call, argument). number: that of the last
    scheduled event.
    """

    def __init__(self, seed: int, *, keeps_history: bool = False) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        self.keeps_history = keeps_history
        self.history: list[str] = []
        self.events: list[tuple[float, int, Actor | None, int, Call, Any]] = []
        self.number = 0

    def schedule(self, when: float, actor: Actor | None, call: Call, argument: Any = None) -> None:
        """Schedule a call at a true instant; with an actor, only if it has not died by then."""
        self.number = number = self.number + 1
        heappush(self.events, (when, number, actor, 0 if actor is None else actor.epoch, call, argument))

    def resume(self, actor: Actor) -> None:
        """Resume a paused actor: its delayed events happen now."""
        ends_at, actor.paused_until = actor.paused_until, min(actor.paused_until, self.now)
        if ends_at > self.now:
            waiting = [event for event in self.events if event[2] is actor and event[0] == ends_at]
            self.events = [event for event in self.events if event not in waiting]
            self.events += [(self.now, *event[1:]) for event in waiting]
            heapify(self.events)

    def log(self, actor: str, what: str) -> None:
        """Add a line to the history; check `keeps_history` first if composing the line is expensive."""
        self.history.append(f"{self.now:10.4f}  {actor:<10} {what}")

    def run(self, until: float) -> None:
        """Run all events scheduled up to a true instant, or until one raises `Halt`."""
        events = self.events
        try:
            for _ in range(EVENTS_MAX):
                if not events:
                    break
                event = heappop(events)
                when, number, actor, epoch, call, argument = event
                if when > until:
                    heappush(events, event)
                    break
                if actor is not None:
                    if actor.epoch != epoch:
                        continue
                    if when < actor.paused_until:
                        heappush(events, (actor.paused_until, number, actor, epoch, call, argument))
                        continue
                self.now = when
                call(argument)
            else:
                raise Violation(f"at {self.now:.4f}: an endless loop")
        except Halt:
            return
        self.now = max(self.now, until)
