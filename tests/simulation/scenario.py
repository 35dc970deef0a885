"""Playing a seed's plan, and its result.

A run has a rough part, with faults and accidents, and a calm part, in which a new contender must get the lock in time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from lockstead.protocol.acquire import Grant, acquire
from lockstead.protocol.commands import StoreClock, Traits
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.observations import ObservationCache
from lockstead.settings import Settings
from lockstead.values import Name, Space
from tests.simulation.enforcing import EnforcedStore
from tests.simulation.hosted import Hosted, Opened
from tests.simulation.machine import Machine
from tests.simulation.network import ACCIDENTS, Network
from tests.simulation.outsiders import Operator, Stranger
from tests.simulation.places import SESSION_TTL, Places
from tests.simulation.plans import Plan, Scenario, plan_of
from tests.simulation.process import Process
from tests.simulation.properties import Watch
from tests.simulation.store import Entry, SimulatedStore
from tests.simulation.talk import Talk
from tests.simulation.worker import Mailbox, Worker
from tests.simulation.world import BootClock, Halt, Violation, World

KEY: Final = Name("apt")
_FORGOTTEN: Final = {
    "delete": (Space.LOCK,),
    "forget": (Space.COMPANION,),
    "restart": (Space.LOCK, Space.MEMBER, Space.COMPANION),
}
M = TypeVar("M", bound=Machine)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a seed. violation: None if all properties held. faults: number of each of `network.FAULTS`.

    delivered: requests that the store carried out. answered: replies that reached their waiting sender.
    """

    seed: int
    scenario: Scenario
    violation: str | None
    delivered: int
    answered: int
    faults: tuple[int, ...]
    grants: int
    losses: int
    tokens: int
    log: list[str]


def play(
    seed: int,
    scenario: Scenario | None = None,
    *,
    store: Opened | None = None,
    traits: Traits | None = None,
    is_told: bool = False,
) -> Run:
    """Play one seed in its own scenario or the given one. A violation is in the Run, not raised.

    store: opens a real store for the run. traits: those of the simulated store to use. Without either, the seed chooses
    among four kinds. is_told: keep the event log.
    """
    plan = plan_of(seed, scenario, traits, is_simulated=store is None)
    stage = Stage(seed, plan, store, is_told=is_told)
    violation = None
    try:
        stage.play()
    except Violation as found:
        violation = str(found)
    finally:
        stage.store.close()
    watch, network = stage.watch, stage.network
    return Run(
        seed,
        stage.plan.scenario,
        violation,
        network.delivered,
        network.answered,
        tuple(network.faults),
        watch.grants,
        watch.losses,
        watch.tokens,
        stage.world.log,
    )


class Stage:
    """The world of one run, with all actors."""

    __slots__ = ("calm_at", "network", "operator", "plan", "store", "stranger", "watch", "workers", "world")

    def __init__(self, seed: int, plan: Plan, opened: Opened | None = None, *, is_told: bool = False) -> None:
        self.calm_at: float | None = None
        world = self.world = World(seed, is_told=is_told)
        store_clock = BootClock(1000 * world.dice.random(), plan.rates[-1])
        self.store: SimulatedStore
        if opened is None and plan.traits.clock is StoreClock.SERVER_EXPIRES:
            self.store = EnforcedStore(world, plan.traits, store_clock, plan.grants_at_most)
        elif opened is None:
            self.store = SimulatedStore(world, plan.traits, store_clock, plan.skew)
        else:
            self.store = Hosted(world, store_clock, opened)
            plan = replace(plan, traits=self.store.traits)
        if plan.queues:
            self.store.places = Places(world)
        self.plan = plan
        self.watch = Watch(world, self.store)
        self.store.on_grant = self._granted
        self.network = Network(world, self.store, plan.faults)
        mailbox = Mailbox()
        self.workers: list[Worker] = []
        for number, settings in enumerate(plan.settings):
            worker = self._enter(Worker, f"worker{number + 1}", settings, plan.rates[number])
            worker.hire(plan.batch_max, plan.workers)
            worker.employ(KEY, plan.habits, mailbox)
            self.workers.append(worker)
        self.operator = self._enter(Operator, "operator", plan.settings[0], 1.0)
        self.operator.key, self.operator.store = KEY, self.store
        self.stranger = self._enter(Stranger, "stranger", plan.settings[0], 1.0)
        self.stranger.key, self.stranger.store = KEY, self.store

    def _enter(self, kind: type[M], name: str, settings: Settings, rate: float) -> M:
        clock = BootClock(1e5 * self.world.dice.random(), rate)
        made = kind(
            name,
            clock,
            self.world,
            self.network,
            self.watch,
            ProtocolContext(self.plan.traits, settings, ObservationCache()),
        )
        made.is_watching, made.is_queueing = self.plan.watches, self.plan.queues
        return made

    def play(self) -> None:
        """Play the rough part and the calm part. Raises `Violation`."""
        world, plan = self.world, self.plan
        for worker in self.workers:
            world.at(world.dice.random() * 2, worker, worker.begin)
        random = world.dice.random
        for accident, times in zip(ACCIDENTS, plan.accidents, strict=True):
            for _ in range(times):
                world.at(plan.within * random(), None, self._befall, accident)
        for seconds in plan.sets_clock:
            world.at(plan.within * random(), None, self._set_clock, seconds)
        self.network.halts_at = plan.delivers
        world.run(plan.lasts)
        self._calm()
        self._probe()

    def _befall(self, accident: str) -> None:
        if self.calm_at is not None:
            return
        self.network.befell(accident)
        dice = self.world.dice
        random, longest = dice.random, self.plan.settings[0].ttl
        operator = self.operator
        match accident:
            case "stop":
                self._victim().stop(2 * longest * random() ** 2)
            case "kill":
                self._victim().crash(longest * random() ** 2)
            case "cut":
                self._victim().cut(1.5 * longest * random())
            case "outage":
                self.network.down_until = self.world.now + 1.2 * longest * random() ** 2
            case "jump":
                dice.choice(self.workers).jump(1e5 * random() - 5e4)
            case "revoke" | "break":
                operator.breaks(at_once=accident == "break")
            case "delete" | "forget" | "restart":
                for space in _FORGOTTEN[accident]:
                    operator.deletes(space)
            case "damage":
                operator.damages(None)
            case "stranger":
                self.stranger.visits(longest * random())
            case "contender":
                self.stranger.contends(4 * longest)

    def _set_clock(self, seconds: float) -> None:
        """Set the store's clock, right after every process has read it."""
        if self.calm_at is not None:
            return
        self.network.befell("set")
        for process in (*self.workers, self.operator):
            process.looks_at_clock(KEY, self.store.time())
        self.store.set_clock(seconds)
        if self.world.is_told:
            self.world.tell("store", f"its clock is set by {seconds:.1f} s")

    def _granted(self, name: Name, entry: Entry, was: Entry | None) -> None:
        self.watch.granted(name, entry, was)
        if self.calm_at is not None and name == KEY and "ttl" not in entry.fields:
            # a late request of another implementation, of which no process is left to remove the record
            self.world.at(self.world.now, None, lambda _: self.operator.clears())

    def _victim(self) -> Worker:
        """Return the process that an accident happens to; usually a holder of the lock."""
        dice = self.world.dice
        holding = [worker for worker in self.workers if worker.is_holding]
        return dice.choice(holding if holding and dice.random() < 0.7 else self.workers)

    def _calm(self) -> None:
        """End the faults, wake all processes, and let them release what they hold."""
        world = self.world
        if world.is_told:
            world.tell("everybody", "calm from now on")
        self.calm_at, self.watch.is_calm = world.now, True
        self.network.calm()
        self.operator.clears()
        for worker in self.workers:
            worker.cut_until = 0.0
            worker.is_finishing = True  # even if it dies now and is restarted
            world.resume(worker)
            world.at(world.now, worker, worker.finish)

    def _probe(self) -> None:
        """Check that a new contender gets the lock within the bound of H1 after the last commit of any process."""
        world, settings = self.world, self.plan.settings[0]
        probe = self._enter(Process, "probe", settings, 1.0)
        got: list[Grant] = []

        def asked(outcome: object, _: object) -> None:
            if isinstance(outcome, Grant):
                got.append(outcome)
                raise Halt

        want = probe.wish(KEY)
        talk = Talk(probe, acquire(want, probe.context, gives_up_at=None, tries_once=False), 30.0, asked)
        world.at(world.now, probe, lambda _: talk.start())
        # late requests arrive within this time; each commit restarts the bound
        while not got:
            world.run(self._due_at())
            if not got and self._due_at() <= world.now:
                self.watch.violated(f"a contender waits although nobody renewed for {self._patience():.3f} s")
        world.run(world.now + max(one.ttl for one in self.plan.settings))
        for worker in self.workers:
            worker.check_quiet()

    def _due_at(self) -> float:
        touched_at = self.store.touched_at.get(KEY, 0.0)
        return max(touched_at, self.calm_at or 0.0) + self._patience()

    def _patience(self) -> float:
        """Return the longest wait of a contender after the last commit by H1, in true seconds."""
        traits = self.plan.traits
        settings = max(self.plan.settings, key=lambda one: one.ttl)
        drift = settings.drift
        patience = settings.ttl * (1 + drift) + traits.clock_skew_max + settings.lock_delay
        patience += settings.backoff_max + 2 * settings.request_timeout
        if traits.clock is StoreClock.TWO_CLOCKS:
            patience += 2.0
        if self.plan.queues:
            # places of processes that died or were cut off
            patience += SESSION_TTL
        if traits.clock not in (StoreClock.ONE_CLOCK, StoreClock.SERVER_EXPIRES) or self.plan.sets_clock:
            # expiry by observation counts from the first read of the last state, which may be one pause later
            patience += settings.backoff_max + 2 * settings.request_timeout
        return patience / (1 - drift)
