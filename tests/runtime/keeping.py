"""A keeper without an engine, on a clock that does not advance, and replacements of its worker threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from lockstead.events import LockEvent
from lockstead.protocol.acquire import AcquireRequest, Grant
from lockstead.protocol.commands import Script, ask
from lockstead.protocol.context import LeaseId, ProtocolContext
from lockstead.protocol.keeping import NotifyLoss
from lockstead.protocol.lifecycle import LeaseState
from lockstead.protocol.observations import ObservationCache
from lockstead.runtime.engine import Engine
from lockstead.runtime.keeper import Keeper, KeptLease, _referred
from lockstead.runtime.workers import Workers
from lockstead.settings import Settings
from lockstead.values import LeaseOutcome, Name, PreviousLease
from tests.runtime.faulty import Faulty, SetClock

APT = Name("apt")
SETTINGS = Settings.make(ttl=300)


def asked(*commands: Any) -> Script[list[Any]]:
    """Return what each command came to: its reply, or the error that was thrown."""
    replies: list[Any] = []
    for command in commands:
        try:
            replies.append((yield from ask(command)))
        except Exception as error:
            replies.append(error)
    return replies


def decided(keeper: Keeper) -> list[Any]:
    """Return the actions of a round, which are not performed."""
    actions: list[Any] = []
    with keeper._lock:
        keeper._decide(actions)
    return actions


def losses(actions: list[Any]) -> list[KeptLease]:
    """Return whose losses are among the actions."""
    return [kept for one in actions if isinstance(one, NotifyLoss) and (kept := _referred(one.kept)) is not None]


class Told:
    """A keeper, its clock, and what it told of."""

    def __init__(self, store: Faulty | None = None) -> None:
        self.clock = SetClock()
        self.events: list[LockEvent] = []
        self.store = store or Faulty()
        self.keeper = Keeper(self.store, self.clock, self.events.append)

    def lease(self, holder: str = "a", *, is_kept: bool = True) -> KeptLease:
        lease = LeaseId(Name("apt"), holder, "1", 300.0)
        lease_state = LeaseState(lease, SETTINGS, deadline=self.clock.at + 297, renewed_at=self.clock.at)
        kept = KeptLease(lease_state, ProtocolContext(self.store.traits, SETTINGS, ObservationCache()))
        if is_kept:
            self.keeper.keep(kept)
        return kept

    def of(self, kind: type[LockEvent]) -> list[LockEvent]:
        return [event for event in self.events if isinstance(event, kind)]


class Guarding:
    """Notes which thread each loss was found in."""

    def __init__(self) -> None:
        self.fired: list[int | None] = []

    def fire(self, found_in: int | None = None) -> None:
        self.fired.append(found_in)


class Crew:
    """Workers that do nothing until the test does it, and take no job at all if there are none."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None]) -> bool:
        """Note a job."""
        if self.is_there:
            self.jobs.append(job)
        return self.is_there

    def do(self) -> None:
        """Do what was noted."""
        while self.jobs:
            self.jobs.pop(0)()

    def close(self) -> None:
        """End no thread."""


class Still(Told):
    """The same without any thread: the test makes the rounds, and does what the crew and the tellers were given."""

    def __init__(self, store: Faulty | None = None) -> None:
        super().__init__(store)
        self.crew, self.tellers = Crew(), Crew()
        self.keeper._thread = threading.main_thread()
        self.keeper._workers = self.keeper._task_threads = cast(Workers, self.crew)
        self.keeper._callback_threads = cast(Workers, self.tellers)

    def round(self) -> list[KeptLease]:
        """Make a round, and return whose loss it found."""
        actions = decided(self.keeper)
        for action in actions:
            self.keeper._carry_out(action)
        return losses(actions)

    def has_rung(self) -> bool:
        """Return whether the timing thread would have been woken since this was asked last."""
        return self.keeper._changed.take()


class Alone:
    """An engine without a thread, its clock, its crew, and what it told of."""

    def __init__(self, store: Faulty | None = None) -> None:
        self.clock = SetClock()
        self.events: list[LockEvent] = []
        self.store = store or Faulty()
        self.engine = Engine(self.store, self.events.append, self.clock)
        self.crew = Crew()
        self.engine.keeper._thread = threading.main_thread()
        self.engine.keeper._workers = self.engine.keeper._task_threads = cast(Workers, self.crew)

    def want(self, **said: Any) -> AcquireRequest:
        return replace(self.engine.new_request(APT, SETTINGS, reclaim=False), **said)

    def granted(self, want: AcquireRequest, token: int | None = 7) -> Any:
        lease = LeaseId(APT, want.holder, "1", 300.0)
        before = PreviousLease(LeaseOutcome.CLEAN)
        grant = Grant(lease, self.clock.at - 1, self.clock.at + 296, token, before)
        return self.engine.granted(grant, want, self.engine.context(SETTINGS), 3.0)

    def tasks(self) -> list[float]:
        """Return the seconds until each task is due, and forget them."""
        planned = sorted(at - self.clock.at for at, _number, _work in self.engine.keeper._tasks)
        self.engine.keeper._tasks.clear()
        return planned

    def next_chore(self) -> float:
        """Do the task that is due next, and give in how many seconds it was due."""
        at, _number, work = self.engine.keeper._tasks.pop(0)
        work()
        return at - self.clock.at
