"""Fixtures of the tests that run on all stores: a server with a separate space, clients with and without a proxy.

One server of each store serves all tests of a worker; a test must undo what it did to it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import Client, Lease
from lockstead.events import LockEvent, Lost
from lockstead.protocol.commands import TokenSource
from lockstead.stores.bootclock import boot_now
from tests.inventory import SERVED
from tests.runtime.faulty import until
from tests.servers.places import Place, place
from tests.servers.proxy import Fault, Proxy

LOST_AND_CUT = (
    Fault.ANSWER_LOST,
    Fault.CUT_AFTER,
    Fault.CUT_BEFORE,
    Fault.RESET,
    Fault.HALF_OPEN,
    Fault.ANSWER_LATE,
)
"""The faults that tests inject, once, into the request that they are about."""

QUICK: dict[str, Any] = {"request_timeout": 0.5, "backoff_min": 0.05, "backoff_max": 0.3}
LONG_TTL: dict[str, Any] = {"ttl": 30, "renew_every": 0.7, "max_failures": 30, **QUICK}
"""Settings with frequent renewals and a late loss: no false loss is caused by slowness, and a self-wait takes long."""

OUTLASTS: dict[str, Any] = {**LONG_TTL, "ttl": 150, "max_failures": 170}
"""Settings of a lease that outlasts the restart of a killed server, even on a busy machine."""

SHORT_TTL: dict[str, Any] = {"ttl": 6, "renew_every": 1.4, "max_failures": 1, "abort_margin": 1.5, **QUICK}
"""Settings of a lease that expires soon without renewals."""

ENOUGH = 40.0
"""Seconds until a wait fails: long enough for a slow machine."""

WELL_BELOW_TTL = 20.0
"""Seconds, well below LONG_TTL: a client that waits for its own lease waits longer."""


@dataclass(eq=False)
class Told:
    """A client with the events that its listener received."""

    client: Client
    events: list[LockEvent] = field(default_factory=list)

    def losses(self) -> list[Lost]:
        return [event for event in self.events if isinstance(event, Lost)]


class Bench:
    """One test's part of a server: a separate space, and everything that the test opens, closed at its end."""

    def __init__(self, at: Place, space: str, stack: ExitStack) -> None:
        self.place = at
        self.space = space
        self._stack = stack

    @property
    def has_tokens(self) -> bool:
        """Return whether leases on this store have fencing tokens."""
        return self.client()._engine.traits.tokens is not TokenSource.NONE

    def proxy(self) -> Proxy:
        """Start a separate proxy in front of the server."""
        return self._stack.enter_context(Proxy(self.place.ports))

    def url(self, proxy: Proxy | None = None) -> str:
        return self.place.url(self.space, ports=None if proxy is None else proxy.ports)

    def told(self, proxy: Proxy | None = None) -> Told:
        """Open a client with a listener; it has acquired a lock before, so that one-time work of the store is done."""
        events: list[LockEvent] = []
        client = lockstead.connect(self.url(proxy), listener=events.append)
        self._stack.callback(client.close)
        told = Told(client, events)
        for settings in (LONG_TTL, SHORT_TTL):
            client.lock(f"warm-{id(told)}", **settings).acquire(ENOUGH).release()
        events.clear()
        return told

    def client(self, proxy: Proxy | None = None) -> Client:
        return self.told(proxy).client

    def for_each(self, faults: Sequence[Fault], check: Callable[[Fault, Proxy, Told], None]) -> None:
        """Run a check for each fault concurrently, each with its own proxy, client and key."""
        errors: dict[str, BaseException] = {}
        ready = [(fault, proxy := self.proxy(), self.told(proxy)) for fault in faults]

        def run(fault: Fault, proxy: Proxy, told: Told) -> None:
            try:
                check(fault, proxy, told)
            except BaseException as error:
                errors[fault.name] = error

        threads = [threading.Thread(target=run, args=one, daemon=True) for one in ready]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150)
        assert not any(thread.is_alive() for thread in threads), "a check hangs"
        if errors:
            said = "\n".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
            raise AssertionError(said) from next(iter(errors.values()))


def renewed(lease: Lease) -> None:
    """Wait until a renewal that is sent from now on has succeeded."""
    now = boot_now()
    until(lambda: lease._lease_state.renewed_at > now or not lease.is_held, ENOUGH)
    assert lease.is_held, f"lost, {lease.lost_reason}"


def held_by(client: Client, key: str) -> str | None:
    """Return the holder in the store's record; None if the lock is free."""
    seen = client.lock(key).inspect()
    return None if seen is None else seen.holder


def in_background(work: Callable[[], Any]) -> Background:
    """Start a call in a thread."""
    return Background(work)


class Background:
    """A call that runs in a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = ENOUGH) -> Any:
        """Wait for the end of the call; return its result or raise its exception."""
        self._thread.join(seconds)
        assert self.is_over, "it does not end"
        if self._error is not None:
            raise self._error
        return self._result


_NUMBERS = itertools.count()


def _marks(scheme: str) -> list[pytest.MarkDecorator]:
    marker = SERVED[scheme].marker
    return [pytest.mark.xdist_group(scheme), *([getattr(pytest.mark, marker)] if marker else [])]


@pytest.fixture(scope="session", params=[pytest.param(one, marks=_marks(one)) for one in SERVED])
def at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Run the server of each store in turn: tests of one store go to one worker."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    running = place(request.param, folder)
    yield running
    running.stop()


@pytest.fixture
def bench(at: Place) -> Iterator[Bench]:
    """Return a bench with a new space for the test."""
    with ExitStack() as stack:
        yield Bench(at, f"t{os.getpid() % 10_000:x}n{next(_NUMBERS)}", stack)


def elapsed_since(began: float) -> float:
    """Return the seconds since an instant of `time.monotonic`."""
    return time.monotonic() - began
