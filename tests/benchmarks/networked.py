"""The cost of a lock on each store with a server: a cycle, a hand-over, the renewals of a thousand leases.

This module chooses the peers of each store and the goals; others measure. A peer that cannot run here is a row that
says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lockstead.stores.url import OURS as OUR_SCHEMES
from tests.benchmarks import running
from tests.benchmarks.figures import Row, Size, Work, compared, middle, paired
from tests.benchmarks.handing import Other, waiting
from tests.benchmarks.keeping import Keeping
from tests.benchmarks.peers import Acquire, opened
from tests.benchmarks.running import Running

OURS: Final = "lockstead"

PHASES: Final = (0.03, 0.13)
"""Seconds that the other waits before a release: a whole period of the peer that polls every 0.1 s, and no less."""

SLOW: Final = 0.2
"""Seconds of a hand-over from which a peer is measured in one round of ten only."""

Taken = dict[str, dict[int, float]]
"""Who took how many seconds in which round."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: the peer to compare with (none: an absolute goal), and the maximum in milliseconds or as a ratio."""

    against: str
    limit: float
    of_ratio: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """One store: who is measured beside ours, and the goals. floor is the one that does the least there is to do."""

    name: str
    scheme: str
    run: Callable[[], AbstractContextManager[Running]]
    floor: str
    peers: Sequence[str]
    waiting_peers: Sequence[str]
    cycle_goals: Sequence[Goal]
    hand_over_goals: Sequence[Goal]
    a_cycle: Mapping[str, float] = field(default_factory=dict)
    """Maximum number of requests of one cycle, by kind."""
    a_round: Mapping[str, float] = field(default_factory=dict)
    """Maximum number of requests to renew all leases of a process once, by kind."""


REDIS = Measured(
    "Redis",
    "redis",
    running.redis,
    "SET and DEL",
    ["redis-py", "python-redis-lock", "sherlock"],
    ["redis-py", "python-redis-lock"],
    [Goal("redis-py", 1.1)],
    [Goal("", 1.0, of_ratio=False), Goal("redis-py", 1 / 30)],
    a_cycle={"reads": 2},
    # a pipeline is read in pieces of 16 KiB: what counts is that it is not one read for each lease
    a_round={"reads": 100},
)
REDLOCK = Measured(
    "Redlock of five",
    "redlock",
    running.redlock,
    "SET and DEL on each in turn",
    ["pottery"],
    [],
    [Goal("pottery", 0.7)],
    [],
)
ETCD = Measured(
    "etcd",
    "etcd",
    running.etcd,
    "one transaction and one delete",
    ["etcd-sdk-python", "tooz", "etcd3gw"],
    ["etcd-sdk-python", "tooz"],
    [Goal("etcd-sdk-python", 1.0), Goal("tooz", 1.0)],
    [Goal("", 4.0, of_ratio=False)],
    a_cycle={"raft writes": 2},
    a_round={"LeaseKeepAlive": 1, "Range": 1},
)
POSTGRES = Measured(
    "PostgreSQL",
    "postgresql",
    running.postgres,
    "advisory lock",
    ["pals"],
    ["advisory lock", "pals"],
    [Goal("advisory lock", 2.0)],
    [Goal("", 3.0, of_ratio=False)],
    a_cycle={"statements": 2},
    a_round={"statements": 1},
)
ZOOKEEPER = Measured(
    "ZooKeeper",
    "zk",
    running.zookeeper,
    "one create and one delete",
    ["kazoo"],
    ["kazoo"],
    [Goal("kazoo", 1.2)],
    [Goal("kazoo", 1.2)],
)


def rows(store: Measured, size: Size) -> Iterator[Row]:
    """Measure a store on a server of its own."""
    with store.run() as server:
        yield from cycles(store, server, size)
        yield from requests(store, server)
        yield from hand_overs(store, server, size)
        yield from leases(store, server, size)


# --- cycles ---------------------------------------------------------------------------------------------------------


def cycles(store: Measured, server: Running, size: Size) -> Iterator[Row]:
    """Measure an uncontended cycle of ours, of the peers and of the floor, in turn."""
    what = f"{store.name}: cycle, p50"
    with ExitStack() as stack:
        works, absent = _works([OURS, *store.peers, store.floor], server, stack)
        taken = in_turn(works, size.rounds_networked, size.times_networked)
    yield from _beside(what, taken, [*store.peers, store.floor], store.cycle_goals, "µs", absent)


def _works(kinds: Sequence[str], server: Running, stack: ExitStack) -> tuple[dict[str, Work], dict[str, str]]:
    """Open locks; give what each does, and why some of the peers cannot."""
    works: dict[str, Work] = {}
    absent: dict[str, str] = {}
    for kind in kinds:
        try:
            acquire = stack.enter_context(opened(kind, server.url if kind == OURS else server.where))
            acquire()()
        except Exception as error:
            if kind == OURS:
                raise
            absent[kind] = _in_short(error)
        else:
            works[kind] = partial(_cycle, acquire)
    return works, absent


def _cycle(acquire: Acquire) -> None:
    acquire()()


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]


def in_turn(works: Mapping[str, Work], rounds: int, times: int) -> Taken:
    """Give, for each, the median of each round; another one begins each time."""
    taken: Taken = {kind: {} for kind in works}
    kinds = list(works)
    for kind in kinds:
        middle(works[kind], times)
    for number in range(rounds):
        first = number % len(kinds)
        for kind in kinds[first:] + kinds[:first]:
            taken[kind][number] = middle(works[kind], times)
    return taken


def _beside(
    what: str,
    taken: Taken,
    others: Sequence[str],
    goals: Sequence[Goal],
    unit: str,
    absent: Mapping[str, str],
) -> Iterator[Row]:
    """Return the rows that compare ours with each peer, and those of absolute goals."""
    scale = {"µs": 1e6, "ms": 1e3}[unit]
    mine = taken[OURS]
    ours = statistics.median(mine.values()) * scale
    for goal in goals:
        if not goal.of_ratio:
            yield Row(what, ours, unit, goal.limit)
    limits = {goal.against: goal.limit for goal in goals if goal.of_ratio}
    for kind in others:
        limit = limits.get(kind)
        if kind in absent:
            against = f"{kind}, which cannot run here: {absent[kind]}"
            yield Row(what, ours, unit, None, against)
        else:
            theirs = taken[kind]
            pair = paired([mine[number] for number in theirs], list(theirs.values()))
            yield compared(what, pair, kind, limit, unit)


# --- requests to the server --------------------------------------------------------------------------------------

COUNTED: Final = 20


def requests(store: Measured, server: Running) -> Iterator[Row]:
    """Count the requests of a cycle."""
    if not store.a_cycle:
        return
    with opened(OURS, server.url) as acquire, server.logged():
        acquire()()
        asked = difference(server, lambda: [acquire()() for _ in range(COUNTED)])
    for kind, limit in store.a_cycle.items():
        yield Row(f"{store.name}: {kind} of a cycle", asked.get(kind, 0) / COUNTED, kind, limit)


def difference(server: Running, work: Work) -> dict[str, int]:
    """Count the requests during a call, without those of the counting itself."""
    idle = server.counts()
    before = server.counts()
    work()
    after = server.counts()
    counting = {kind: number - idle.get(kind, 0) for kind, number in before.items()}
    return {kind: number - before.get(kind, 0) - counting.get(kind, 0) for kind, number in after.items()}


# --- hand-overs -----------------------------------------------------------------------------------------------------


def hand_overs(store: Measured, server: Running, size: Size) -> Iterator[Row]:
    """Measure hand-overs of ours and of those peers that wait, in turn."""
    if not store.hand_over_goals:
        return
    what = f"{store.name}: hand-over"
    with ExitStack() as stack:
        others, absent = _others([OURS, *store.waiting_peers], server, stack)
        taken = handed_over_in_turn(others, size.hand_overs)
    yield from _beside(f"{what}, p50", taken, store.waiting_peers, store.hand_over_goals, "ms", absent)
    for kind in taken:
        if kind != OURS:
            ours, theirs = late(taken[OURS].values()), late(taken[kind].values())
            yield Row(f"{what}, p99", ours * 1e3, "ms", None, kind, theirs * 1e3, ours / theirs)


def _others(kinds: Sequence[str], server: Running, stack: ExitStack) -> tuple[dict[str, Other], dict[str, str]]:
    others: dict[str, Other] = {}
    absent: dict[str, str] = {}
    for kind in kinds:
        try:
            other = stack.enter_context(waiting(kind, server.url if kind == OURS else server.where))
            other.handed_over(PHASES)
        except Exception as error:
            if kind == OURS:
                raise
            absent[kind] = _in_short(error)
        else:
            others[kind] = other
    return others, absent


def handed_over_in_turn(others: Mapping[str, Other], rounds: int) -> Taken:
    """Give, for each, the seconds of its hand-overs by round. Who is slow takes part in one round of ten."""
    taken: Taken = {kind: {} for kind in others}
    slow: set[str] = set()
    for number in range(rounds):
        for kind, other in others.items():
            if kind in slow and number % 10:
                continue
            taken[kind][number] = other.handed_over(PHASES)
            if taken[kind][number] > SLOW and kind != OURS:
                slow.add(kind)
    return taken


def late(seconds: Iterable[float]) -> float:
    """Return what one in a hundred exceeds; the greatest where there are fewer."""
    ordered = sorted(seconds)
    return ordered[-1 - len(ordered) // 100]


# --- a thousand leases ----------------------------------------------------------------------------------------------

ROUNDS: Final = 2


def leases(store: Measured, server: Running, size: Size) -> Iterator[Row]:
    """Count the requests while all leases of one process are renewed, and measure their memory."""
    what = f"{store.name}: {size.leases_networked:,} leases"
    with Keeping(server.url, size.leases_networked, size.ttl_networked) as keeping, server.logged():
        # once round, they have come to be renewed together
        begun = keeping.until(lambda renewals: renewals >= size.leases_networked)
        spent: list[int] = []

        def renewed() -> None:
            spent.append(keeping.until(lambda now: now >= begun + ROUNDS * size.leases_networked) - begun)

        asked = difference(server, renewed)
    rounds = max(spent[0], 1) / size.leases_networked
    yield Row(f"{what}: lost", keeping.lost, "leases", 0)
    for kind, number in asked.items():
        if number > 0 or kind in store.a_round:
            # a lease that was renewed once more or less makes a hundredth, and no request
            yield Row(f"{what}: {kind} to renew all", round(number / rounds, 1), "", store.a_round.get(kind))
    yield Row(f"{what}: memory each", keeping.bytes_each / 1024, "KiB", None)


BENCHMARKS: Final = {
    name: partial(rows, store)
    for name, store in {
        "redis": REDIS,
        "redlock": REDLOCK,
        "etcd": ETCD,
        "postgres": POSTGRES,
        "zookeeper": ZOOKEEPER,
    }.items()
    if store.scheme in OUR_SCHEMES
}
