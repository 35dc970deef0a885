"""Playing a seed's plan, and its result.

A run has a phase with faults, and a calm phase, in which a new contender must get the lock in time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from lockstead.protocol.acquire import Grant, acquire
from lockstead.protocol.commands import StoreClock, Traits
from lockstead.settings import Settings
from lockstead.values import Name, Space
from tests.simulation.expiring import ExpiringStore
from tests.simulation.external import ForeignClient, Operator, Pruner
from tests.simulation.faults import INJECTED
from tests.simulation.hosted import HostedStore, OpenStore
from tests.simulation.invariants import InvariantChecker
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plan import KEY, Plan, Scenario, plan_of
from tests.simulation.process import Process
from tests.simulation.runner import ScriptRunner
from tests.simulation.store import SESSION_TTL, Entry, SimulatedStore
from tests.simulation.worker import Tickets, Worker
from tests.simulation.world import BootClock, Halt, Violation, World

_DELETED: Final = {
    "delete": (Space.LOCK,),
    "delete_companion": (Space.COMPANION,),
    "empty": (Space.LOCK, Space.MEMBER, Space.COMPANION),
}
M = TypeVar("M", bound=Machine)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a seed. violation: None if all invariants held. faults: number of each of `faults.FAULTS`.

    delivered: requests that the store carried out. answered: replies that reached their waiting sender.
    """

    seed: int
    scenario: Scenario
    violation: str | None
    delivered: int
    answered: int
    faults: Mapping[str, int]
    grants: int
    losses: int
    tokens: int
    history: list[str]


def play(
    seed: int,
    scenario: Scenario | None = None,
    *,
    store: OpenStore | None = None,
    traits: Traits | None = None,
    keeps_history: bool = False,
) -> Run:
    """Play one seed in its own scenario or the given one. A violation is in the Run, not raised.

    store: opens a real store for the run. traits: those of the simulated store to use. Without either, the seed chooses
    among four kinds.
    """
    plan = plan_of(seed, scenario, traits, is_simulated=store is None)
    simulation = Simulation(seed, plan, store, keeps_history=keeps_history)
    violation = None
    try:
        simulation.play()
    except Violation as found:
        violation = str(found)
    finally:
        simulation.store.close()
    checker, network = simulation.checker, simulation.network
    return Run(
        seed,
        plan.scenario,
        violation,
        network.delivered,
        network.answered,
        network.faults,
        checker.grants,
        checker.losses,
        checker.tokens,
        simulation.world.history,
    )


class Simulation:
    """The world of one run, with all actors."""

    def __init__(self, seed: int, plan: Plan, open_store: OpenStore | None, *, keeps_history: bool) -> None:
        self.calm_at: float | None = None
        world = self.world = World(seed, keeps_history=keeps_history)
        store_clock = BootClock(1000 * world.rng.random(), plan.rates[-1])
        self.store: SimulatedStore
        if open_store is not None:
            self.store = HostedStore(world, store_clock, open_store)
        elif plan.traits.clock is StoreClock.SERVER_EXPIRES:
            self.store = ExpiringStore(world, plan.traits, store_clock, plan.grants_at_most)
        else:
            self.store = SimulatedStore(world, plan.traits, store_clock, plan.skew)
        self.store.on_grant = self._granted
        self.plan = replace(plan, traits=self.store.traits)
        self.checker = InvariantChecker(world, self.store)
        self.network = Network(world, self.store, plan.message_faults)
        self.tickets = Tickets()
        self.workers = [
            self._new(Worker, f"worker{number}", settings, rate)
            for number, (settings, rate) in enumerate(zip(plan.settings, plan.rates, strict=False), 1)
        ]
        self.operator = self._new(Operator, "operator", plan.settings[0])
        self.foreign = self._new(ForeignClient, "foreign", plan.settings[0])
        self.pruner = self._new(Pruner, "pruner", plan.settings[0]) if plan.prunes_every else None

    def _new(self, kind: type[M], name: str, settings: Settings, rate: float = 1.0) -> M:
        return kind(self, name, BootClock(1e5 * self.world.rng.random(), rate), settings)

    def play(self) -> None:
        """Play both phases. Raises `Violation`."""
        world, plan = self.world, self.plan
        random = world.rng.random
        for worker in self.workers:
            world.schedule(random() * 2, worker, worker.begin)
        if self.pruner is not None:
            world.schedule(random(), self.pruner, self.pruner.begin)
        for fault in INJECTED:
            for _ in range(plan.injected.get(fault, 0)):
                world.schedule(plan.within * random(), None, self._inject, fault)
        for seconds in plan.sets_clock:
            world.schedule(plan.within * random(), None, self._set_clock, seconds)
        self.network.halts_at = plan.delivers
        world.run(plan.lasts)
        self._calm()
        self._probe()

    def _inject(self, fault: str) -> None:
        if self.calm_at is not None:
            return
        self.network.faults[INJECTED[fault]] += 1
        rng, longest, operator = self.world.rng, self.plan.settings[0].ttl, self.operator
        match fault:
            case "pause":
                self._target().pause(2 * longest * rng.random() ** 2)
            case "kill":
                self._target().crash(longest * rng.random() ** 2)
            case "isolate":
                self._target().isolate(1.5 * longest * rng.random())
            case "outage":
                self.network.down_until = self.world.now + 1.2 * longest * rng.random() ** 2
            case "jump":
                rng.choice(self.workers).set_wall_clock(1e5 * rng.random() - 5e4)
            case "revoke" | "break":
                operator.break_lock(at_once=fault == "break")
            case "delete" | "delete_companion" | "empty":
                for space in _DELETED[fault]:
                    operator.delete(space)
            case "damage":
                operator.damage()
            case "foreign":
                self.foreign.take(longest * rng.random())
            case "contend":
                self.foreign.contend(4 * longest)

    def _set_clock(self, seconds: float) -> None:
        """Set the store's clock, right after every process has read it."""
        if self.calm_at is not None:
            return
        self.network.faults[INJECTED["set_clock"]] += 1
        readers = (*self.workers, self.operator) if self.pruner is None else (*self.workers, self.operator, self.pruner)
        for process in readers:
            process.read_store_clock(KEY, self.store.time())
        self.store.set_clock(seconds)
        if self.world.keeps_history:
            self.world.log("store", f"its clock is set by {seconds:.1f} s")

    def _granted(self, name: Name, entry: Entry, was: Entry | None) -> None:
        self.checker.check_record(name, entry, was)
        if self.calm_at is not None and name == KEY and "ttl" not in entry.fields:
            # a late request of another implementation, of which no process is left to remove the record
            self.world.schedule(self.world.now, None, lambda _: self.operator.clear())

    def _target(self) -> Worker:
        """Return the process that a fault happens to; usually a holder of the lock."""
        rng = self.world.rng
        holding = [worker for worker in self.workers if worker.is_holding]
        return rng.choice(holding if holding and rng.random() < 0.7 else self.workers)

    def _calm(self) -> None:
        """End the faults, wake all processes, and let them release what they hold."""
        world = self.world
        if world.keeps_history:
            world.log("all", "calm from now on")
        self.calm_at, self.checker.is_calm = world.now, True
        self.network.calm()
        self.operator.clear()
        for worker in self.workers:
            worker.isolated_until = 0.0
            worker.is_finishing = True  # even if it dies now and is restarted
            world.resume(worker)
            world.schedule(world.now, worker, worker.finish)

    def _probe(self) -> None:
        """Check that a new contender gets the lock within the bound of H1 after the last commit of any process."""
        world = self.world
        probe = self._new(Process, "probe", self.plan.settings[0])
        grants: list[Grant] = []

        def acquired(outcome: object) -> None:
            if isinstance(outcome, Grant):
                grants.append(outcome)
                raise Halt

        script = acquire(probe.new_request(KEY), probe.context, gives_up_at=math.inf, tries_once=False)
        runner = ScriptRunner(probe, script, acquired, limit=30.0)
        world.schedule(world.now, probe, lambda _: runner.start())
        # late requests arrive within this time; each commit restarts the bound
        while not grants:
            world.run(self._due_at())
            if not grants and self._due_at() <= world.now:
                self.checker.fail(f"a contender waits although nobody renewed for {self._longest_wait():.3f} s")
        world.run(world.now + max(one.ttl for one in self.plan.settings))
        for worker in self.workers:
            worker.check_nothing_kept()
        if self.pruner is not None:
            self._check_pruned(self.pruner)

    def _check_pruned(self, pruner: Pruner) -> None:
        """Check that no registration is left once it is over and was looked at twice."""
        patience = 2 * self._longest_wait() + 4 * self.plan.longest
        pruner.is_thorough = True
        self.world.run(self.world.now + patience)
        left = [
            name
            for name, entry in self.store.entries.items()
            if name.space is Space.MEMBER and entry.committed_at < self.world.now - patience
        ]
        if left:
            self.checker.fail(f"nobody prunes {left}")

    def _due_at(self) -> float:
        # a contender waits for the readers, too
        names = [name for name in self.store.touched_at if name.key == KEY.key and name.space is not Space.COMPANION]
        touched_at = max((self.store.touched_at[name] for name in names), default=0.0)
        return max(touched_at, self.calm_at or 0.0) + self._longest_wait()

    def _longest_wait(self) -> float:
        """Return the longest wait of a contender after the last commit by H1, in true seconds."""
        traits = self.plan.traits
        settings = max(self.plan.settings, key=lambda one: one.ttl)
        drift = settings.drift
        seconds = settings.ttl * (1 + drift) + traits.clock_skew_max + settings.lock_delay
        seconds += settings.backoff_max + 2 * settings.request_timeout
        if traits.clock is StoreClock.TWO_CLOCKS:
            seconds += 2.0
        if self.plan.queues:
            # places of processes that died or were isolated
            seconds += SESSION_TTL
        if traits.clock not in (StoreClock.ONE_CLOCK, StoreClock.SERVER_EXPIRES) or self.plan.sets_clock:
            # expiry by observation counts from the first read of the last state, which may be one pause later
            seconds += settings.backoff_max + 2 * settings.request_timeout
        return seconds / (1 - drift)
