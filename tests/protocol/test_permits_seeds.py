"""Random runs of a semaphore in virtual time: more believe to hold a permit than the limit allows, never.

Takers follow the limit; an operator changes it. Requests are lost, late and doubled, answers are lost, holders die.
A failure names its seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.acquire import Grant
from lockstead.protocol.commands import Command, Extend, Pause, Remove, Traits
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.release import sweep
from lockstead.protocol.renew import Renewed, renew
from tests.protocol.bench import Session
from tests.protocol.semaphores import GATE, SemaphoreBench, slot_number
from tests.simulation.expiring import EXPIRING
from tests.simulation.store import DATED, NONE, SHARED

PROFILES = [SHARED, DATED, NONE, EXPIRING]
LIMIT_MAX = 3
STEPS = 300
SEEDS = 60


@dataclass
class Taker:
    """A process that takes permits again and again. doing: its conversation under way, and what it is about."""

    name: str
    context: ProtocolContext
    wishes: int = 0
    doing: Session | None = None
    about: str = ""
    grant: Grant | None = None
    deadline: float = 0.0


class Run:
    """One random run."""

    def __init__(self, traits: Traits, seed: int) -> None:
        self.dice = Random(seed)
        self.bench = SemaphoreBench(traits, ttl=10, backoff_max=2)
        self.takers = [Taker(f"t{number}", self.bench.context()) for number in range(5)]
        self.floating: list[Command[Any]] = []
        self.sweeps: list[Session] = []
        self.operator: Session | None = None
        self.wanted = self.promised = LIMIT_MAX
        self.changes = 0
        self.history: list[str] = []
        self.bench.taken("first", LIMIT_MAX)
        self.granted = self.settled = 0

    def play(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check()

    def _step(self) -> None:
        roll = self.dice.random()
        if roll < 0.05:
            self.bench.now += self.dice.choice([0.1, 1.0, 4.0, 11.0])
        elif roll < 0.12 and self.floating:
            command = self.dice.choice(self.floating)
            if self.dice.random() < 0.7:
                self.floating.remove(command)
            self._note(f"late: {command}")
            self.bench.store.perform(command)
        elif roll < 0.2:
            self._operate()
        elif self.sweeps and roll < 0.25:
            self._go(self.sweeps[0])
            if self.sweeps[0].is_over:
                self.sweeps.pop(0)
        else:
            self._take(self.dice.choice(self.takers))

    def _operate(self) -> None:
        if self.operator is None:
            self.changes += 1
            self.wanted = self.dice.randint(1, LIMIT_MAX)
            until = None if self.dice.random() < 0.5 else self.bench.now + 5
            self.operator = self.bench.resizing(self.wanted, f"z{self.changes}", wait_until=until)
            return
        if isinstance(self.operator.command, Extend) and self.operator.command.name == GATE:
            self.promised = max(self.promised, self.wanted)
        outcome = self._go(self.operator)
        if self.operator.is_over:
            self._note(f"operator: {self.wanted} {outcome}")
            if outcome is True:
                self.promised = self.wanted
                self.settled += 1
            self.operator = None

    def _take(self, taker: Taker) -> None:
        if taker.doing is not None:
            self._go_on(taker, taker.doing)
        elif taker.grant is None:
            taker.wishes += 1
            wish = self.bench.wish(f"{taker.name}.{taker.wishes}", None)
            if self.dice.random() < 0.3:
                wish.guess = self.dice.randrange(LIMIT_MAX)
            taker.about = "acquire"
            once = self.dice.random() < 0.3
            taker.doing = self.bench.taking(wish, taker.context, gives_up_at=self.bench.now + 20, tries_once=once)
        elif self.dice.random() < 0.1:  # it dies
            taker.grant, taker.deadline = None, 0.0
        elif self.dice.random() < 0.5:
            taker.about, taker.deadline = "release", 0.0
            lease = taker.grant.lease
            taker.doing = self.bench.session(removal(Remove(lease.name, lease.incarnation)))
        else:
            taker.about = "renew"
            taker.doing = self.bench.session(renew(taker.grant.lease, {}, taker.context))

    def _go_on(self, taker: Taker, session: Session) -> None:
        outcome = self._go(session)
        if not session.is_over:
            if self.dice.random() < 0.01:  # it dies: its request may still arrive
                if session.command is not None and not isinstance(session.command, Pause):
                    self.floating.append(session.command)
                taker.doing, taker.grant, taker.deadline = None, None, 0.0
            return
        taker.doing = None
        if taker.about == "acquire":
            self.sweeps += [
                self.bench.session(sweep(one.name, one.holder, self.bench.context())) for one in self.bench.abandoned
            ]
            self.bench.abandoned.clear()
            if isinstance(outcome, Grant):
                self.granted += 1
                taker.grant, taker.deadline = outcome, outcome.deadline
        elif taker.about == "release":
            taker.grant = None
        elif isinstance(outcome, Renewed) and outcome.deadline is not None and self.bench.now < taker.deadline:
            taker.deadline = max(taker.deadline, outcome.deadline)
        elif not isinstance(outcome, Exception) or self.bench.now >= taker.deadline:
            taker.grant, taker.deadline = None, 0.0

    def _go(self, session: Session) -> Any:
        """Let one request happen, in one of the ways in which it can; return the outcome once there is one."""
        roll, command = self.dice.random(), session.command
        self._note(f"{roll:.2f} {command}")
        try:
            if isinstance(command, Pause):
                session.wait(self.dice.uniform(0.0, min(command.at_most, command.over_in)))
            elif roll < 0.8:
                session.commit(self.dice.choice([0.0, 0.0, 0.1]))
            elif roll < 0.87:
                session.lose()
            elif roll < 0.94:
                self.floating.append(session.late())
            else:
                session.unsent()
        except (StoreUnavailable, OutcomeUnknown) as error:
            session.is_over, session.outcome = True, error
        return session.outcome

    def _note(self, text: str) -> None:
        self.history.append(f"{self.bench.now:8.2f} {text}")

    def _check(self) -> None:
        believers = [one for one in self.takers if one.grant is not None and self.bench.now < one.deadline]
        assert len(believers) <= self.promised, self._told(believers)
        slots = {slot_number(one.grant) for one in believers if one.grant is not None}
        assert len(slots) == len(believers), self._told(believers)

    def _told(self, believers: list[Taker]) -> str:
        return "\n".join([*self.history[-60:], f"promised {self.promised}", *map(str, believers)])

    def ends_well(self) -> None:
        """After all have died, whoever comes gets the permits, as many as the gate says."""
        self.bench.now += 200
        self.bench.resized(2, "end")
        assert [slot_number(self.bench.taken("x", 2)), slot_number(self.bench.taken("y", 2))] in ([0, 1], [1, 0])


def removal(command: Remove) -> Any:
    reply = yield command
    return reply.answer


@pytest.mark.parametrize("traits", PROFILES, ids=lambda traits: traits.scheme)
def test_no_more_believe_than_the_limit_allows(traits: Traits) -> None:
    granted = settled = 0
    for seed in range(SEEDS):
        run = Run(traits, seed)
        try:
            run.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        if traits.clock.name != "NONE":  # nobody has watched the dead there
            run.ends_well()
        granted, settled = granted + run.granted, settled + run.settled
    assert granted > SEEDS * 5  # or nothing was shown
    assert settled > SEEDS
