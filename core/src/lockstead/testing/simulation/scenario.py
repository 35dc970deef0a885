"""Decides what one seed stands for: which store, settings, processes, faults and accidents; and plays it to the end.

A run has a rough part, in which everything that can go wrong does, and a calm one, in which a fresh contender must
get the lock in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, TypeVar

from lockstead.protocol.acquire import Grant, acquire
from lockstead.protocol.commands import StoreClock, Traits
from lockstead.protocol.terms import Book, Terms
from lockstead.settings import Settings
from lockstead.testing.simulation.network import KINDS, Faults, Network
from lockstead.testing.simulation.process import Process
from lockstead.testing.simulation.properties import Watch
from lockstead.testing.simulation.store import PROFILES, SimulatedStore
from lockstead.testing.simulation.talk import Talk
from lockstead.testing.simulation.worker import Habits, Mailbox, Operator, Worker
from lockstead.testing.simulation.world import BootClock, Violation, World
from lockstead.values import Name, Space

KEY: Final = Name("apt")
P = TypeVar("P", bound=Process)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a seed decides before the first event. Times are seconds; accidents are counts.

    rates: of the processes' clocks and, last, of the store's. skew: of the store's `Date`. lasts: the rough part.
    """

    traits: Traits
    settings: tuple[Settings, ...]
    rates: tuple[float, ...]
    skew: float
    faults: Faults
    habits: Habits
    lasts: float
    stops: int
    deaths: int
    cuts: int
    jumps: int
    breaks: int
    deletions: int
    watches: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a seed. violation: None if everything held."""

    seed: int
    violation: str | None
    delivered: int
    faulted: int
    grants: int
    losses: int
    tokens: int
    log: list[str]


@lru_cache(maxsize=512)
def _settings(ttl: float, drift: float, lock_delay: float, backoff_max: float, margin: float) -> Settings:
    return Settings.make(
        ttl=ttl, drift=drift, lock_delay=lock_delay, backoff_max=backoff_max, abort_margin=ttl * margin
    )


_MOODS: Final = ("storm", "frozen", "crowd", "office")


def plan_of(seed: int) -> Plan:
    """Give the plan of a seed. Each kind of fault is in some plans and not in others, so that none hides another.

    Four moods: a storm of lost messages; processes that stand still for about a ttl; a crowd of members; operators.
    """
    dice = Random(seed ^ 0x5EED)
    choice = dice.choice
    mood = choice(_MOODS)
    drift = choice((0.01, 0.05, 0.1))
    ttls = choice(((12.0, 12.0, 12.0), (12.0, 24.0, 12.0), (24.0, 8.0, 24.0)))
    # the ends of what is tolerated find more than the middle does
    rates = tuple(1 + drift * choice((-1.0, 1.0, dice.uniform(-1, 1))) for _ in range(len(ttls) + 1))
    lock_delay, backoff_max = choice((0.0, 0.0, 0.0, 3.0)), choice((0.2, 0.5, 2.0, 5.0))
    margin = choice((0.01, 1 / 6))
    return Plan(
        traits=choice(PROFILES),
        settings=tuple(_settings(ttl, drift, lock_delay, backoff_max, margin) for ttl in ttls),
        rates=rates,
        skew=choice((0.0, 0.5, -0.5, 1.0, -1.9, 5.0, -5.0, 60.0)),
        faults=_faults_of(mood, dice),
        habits=_habits_of(mood, max(ttls), dice),
        lasts=max(ttls) * choice((2.0, 4.0)),
        stops=choice((3, 6)) if mood == "frozen" else dice.randrange(3),
        deaths=choice((1, 3)) if mood == "crowd" else dice.randrange(3),
        cuts=dice.randrange(3),
        jumps=dice.randrange(2),
        breaks=choice((1, 2, 4)) if mood == "office" else 0,
        deletions=choice((0, 1, 2)) if mood == "office" else 0,
        watches=dice.random() < 0.3,
    )


def _faults_of(mood: str, dice: Random) -> Faults:
    odds = [dice.choice((0.0, 0.02, 0.1)) * (1.0 if mood == "storm" else 0.2) for _ in KINDS[:-2]]
    stumbles = (dice.choice((0.01, 0.03)) if mood == "frozen" else 0.0, dice.choice((0.0, 0.0, 0.005)))
    latency = dice.choice((0.005, 0.05, 0.3, 0.6))
    return Faults((*odds, *stumbles), latency=latency, latest=dice.choice((2.0, 20.0, 120.0)))


def _habits_of(mood: str, longest: float, dice: Random) -> Habits:
    choice, is_crowd = dice.choice, mood == "crowd"
    return Habits(
        work=longest * choice((0.1, 0.5) if is_crowd else (0.2, 0.6, 2.0)),
        idle=choice((0.1, 2.0)),
        draws=choice((0.0, 0.9)),
        shares=choice((0.7, 1.0)) if is_crowd else choice((0.0, 0.3)),
        attaches=0.9 if is_crowd else 0.5,
        detaches=choice((0.1, 0.5)) if is_crowd else 0.05,
        gives_up=choice((0.1, 0.6)),
        cancels=choice((0.0, 0.3)),
        reclaims=choice((0.0, 0.9)),
    )


def play(seed: int, *, plan: Plan | None = None, is_told: bool = False) -> Run:
    """Play one seed. Never raises `Violation`: the run says it."""
    stage = Stage(seed, plan_of(seed) if plan is None else plan, is_told=is_told)
    violation = None
    try:
        stage.play()
    except Violation as found:
        violation = str(found)
    watch, network = stage.watch, stage.network
    return Run(
        seed,
        violation,
        network.delivered,
        network.faulted,
        watch.grants,
        watch.losses,
        watch.tokens,
        stage.world.log,
    )


class Stage:
    """The world of one run, with everybody in it."""

    __slots__ = ("_number", "network", "operator", "plan", "probe", "store", "watch", "workers", "world")

    def __init__(self, seed: int, plan: Plan, *, is_told: bool = False) -> None:
        self.plan = plan
        world = self.world = World(seed, is_told=is_told)
        store_clock = BootClock(1000 * world.dice.random(), plan.rates[-1])
        self.store = SimulatedStore(world, plan.traits, store_clock, plan.skew)
        self.watch = Watch(world, self.store)
        self.network = Network(world, self.store, plan.faults)
        self._number = 0
        mailbox = Mailbox()
        self.workers: list[Worker] = []
        for number, settings in enumerate(plan.settings):
            worker = self._enter(Worker, f"worker{number + 1}", settings, plan.rates[number])
            worker.employ(KEY, plan.habits, mailbox)
            self.workers.append(worker)
        self.operator = self._enter(Operator, "operator", plan.settings[0], 1.0)
        self.operator.key, self.operator.store = KEY, self.store

    def _enter(self, kind: type[P], name: str, settings: Settings, rate: float) -> P:
        clock = BootClock(1e5 * self.world.dice.random(), rate)
        made = kind(name, clock, self.world, self.network, self.watch, Terms(self.plan.traits, settings, Book()))
        made.is_watching = self.plan.watches
        return made

    def play(self) -> None:
        """Play the rough part and the calm one. Raises `Violation`."""
        world, plan = self.world, self.plan
        for worker in self.workers:
            world.at(world.dice.random() * 2, worker, worker.begin)
        self._plan_accidents()
        world.run(plan.lasts)
        self._calm()
        self._probe()

    def _plan_accidents(self) -> None:
        world, plan, dice = self.world, self.plan, self.world.dice
        longest = plan.settings[0].ttl
        for _ in range(plan.stops):
            world.at(plan.lasts * dice.random(), None, self._stop, 2 * longest * dice.random() ** 2)
        for _ in range(plan.deaths):
            world.at(plan.lasts * dice.random(), None, self._kill, longest * dice.random() ** 2)
        for _ in range(plan.cuts):
            world.at(plan.lasts * dice.random(), None, self._cut, 1.5 * longest * dice.random())
        for _ in range(plan.jumps):
            worker = dice.choice(self.workers)
            world.at(plan.lasts * dice.random(), worker, worker.jump, dice.uniform(-5e4, 5e4))
        operator = self.operator
        for _ in range(plan.breaks):
            world.at(plan.lasts * dice.random(), operator, operator.breaks, dice.random() < 0.5)
        for _ in range(plan.deletions):
            space = dice.choice((Space.LOCK, Space.COMPANION))
            world.at(plan.lasts * dice.random(), operator, operator.deletes, space)

    def _victim(self) -> Worker:
        """Choose whom an accident befalls: mostly somebody who holds the lock."""
        dice = self.world.dice
        holding = [worker for worker in self.workers if worker.is_holding]
        return dice.choice(holding if holding and dice.random() < 0.7 else self.workers)

    def _stop(self, seconds: float) -> None:
        self._victim().stop(seconds)

    def _kill(self, seconds: float) -> None:
        self._victim().crash(seconds)

    def _cut(self, seconds: float) -> None:
        self._victim().cut(seconds)

    def _calm(self) -> None:
        """End the faults, wake everybody, and let them give back what they hold."""
        world = self.world
        if world.is_told:
            world.tell("everybody", "calm from now on")
        self.network.calm()
        for worker in self.workers:
            worker.stopped_until = worker.cut_until = 0.0
            world.at(world.now, worker, worker.finish)

    def _probe(self) -> None:
        """A fresh contender must get the lock within what H1 promises, counted from the last commit of anybody."""
        world, settings = self.world, self.plan.settings[0]
        probe = self._enter(Process, "probe", settings, 1.0)
        got: list[Grant] = []

        def asked(outcome: object, _: object) -> None:
            if isinstance(outcome, Grant):
                got.append(outcome)

        want = probe.wish(KEY)
        talk = Talk(probe, acquire(want, probe.terms, gives_up_at=None, tries_once=False), 30.0, asked)
        world.at(world.now, probe, lambda _: talk.start())
        # whatever is late comes within this; each commit sets the promise anew
        while not got:
            world.run(self._due_at(), lambda: bool(got))
            if not got and self._due_at() <= world.now:
                self.watch.violated(f"a contender waits although nobody renewed for {self._patience():.3f} s")
        world.run(world.now + max(one.ttl for one in self.plan.settings))
        for worker in self.workers:
            worker.check_quiet()

    def _due_at(self) -> float:
        touched_at = self.store.touched_at.get(KEY, 0.0)
        return max(touched_at, self.plan.lasts) + self._patience()

    def _patience(self) -> float:
        """Give how long H1 lets a contender wait after the last commit, in true seconds."""
        traits = self.plan.traits
        settings = max(self.plan.settings, key=lambda one: one.ttl)
        drift = settings.drift
        patience = settings.ttl * (1 + drift) + traits.granularity + settings.lock_delay
        patience += settings.backoff_max + 2 * settings.request_timeout
        if traits.clock is StoreClock.DATED:
            patience += 2.0
        if traits.clock is not StoreClock.SHARED:
            # by observation it counts from the first sight of the last state, and that may come a pause later
            patience += settings.backoff_max + 2 * settings.request_timeout
        return patience / (1 - drift)
