"""A store that fails on demand, a clock that is set by hand, and waiting for conditions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lockstead import Client, Lease
from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.events import Listener, LockEvent
from lockstead.protocol.commands import Command, Traits
from lockstead.runtime.engine import Engine
from lockstead.stores.memory import MemoryStore
from lockstead.stores.memory.url import _Opener


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition; the limit is for a broken build, not for a slow machine."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


class Faulty:
    """A memory store that notes every command. before and after are called around each and may raise or block."""

    def __init__(self, inner: MemoryStore | None = None) -> None:
        self.inner = inner or MemoryStore()
        self.seen: list[Command[Any]] = []
        self.before: Callable[[Command[Any]], None] = lambda _command: None
        self.after: Callable[[Command[Any]], None] = lambda _command: None
        self.is_closed = False

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    @property
    def url(self) -> str:
        return self.inner.url

    def perform(self, command: Command[Any], limit: float) -> Any:
        self.seen.append(command)
        self.before(command)
        answer = self.inner.perform(command, limit)
        self.after(command)
        return answer

    def beside(self) -> MemoryStore:
        """Return another store on the same records, as another process would open."""
        return MemoryStore(self.inner._memory)

    def count(self, kind: type[Command[Any]]) -> int:
        return sum(isinstance(command, kind) for command in self.seen)

    def after_fork(self) -> None:
        self.inner.after_fork()

    def close(self) -> None:
        self.is_closed = True
        self.inner.close()


class Watching(Faulty):
    """The same with the memory store's own subscriptions."""

    def subscribe(self, name: Any, on_change: Callable[[bool], None]) -> Any:
        return self.inner.subscribe(name, on_change)


class HangsUntilLimit(Faulty):
    """A store that is silent: every request takes its whole limit and has an unknown outcome, once `hangs` is set."""

    def __init__(self, inner: MemoryStore | None = None) -> None:
        super().__init__(inner)
        self.hangs = threading.Event()
        self.limits: list[float] = []

    def perform(self, command: Command[Any], limit: float) -> Any:
        if self.hangs.is_set():
            self.seen.append(command)
            self.limits.append(limit)
            time.sleep(limit)
            raise OutcomeUnknown(f"silent for {limit:.3g} s")
        return super().perform(command, limit)


class OpensSlowly(_Opener):
    """Opens a store that is silent, in `takes` seconds, as one does whose client library is imported first."""

    def __init__(self) -> None:
        self.takes = 0.0
        self.store = HangsUntilLimit()
        self.store.hangs.set()
        self.opened_in: list[int] = []

    def open(self, store_url: str, client: object | None) -> Any:
        self.opened_in.append(threading.get_ident())
        time.sleep(self.takes)
        return self.store


SLOW: Any = None
"""The opener of a test, which names it in a URL."""


class SetClock:
    """A clock that does not advance until it is set."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1.7e9 + self.at


class Ticking:
    """A client on a clock that is set by hand; its keeper looks at the clock as soon as it was set."""

    def __init__(self, store: Any, told: Listener | None = None) -> None:
        self.clock = SetClock()
        self.client = client_with(store, self.clock, told)

    def pass_by(self, seconds: float) -> None:
        """Let time go by."""
        self.clock.at += seconds
        keeper = self.client._engine.keeper
        with keeper._lock:
            keeper._changed.ring()


def client_with(store: Any, clock: Any, told: Listener | None = None) -> Client:
    """Return a client whose engine reads a clock of the test."""
    client = Client.__new__(Client)
    client._engine = Engine(store, told or (lambda _event: None), clock)
    return client


def refuse(_command: object) -> None:
    raise StoreUnavailable("connection refused")


def lose_answer(_command: object) -> None:
    raise OutcomeUnknown("the answer was lost")


def quiet(_event: LockEvent) -> None:
    """Hear nothing."""


def lost(lease: Lease) -> bool:
    return not lease.is_held
