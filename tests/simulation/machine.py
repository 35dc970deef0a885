"""A simulated machine: two clocks, a network connection to the store, and the faults that happen to it.

Must not know leases. The boot clock keeps running while the machine is paused; the wall clock may jump.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstead.protocol.commands import Reply, Script
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.observations import ObservationCache
from lockstead.settings import Settings
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name
from tests.simulation.runner import ScriptRunner, Then
from tests.simulation.world import Actor, BootClock

if TYPE_CHECKING:
    from tests.simulation.run import Simulation


class Machine(Actor):
    """A machine with one process, which runs scripts against the store.

    isolated_until: the true instant until which nothing it sends arrives.
    """

    def __init__(self, simulation: Simulation, name: str, clock: BootClock, settings: Settings) -> None:
        super().__init__(name, clock)
        self.plan = simulation.plan
        self.world = simulation.world
        self.network = simulation.network
        self.store = simulation.store
        self.checker = simulation.checker
        self.settings = settings
        self.isolated_until = 0.0
        self._wall_ahead = 0.0
        self._nonces = 0
        self._forget()

    def _forget(self) -> None:
        """Begin with the memory of a new process."""
        self.context = ProtocolContext(self.plan.traits, self.settings, ObservationCache())

    def now(self) -> float:
        """Return this process's boot clock."""
        clock = self.clock
        return clock.offset + clock.rate * self.world.now

    def wall(self) -> float:
        """Return this process's wall clock, which is only for display."""
        return 1.7e9 + self.world.now + self._wall_ahead

    def set_wall_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._wall_ahead += seconds

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.world.rng.random() < probability

    def after(self, seconds: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call a function after some true seconds, unless this process dies before."""
        self.world.schedule(self.world.now + seconds, self, call, argument)

    def run_script(self, script: Script[Any], then: Then | None = None, **more: Any) -> ScriptRunner:
        """Start running a script against the store. more: see `ScriptRunner`."""
        runner = ScriptRunner(self, script, then, **more)
        runner.start()
        return runner

    def read_store_clock(self, name: Name, store_now: float) -> None:
        """Observe the store's clock."""
        now = self.now()
        self.context.observations.read_clock(name.key, store_now, Reply(None, now, now), self.settings.drift)

    def subscribe(self, name: Name, on_change: Callable[[bool], None]) -> Subscription:
        """Subscribe to a record like `stores.port.SupportsWatch`, until the process dies; notifications may be lost."""
        return self.network.subscribe(name, self._notifying(on_change))

    def enqueue(self, name: Name, waiter_id: str, on_turn: Callable[[bool], None]) -> Subscription:
        """Join the store's queue like `stores.port.SupportsFifoQueue`, until the process dies."""
        return self.network.enqueue(self, name, waiter_id, self._notifying(on_turn))

    def _notifying(self, on_change: Callable[[bool], None]) -> Callable[[bool], None]:
        epoch = self.epoch

        def notify(is_free: bool) -> None:
            if self.epoch == epoch and self.world.now >= self.isolated_until:
                self.network.notify(self, on_change, is_free)

        return notify

    def nonce(self) -> str:
        """Return a unique name."""
        self._nonces += 1
        return f"{self.name}/{self.epoch}.{self._nonces}"

    def pause(self, seconds: float) -> None:
        """Pause, as by SIGSTOP, a long garbage collection or a suspended machine; the boot clock keeps running."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.log(f"pauses for {seconds:.3f} s")

    def fail(self, is_fatal: bool) -> None:
        """Pause for about a ttl while a reply is outstanding; subclasses may die instead if is_fatal."""
        del is_fatal
        self.pause(self.settings.ttl * (0.7 + 0.5 * self.world.rng.random()))

    def isolate(self, seconds: float) -> None:
        """Isolate the machine: for a while, no request arrives and no reply comes back."""
        self.isolated_until = max(self.isolated_until, self.world.now + seconds)
        self.log(f"is cut off for {seconds:.3f} s")

    def die(self) -> None:
        """Die now and forget everything; messages already sent still arrive."""
        self.epoch += 1
        self.paused_until = self.world.now
        self._forget()
        self.log("died")

    def log(self, what: str) -> None:
        """Add a line to the history, if it is kept."""
        if self.world.keeps_history:
            self.world.log(self.name, what)
