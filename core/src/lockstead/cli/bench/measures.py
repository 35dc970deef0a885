"""The measurements, each with its floor: the minimal requests that could do the same, by the same client.

Lock and floor are measured alternately, so that a disturbance affects both. Must not know how figures are shown.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from lockstead.cli.bench.keys import Keys
from lockstead.cli.bench.peer import Peer
from lockstead.cli.doctor.prober import PAUSES, Prober
from lockstead.errors import OutcomeUnknown, StoreError
from lockstead.lease import Lease
from lockstead.lock import Client
from lockstead.protocol.commands import Command, Create, Extend, Remove, Snapshot, Traits
from lockstead.protocol.record import Record, encode
from lockstead.protocol.renew import renew
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.runtime.drive import run
from lockstead.runtime.local_queue import ThreadWaker
from lockstead.runtime.run import Limits
from lockstead.settings import Settings
from lockstead.stores.port import Store
from lockstead.values import Name

A = TypeVar("A")

CYCLES_UNTIL: Final = 0.4
RENEWALS_UNTIL: Final = 0.6
"""Fractions of the limit after which no further cycle or renewal is started; the rest is for hand-overs."""

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
    """A store that counts the commands passed to another store; supports neither async nor watching."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.counts: Counter[str] = Counter()

    @property
    def traits(self) -> Traits:
        """The traits of the other store."""
        return self._store.traits

    @property
    def url(self) -> str:
        """The URL of the other store."""
        return self._store.url

    def perform(self, command: Command[A], limit: float) -> A:
        """Count the command and pass it on."""
        self.counts[type(command).__name__] += 1
        return self._store.perform(command, limit)

    def after_fork(self) -> None:
        """Pass the call on."""
        self._store.after_fork()

    def close(self) -> None:
        """Do nothing: the caller that opened the other store closes it."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The parameters of all measurements. count is the maximum number of each.

    began_at is on the boot clock; limit is the number of seconds after which no measurement is started.
    """

    store: Store
    client: Client
    prober: Prober
    keys: Keys
    settings: Mapping[str, Any]
    count: int
    began_at: float
    limit: float

    def turns(self, most: int, share: float) -> Iterator[int]:
        """Yield turn numbers until this share of the limit has passed or `most` is reached; at least one."""
        for turn in range(most):
            if turn and SYSTEM_CLOCK.now() >= self.began_at + share * self.limit:
                return
            yield turn

    def fields(self) -> Mapping[str, str]:
        """Return the fields of a record as large as a lock's."""
        complete = Settings.make(**self.settings)
        return encode(Record(f"{self.keys.owner}/{'0' * 16}", complete.ttl, owner=self.keys.owner))


def cycles(bench: Bench) -> Measure:
    """Measure acquiring and releasing a free lock; the floor is one Create and one Remove."""
    took: list[float] = []
    floor: list[float] = []
    for _ in bench.turns(bench.count, CYCLES_UNTIL):
        floor += _raw_cycle(bench)
        sample(took, partial(_cycle, bench))
    return Measure("cycle", tuple(took), tuple(floor), "Create + Remove")


def _cycle(bench: Bench) -> None:
    key = bench.keys.fresh()
    bench.client.lock(key, **bench.settings).acquire().release()
    bench.keys.closed(key)


def _raw_cycle(bench: Bench) -> list[float]:
    """Create and remove a record; return the seconds of both together, or an empty list if a reply was unclear."""
    name = bench.prober.fresh()
    made: list[Snapshot] = []
    took: list[float] = []
    if not sample(took, lambda: made.append(_created(bench, name))):
        return []
    for pause in (0.0, *PAUSES):
        # some stores refuse a change too soon after another one; only the accepted request counts
        time.sleep(pause)
        if sample(took, partial(_removed, bench, name, made[0].incarnation)):
            return [sum(took)]
    return []


def _removed(bench: Bench, name: Name, incarnation: str) -> None:
    answer = bench.prober.once(Remove(name, incarnation))
    _sure(answer)


def renewals(bench: Bench) -> Measure:
    """Measure renewing a held lease; the floor is one Extend."""
    took: list[float] = []
    floor: list[float] = []
    name = bench.prober.fresh()
    bench.prober.settled(Create(name, bench.fields()))
    made = bench.prober.standing(name)
    key = bench.keys.fresh()
    with bench.client.lock(key, **bench.settings).acquire() as lease:
        for turn in bench.turns(bench.count, RENEWALS_UNTIL):
            if not sample(floor, partial(_extend, bench, name, made.incarnation, turn)):
                time.sleep(PAUSES[0])
            sample(took, partial(_renew, bench, lease, turn))
    bench.keys.closed(key)
    return Measure("renewal", tuple(took), tuple(floor), "Extend")


def _extend(bench: Bench, name: Name, incarnation: str, turn: int) -> None:
    answer = bench.prober.once(Extend(name, {"progress": str(turn)}, incarnation))
    _sure(answer)


def _renew(bench: Bench, lease: Lease, turn: int) -> None:
    engine, lease_state = bench.client._engine, lease._lease_state
    script = renew(lease_state.lease, {"progress": str(turn)}, engine.context(lease_state.settings))
    run(script, engine.store, engine.clock, Limits(lease_state.settings.request_timeout), ThreadWaker())


def hand_overs(bench: Bench, peer: Peer, floor: tuple[float, ...]) -> Measure:
    """Measure from the release of a lock until the waiting peer has acquired it. floor: of a Remove and a Create."""
    took = []
    peer.hears("ready")
    for _ in bench.turns(max(1, bench.count // 2), 1.0):
        key = bench.keys.fresh()
        lease = bench.client.lock(key, **bench.settings).acquire()
        peer.take(key)
        peer.hears("waiting")
        time.sleep(random.uniform(*SETTLED))
        began_at = SYSTEM_CLOCK.now()
        lease.release()
        took.append(float(peer.hears("got")) - began_at)
        peer.hears("gave")
        bench.keys.closed(key)
    return Measure("hand-over", tuple(took), floor, "Remove + Create")


def requests(bench: Bench) -> Mapping[str, int]:
    """Return the number of requests of one cycle, by command."""
    counting = Counting(bench.store)
    with Client(counting, listener=lambda _event: None) as client:
        key = bench.keys.fresh()
        client.lock(key, **bench.settings).acquire().release()
        bench.keys.closed(key)
    return dict(counting.counts)


def sample(into: list[float], job: Callable[[], object]) -> bool:
    """Run a job and append its seconds; return False, appending nothing, if the outcome is unknown (rate limits)."""
    began_at = time.perf_counter()
    try:
        job()
    except OutcomeUnknown:
        return False
    into.append(time.perf_counter() - began_at)
    return True


def _created(bench: Bench, name: Name) -> Snapshot:
    made = bench.prober.once(Create(name, bench.fields()))
    _sure(made)
    if not isinstance(made, Snapshot):
        raise OutcomeUnknown("a record under a fresh name was there already")
    return made


def _sure(answer: object) -> None:
    if isinstance(answer, StoreError):
        raise answer
