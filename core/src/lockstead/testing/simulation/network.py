"""Decides what becomes of a message: delivered, lost, late, doubled, overtaken, refused. Must not know what it says.

A request may commit long after its sender gave up; an answer that comes after the limit is never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Command
from lockstead.testing.simulation.store import SimulatedStore
from lockstead.testing.simulation.words import brief
from lockstead.testing.simulation.world import World

if TYPE_CHECKING:
    from lockstead.testing.simulation.talk import Talk

_LOST, _LATE, _MUTE, _DOUBLED, _REFUSED, _FAILED_BEFORE, _FAILED_AFTER, _STOPPED, _DEAD = range(9)
KINDS: Final = (
    "request lost",
    "request late, it may commit after its sender gave up",
    "answer lost",
    "request doubled",
    "never sent",
    "error before the commit",
    "error after the commit",
    "sender stands still before the answer",
    "sender dies before the answer",
)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each of `KINDS` befalls a message (probabilities), and how long messages take (seconds).

    latest: how late a late or doubled request may arrive, at most.
    """

    odds: tuple[float, ...] = (0.0,) * len(KINDS)
    latency: float = 0.02
    latest: float = 60.0

    def ladder(self) -> list[tuple[float, int]]:
        """Give the thresholds for one throw of the dice."""
        steps, total = [], 0.0
        for kind, odds in enumerate(self.odds):
            if odds:
                total += odds
                steps.append((total, kind))
        return steps


class Network:
    """Carries requests to the store and answers back. `calm` ends all faults but what is already on its way."""

    __slots__ = ("_faults", "_ladder", "_store", "_top", "_twice", "_world", "delivered", "faulted")

    def __init__(self, world: World, store: SimulatedStore, faults: Faults) -> None:
        self._world = world
        self._store = store
        self._faults = faults
        self._ladder = faults.ladder()
        self._top = self._ladder[-1][0] if self._ladder else 0.0
        self._twice = 2 * faults.latency
        self.delivered = 0
        self.faulted = 0

    def calm(self) -> None:
        """No more faults from now on, and short ways."""
        self._ladder, self._top = [], 0.0
        self._twice = min(self._twice, 0.1)

    def send(self, talk: Talk, command: Command[Any], limit: float) -> None:
        """Carry one request, whose sender gives up after `limit` true seconds."""
        world = self._world
        random = world.dice.random
        there, back = self._twice * random(), self._twice * random()
        roll = random()
        if world.now < talk.process.cut_until:
            self._fault(talk, command, limit, _REFUSED if roll < 0.3 else _LOST, there, back)
        elif roll < self._top:
            kind = next(kind for step, kind in self._ladder if roll < step)
            self._fault(talk, command, limit, kind, there, back)
        else:
            self._carry(talk, command, limit, there, back)

    def _carry(self, talk: Talk, command: Command[Any], limit: float, there: float, back: float) -> None:
        arrives_at = self._world.now + there
        if there + back < limit:
            self._world.at(arrives_at, None, self._arrive, (talk, talk.number, command, back))
        else:
            self._world.at(arrives_at, None, self._arrive, (talk, talk.number, command, None))
            self._give_up(talk, limit)

    def _fault(self, talk: Talk, command: Command[Any], limit: float, kind: int, there: float, back: float) -> None:
        self.faulted += 1
        world, random = self._world, self._world.dice.random
        if world.is_told:
            world.tell(talk.process.name, f"{brief(command)}: {KINDS[kind]}")
        if kind == _DOUBLED:
            again_at = world.now + there + random() ** 3 * self._faults.latest
            world.at(again_at, None, self._arrive, (talk, talk.number, command, back))
            self._carry(talk, command, limit, there, back)
            return
        if kind in (_STOPPED, _DEAD):
            self._carry(talk, command, limit, there, back)
            # an event, since the sender is in the middle of a step
            world.at(world.now, talk.process, talk.process.stumble, kind == _DEAD)
            return
        arrives_at = world.now + there
        if kind == _LATE:
            # squared, so that both a little late and very late happen
            arrives_at = world.now + limit + random() ** 2 * self._faults.latest
        if kind in (_LATE, _MUTE, _FAILED_AFTER):
            world.at(arrives_at, None, self._arrive, (talk, talk.number, command, None))
        if kind in (_LOST, _LATE, _MUTE) or there + back >= limit:
            self._give_up(talk, limit)
        else:
            error = StoreUnavailable("refused") if kind == _REFUSED else OutcomeUnknown("error 503")
            world.at(world.now + there + back, talk.process, talk.failed, (talk.number, error))

    def _give_up(self, talk: Talk, limit: float) -> None:
        error = OutcomeUnknown("no answer in time")
        self._world.at(self._world.now + limit, talk.process, talk.failed, (talk.number, error))

    def _arrive(self, message: tuple[Talk, int, Command[Any], float | None]) -> None:
        talk, number, command, back = message
        self.delivered += 1
        world = self._world
        answer = self._store.perform(command)
        if world.is_told:
            world.tell("store", f"{talk.process.name}: {brief(command)} -> {brief(answer)}")
        if back is None:
            return
        if world.now >= talk.process.cut_until:
            world.at(world.now + back, talk.process, talk.answered, (number, answer))
        else:
            world.at(world.now + back, talk.process, talk.failed, (number, OutcomeUnknown("cut off")))
