"""The words of the directed scenarios: a bench with a store and one time for all, and sessions stepped by hand."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.acquire import AcquireRequest, Grant, acquire
from lockstead.protocol.commands import Command, Pause, Paused, Reply, Script, StoreClock, Traits
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.lifecycle import LeaseState
from lockstead.protocol.members import Attached, attach
from lockstead.protocol.observations import ObservationCache
from lockstead.protocol.record import Record, encode
from lockstead.settings import Settings
from lockstead.values import Name
from tests.simulation.expiring import ExpiringStore
from tests.simulation.store import SHARED, Entry, SimulatedStore
from tests.simulation.world import BootClock, World

APT = Name("apt")
C = TypeVar("C", bound=Command[Any])


class Session:
    """One conversation, stepped by hand. outcome is what it returned, once it has."""

    def __init__(self, bench: Bench, script: Script[Any]) -> None:
        self.bench = bench
        self.script = script
        self.outcome: Any = None
        self.is_over = False
        self.command: Any = None
        self._advance(lambda: next(script))

    def _advance(self, step: Any) -> None:
        try:
            self.command = step()
        except StopIteration as stop:
            self.outcome, self.is_over, self.command = stop.value, True, None
        self.sent_at = self.bench.now

    def expect(self, kind: type[C]) -> C:
        """The script now waits for this kind of command."""
        assert isinstance(self.command, kind), f"expected {kind.__name__}, got {self.command or self.outcome}"
        return self.command

    def answer(self, answer: Any, after: float = 0.0) -> Session:
        """The answer comes in, `after` seconds later."""
        self.bench.now += after
        reply = Reply(answer, self.sent_at, self.bench.now)
        self._advance(lambda: self.script.send(reply))
        return self

    def commit(self, after: float = 0.0) -> Session:
        """The store performs the command at once; its answer comes in `after` seconds later."""
        return self.answer(self.bench.store.perform(self.command), after)

    def lose(self, after: float = 1.0) -> Session:
        """The store performs the command, but the answer is lost."""
        self.bench.store.perform(self.command)
        self.late(after)
        return self

    def late(self, after: float = 1.0) -> Command[Any]:
        """The request is in flight when its sender gives up; return it, to be performed whenever it arrives."""
        command: Command[Any] = self.command
        self.bench.now += after
        self._advance(lambda: self.script.throw(OutcomeUnknown("no answer in time")))
        return command

    def unsent(self, after: float = 0.0, error: Exception | None = None) -> Session:
        """The request is never sent."""
        self.bench.now += after
        self._advance(lambda: self.script.throw(error or StoreUnavailable("refused")))
        return self

    def wait(self, seconds: float | None = None) -> Session:
        """A pause goes by: for so long, or for its shortest."""
        pause = self.expect(Pause)
        length = pause.at_least if seconds is None else seconds
        return self.answer(Paused(length), length)

    def run(self, turns: int = 200) -> Any:
        """Let everything go well until the end; give the outcome."""
        for _ in range(turns):
            if self.is_over:
                return self.outcome
            if isinstance(self.command, Pause):
                self.wait(self.command.draw(lambda: 1.0))
            else:
                self.commit()
        raise AssertionError(f"no end after {turns} turns, at {self.command}")


class Bench:
    """A store, one time for store and processes alike, and short words for what scenarios need."""

    def __init__(self, traits: Traits = SHARED, *, skew: float = 0.0, ttl: float = 10.0, **settings: Any) -> None:
        self.world = World(1)
        self.world.now = 1000.0
        clock = BootClock(0.0, 1.0)
        self.store: SimulatedStore
        if traits.clock is StoreClock.SERVER_EXPIRES:
            self.store = ExpiringStore(self.world, traits, clock)
        else:
            self.store = SimulatedStore(self.world, traits, clock, skew)
        self.traits = traits
        self.settings = Settings.make(ttl=ttl, **settings)
        self._number = 0

    @property
    def now(self) -> float:
        return self.world.now

    @now.setter
    def now(self, value: float) -> None:
        self.world.now = value

    def context(
        self, observations: ObservationCache | None = None, settings: Settings | None = None
    ) -> ProtocolContext:
        """Return the ProtocolContext of a new client, unless an observation cache is shared."""
        return ProtocolContext(
            self.traits, settings or self.settings, ObservationCache() if observations is None else observations
        )

    def want(self, holder: str, *, owner: str | None = None, reclaim: bool = False, **fields: Any) -> AcquireRequest:
        record = Record(holder, self.settings.ttl, owner=owner or holder, lock_delay=self.settings.lock_delay, **fields)
        return AcquireRequest(APT, holder, owner or holder, encode(record), reclaim=reclaim)

    def session(self, script: Script[Any]) -> Session:
        return Session(self, script)

    def asking(
        self,
        want: AcquireRequest | str,
        context: ProtocolContext | None = None,
        *,
        gives_up_at: float = math.inf,
        tries_once: bool = False,
        look_first: bool = False,
    ) -> Session:
        wish = self.want(want) if isinstance(want, str) else want
        return Session(
            self,
            acquire(
                wish,
                context or self.context(),
                gives_up_at=gives_up_at,
                tries_once=tries_once,
                look_first=look_first,
            ),
        )

    def granted(self, holder: str, context: ProtocolContext | None = None, **fields: Any) -> Grant:
        """Acquire the free lock."""
        grant = self.asking(self.want(holder, **fields), context).run()
        assert isinstance(grant, Grant)
        return grant

    def joined(self, lease: LeaseId, nonce: str, context: ProtocolContext | None = None) -> Attached:
        """Attach a member."""
        member = self.attaching(lease, nonce, context).run()
        assert isinstance(member, Attached)
        return member

    def attaching(self, lease: LeaseId, nonce: str, context: ProtocolContext | None = None) -> Session:
        fields = encode(Record(nonce, lease.ttl, owner=nonce))
        return Session(self, attach(lease, nonce, fields, context or self.context()))

    def lease_state(self, grant: Grant, **fields: Any) -> LeaseState:
        return LeaseState(grant.lease, self.settings, grant.deadline, grant.sent_at, **fields)

    def standing(self) -> Entry | None:
        """Return the record under the lock's name."""
        return self.store.entries.get(APT)

    @property
    def holder(self) -> str | None:
        entry = self.standing()
        return None if entry is None else entry.fields["identity"]
