"""A simulated machine: two clocks, a network connection to the store, and the accidents that happen to it.

Must not know leases. The boot clock keeps running while the machine is stopped; the wall clock may jump.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstead.protocol.commands import Reply, Script
from lockstead.protocol.context import ProtocolContext
from lockstead.protocol.observations import ObservationCache
from lockstead.settings import Settings
from lockstead.stores.subscriptions import Subscription
from lockstead.values import Name
from tests.simulation.network import Network
from tests.simulation.properties import Watch
from tests.simulation.talk import Talk, Then
from tests.simulation.world import Actor, BootClock, World


class Machine(Actor):
    """A machine with one process, which runs scripts against the store.

    cut_until: the true instant until which nothing it sends arrives. is_watching: its store notifies of changes.
    is_queueing: its store also keeps a queue.
    """

    __slots__ = (
        "_nonces",
        "_wall_ahead",
        "context",
        "cut_until",
        "is_queueing",
        "is_watching",
        "network",
        "settings",
        "watch",
        "world",
    )

    def __init__(
        self, name: str, clock: BootClock, world: World, network: Network, watch: Watch, context: ProtocolContext
    ) -> None:
        super().__init__(name, clock)
        self.world = world
        self.network = network
        self.watch = watch
        self.settings: Settings = context.settings
        self.context = context
        self.cut_until = 0.0
        self.is_queueing = self.is_watching = False
        self._wall_ahead = 0.0
        self._nonces = 0

    def now(self) -> float:
        """Return this process's boot clock."""
        return self.clock.at(self.world.now)

    def wall(self) -> float:
        """Return this process's wall clock, which is only for display."""
        return 1.7e9 + self.world.now + self._wall_ahead

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._wall_ahead += seconds

    def after(self, seconds: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call a function after some true seconds, unless this process dies before."""
        self.world.at(self.world.now + seconds, self, call, argument)

    def converse(self, script: Script[Any], then: Then, gives_up_at: float | None = None) -> Talk:
        """Start running a script against the store."""
        talk = Talk(self, script, self.settings.request_timeout, then, gives_up_at)
        talk.start()
        return talk

    def looks_at_clock(self, name: Name, store_now: float) -> None:
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
            if self.epoch == epoch and self.world.now >= self.cut_until:
                self.network.notify(self, on_change, is_free)

        return notify

    def nonce(self) -> str:
        """Return a unique name."""
        self._nonces += 1
        return f"{self.name}/{self.epoch}.{self._nonces}"

    def stop(self, seconds: float) -> None:
        """Pause, as by SIGSTOP, a long garbage collection or a suspended machine; the boot clock keeps running."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)
        self.tell(f"stands still for {seconds:.3f} s")

    def stumble(self, is_fatal: bool) -> None:
        """Pause for about a ttl while a reply is outstanding; subclasses may die instead if is_fatal."""
        del is_fatal
        self.stop(self.settings.ttl * (0.7 + 0.5 * self.world.dice.random()))

    def cut(self, seconds: float) -> None:
        """Cut the machine off: for a while, no request arrives and no reply comes back."""
        self.cut_until = max(self.cut_until, self.world.now + seconds)
        self.tell(f"is cut off for {seconds:.3f} s")

    def die(self) -> None:
        """Die now and forget everything; messages already sent still arrive."""
        self.epoch += 1
        self.stopped_until = self.world.now
        self.context = ProtocolContext(self.context.traits, self.settings, ObservationCache())
        self.tell("died")

    def tell(self, what: str) -> None:
        """Write a line to the event log, if it is kept."""
        if self.world.is_told:
            self.world.tell(self.name, what)
