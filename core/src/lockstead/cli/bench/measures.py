"""The measurements, each with its floor: the minimal requests that could do the same, by the same client.

Lock and floor are measured alternately, so that a disturbance affects both. Must not know how figures are shown.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from lockstead.cli.doctor.prober import PAUSES, Prober, attempts
from lockstead.errors import OutcomeUnknown, StoreError
from lockstead.events import LockEvent, Waiting
from lockstead.lease import Lease
from lockstead.lock import Client
from lockstead.protocol.commands import Command, Create, Extend, Read, Remove, Snapshot
from lockstead.protocol.record import Record, encode
from lockstead.protocol.renew import renew
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.runtime.drive import run
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.stores.port import Store
from lockstead.values import BENCH_PREFIX, Name

A = TypeVar("A")

CYCLES_UNTIL: Final = 0.4
RENEWALS_UNTIL: Final = 0.6
"""Fractions of the limit after which no further cycle or renewal is started; the rest is for hand-overs."""

PATIENCE: Final = 60.0
"""Seconds that one hand-over may take."""

SETTLED: Final = (0.02, 0.06)
"""Seconds (minimum, maximum) between the peer's first attempt and the release, so that the peer is waiting."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The durations of one operation, and of the minimal requests that could do the same; in seconds."""

    name: str
    took: tuple[float, ...]
    floor: tuple[float, ...]
    of_floor: str
    """The requests of the floor."""


class Counting:
    """A store that counts the commands passed to another store, which it leaves open; without async and watching."""

    def __init__(self, store: Store) -> None:
        self.traits, self.url, self.after_fork = store.traits, store.url, store.after_fork
        self._store = store
        self.counts: Counter[str] = Counter()

    def perform(self, command: Command[A], limit: float) -> A:
        """Count the command and pass it on."""
        self.counts[type(command).__name__] += 1
        return self._store.perform(command, limit)

    def close(self) -> None:
        """Do nothing."""


class Bench:
    """The measurements of one store, under fresh random keys. count is the maximum number of samples of each.

    began_at is on the boot clock; limit is the number of seconds after which no measurement is started.
    """

    def __init__(
        self, store: Store, prober: Prober, settings: Mapping[str, Any], count: int, began_at: float, limit: float
    ) -> None:
        self._nonce = os.urandom(8).hex()
        self._owner = f"{BENCH_PREFIX}/{self._nonce}"
        self._store = store
        self._prober = prober
        self._settings = {**settings, "owner": self._owner}
        self._count = count
        self._began_at = began_at
        self._limit = limit
        self._keys = 0
        # the keys whose lock may still be held
        self._open: dict[str, None] = {}

    # --- the measurements ----------------------------------------------------------------------------------------

    def requests(self) -> Mapping[str, int]:
        """Return the number of requests of one cycle, by command."""
        counting = Counting(self._store)
        with Client(counting) as client:
            self._cycle(client)
        return dict(counting.counts)

    def cycles(self, client: Client) -> Measure:
        """Measure acquiring and releasing a free lock; the floor is one Create and one Remove."""
        took: list[float] = []
        floor: list[float] = []
        for _ in self._turns(self._count, CYCLES_UNTIL):
            floor += self._bare_cycle()
            sample(took, partial(self._cycle, client))
        return Measure("cycle", tuple(took), tuple(floor), "Create + Remove")

    def renewals(self, client: Client) -> Measure:
        """Measure renewing a held lease; the floor is one Extend."""
        took: list[float] = []
        floor: list[float] = []
        name = self._prober.fresh()
        self._prober.settled(Create(name, self._fields()))
        made = self._prober.standing(name)
        key = self._fresh()
        with client.lock(key, **self._settings).acquire() as lease:
            for turn in self._turns(self._count, RENEWALS_UNTIL):
                fields = {"progress": str(turn)}
                if not sample(floor, partial(self._once, Extend(name, fields, made.incarnation))):
                    time.sleep(PAUSES[0])
                sample(took, partial(_renew, client, lease, fields))
        self._open.pop(key)
        return Measure("renewal", tuple(took), tuple(floor), "Extend")

    def hand_overs(self, client: Client, store: Store, floor: tuple[float, ...]) -> Measure:
        """Measure from the release of a lock until a waiting client has acquired it. floor: of a Remove and a Create.

        store: of the other client, which waits in a thread, and which is closed at the end.
        """
        took: list[float] = []
        waits = threading.Event()

        def listen(event: LockEvent) -> None:
            if isinstance(event, Waiting):
                waits.set()

        # the client is closed first, which ends its wait
        with ThreadPoolExecutor(1) as pool, Client(store, listener=listen) as peer:
            for _ in self._turns(max(1, self._count // 2), 1.0):
                waits.clear()
                key = self._fresh()
                lease = client.lock(key, **self._settings).acquire()
                acquired_at = pool.submit(self._acquired_at, peer, key)
                acquired_at.add_done_callback(lambda _failed: waits.set())
                if not waits.wait(PATIENCE):
                    raise OutcomeUnknown(f"the waiting client made no attempt within {PATIENCE:g} s")
                time.sleep(random.uniform(*SETTLED))
                began_at = SYSTEM_CLOCK.now()
                lease.release()
                took.append(acquired_at.result() - began_at)
                self._open.pop(key)
        return Measure("hand-over", tuple(took), floor, "Remove + Create")

    # --- one sample ----------------------------------------------------------------------------------------------

    def _cycle(self, client: Client) -> None:
        key = self._fresh()
        client.lock(key, **self._settings).acquire().release()
        self._open.pop(key)

    def _bare_cycle(self) -> list[float]:
        """Create and remove a record; return the seconds of both together, or an empty list if a reply was unclear."""
        name = self._prober.fresh()
        made: list[Any] = []
        took: list[float] = []
        if not sample(took, lambda: made.append(self._once(Create(name, self._fields())))):
            return []
        if not isinstance(made[0], Snapshot):
            raise OutcomeUnknown("a record under a fresh name was there already")
        for _pause in attempts():
            # only the accepted request counts
            if sample(took, partial(self._once, Remove(name, made[0].incarnation))):
                return [sum(took)]
        return []

    def _once(self, command: Command[A]) -> A:
        answer = self._prober.once(command)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _acquired_at(self, client: Client, key: str) -> float:
        """Acquire and release a key; return the instant between the two."""
        lease = client.lock(key, **self._settings).acquire(PATIENCE)
        acquired_at = SYSTEM_CLOCK.now()
        lease.release()
        return acquired_at

    def _turns(self, most: int, share: float) -> Iterator[int]:
        """Yield turn numbers until this share of the limit has passed or `most` is reached; at least one."""
        for turn in range(most):
            if turn and SYSTEM_CLOCK.now() >= self._began_at + share * self._limit:
                return
            yield turn

    def _fields(self) -> Mapping[str, str]:
        """Return the fields of a record as large as a lock's."""
        ttl = Settings.make(**self._settings).ttl
        return encode(Record(f"{self._owner}/{'0' * 16}", ttl, owner=self._owner))

    # --- keys ----------------------------------------------------------------------------------------------------

    def _fresh(self) -> str:
        """Return a key that was never used before."""
        self._keys += 1
        key = f"{BENCH_PREFIX}-{self._nonce}-{self._keys}"
        self._open[key] = None
        return key

    def clean(self, limit: float) -> None:
        """Remove what this run has written; limit is seconds per request. If that fails, the ttl ends the locks."""
        for key in list(self._open):
            with suppress(StoreError):
                seen = self._store.perform(Read(Name(key)), limit)
                if isinstance(seen, Snapshot) and self._owner in seen.fields.get("owner", ""):
                    self._store.perform(Remove(Name(key), seen.incarnation), limit)
                del self._open[key]
        self._prober.clean()


def _renew(client: Client, lease: Lease, fields: Mapping[str, str]) -> None:
    engine, lease_state = client._engine, lease._lease_state
    script = renew(lease_state.lease, fields, engine.context(lease_state.settings))
    run(script, engine.store, engine.clock, Limits(lease_state.settings.request_timeout), ThreadWaker())


def sample(into: list[float], job: Callable[[], object]) -> bool:
    """Run a job and append its seconds; return False, appending nothing, if the outcome is unknown (rate limits)."""
    began_at = time.perf_counter()
    try:
        job()
    except OutcomeUnknown:
        return False
    into.append(time.perf_counter() - began_at)
    return True
