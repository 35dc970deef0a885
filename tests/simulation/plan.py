"""The plan of a seed: store, settings, processes, faults and when they happen. Runs nothing.

There are four scenarios. The long one lasts several ttls, and each kind of fault is enabled in only some of its plans,
so that none hides another. The short one ends its faults with the fiftieth delivered request, and every kind of fault
is enabled in every run. The shared one is one of both, with readers besides writers. The pruned one is any of
these, with a process that prunes all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from random import Random
from typing import Final

from lockstead.protocol.commands import StoreClock, Traits
from lockstead.settings import Settings
from lockstead.values import Name
from tests.simulation.expiring import EXPIRING
from tests.simulation.faults import MessageFault, MessageFaults
from tests.simulation.store import PROFILES

KEY: Final = Name("apt")
OTHER_KEY: Final = Name("yum")

FAULTY_DELIVERED: Final = 50
"""Number of delivered requests that ends the faults of a short run."""

_EXPIRING_OF, _EXPIRING_AT = 7, (1, 4)
"""Two seeds in seven use a server that expires records itself; the plans of the others do not depend on this."""

LONG_EVERY: Final = 5
"""Every fifth seed is a long run, the others are short."""


class Scenario(Enum):
    """The length of a run, and which faults it has."""

    SHORT = "short"
    LONG = "long"
    SHARED = "shared"
    PRUNED = "pruned"


class Extra(Enum):
    """Additional behaviour in some plans, and the property that must hold."""

    THREADS = "several threads of a process are members of one lease: each keeps all that one alone keeps"
    RESTART = "the store comes back empty: a holder may remain one for as long as after a removal, and no longer"
    PACED = "the store names its pace and keeps it: a client that was rejected sends no faster than that"
    KEYS = "a process has leases of two keys: it keeps each as if it had no other"
    CONTENDER = "another implementation judges by `expires_at`: if prompt and not ahead, it hits no live lease"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of workers: probabilities, and mean durations in seconds.

    rivals: another thread of the process tries to acquire the held lock. threads: another thread becomes a member.
    other_keys: another thread takes a lock of another key meanwhile. drops: the lease is garbage-collected, and
    released or not. queues: another thread waits for the lock as well. reads: the lock is acquired as a reader.
    downgrades: a writer becomes a reader. old: the last process runs a version that knows no readers.
    """

    work: float = 30.0
    idle: float = 2.0
    draws: float = 0.5
    shares: float = 0.2
    detaches: float = 0.1
    attaches: float = 0.7
    gives_up: float = 0.3
    cancels: float = 0.1
    reclaims: float = 0.5
    rivals: float = 0.0
    threads: float = 0.0
    other_keys: float = 0.0
    drops: float = 0.0
    queues: float = 0.0
    reads: float = 0.0
    downgrades: float = 0.0
    old: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices of a seed before the first event. Times are in seconds.

    rates: of the processes' clocks and, last, of the store's. skew: of the store's `Date`. lasts: length of the phase
    with faults, which ends earlier after `delivers` delivered requests (0: only by time). injected: number of each of
    `faults.INJECTED`. within: they all start within this time. watches: the store notifies waiters. queues: the store
    keeps a queue. grants_at_most: the longest lifetime that a server which expires records grants (0: any). batch_max:
    renewals in one request. workers: threads of each process that send renewals. sets_clock: seconds by which the
    store's clock is set, once for each item. extra: additional behaviour. prunes_every: mean seconds between two rounds
    of a process that prunes (0: none). forgets: it removes records of unclean ends, too.
    """

    scenario: Scenario
    traits: Traits
    settings: tuple[Settings, ...]
    rates: tuple[float, ...]
    skew: float
    message_faults: MessageFaults
    behaviour: Behaviour
    lasts: float
    delivers: int
    within: float
    injected: Mapping[str, int]
    watches: bool
    queues: bool = False
    grants_at_most: float = 0.0
    sets_clock: tuple[float, ...] = ()
    extra: Extra | None = None
    batch_max: int = 1
    workers: int = 32
    prunes_every: float = 0.0
    forgets: bool = False

    @property
    def longest(self) -> float:
        """The longest ttl."""
        return max(settings.ttl for settings in self.settings)


def scenario_of(seed: int) -> Scenario:
    """Return the default scenario of a seed."""
    return Scenario.LONG if seed % LONG_EVERY == 0 else Scenario.SHORT


def plan_of(
    seed: int, scenario: Scenario | None = None, traits: Traits | None = None, *, is_simulated: bool = True
) -> Plan:
    """Return the plan of a seed. traits: those of the store to use, instead of one of the four kinds.

    is_simulated: False for a real store, whose clock is never set and which loses nothing.
    """
    if scenario is Scenario.PRUNED:
        within = (Scenario.SHORT, Scenario.LONG, Scenario.SHARED)[seed % 3]
        plan = plan_of(seed // 3, within, traits, is_simulated=is_simulated)
        rng = Random(seed ^ 0x9A12)
        return replace(
            plan,
            scenario=Scenario.PRUNED,
            delivers=3 * plan.delivers,
            prunes_every=rng.choice((0.2, 1.0, plan.longest / 3)),
            forgets=rng.random() < 0.25,
        )
    if scenario is Scenario.SHARED:
        plan = plan_of(seed, Scenario.LONG if seed % 2 else Scenario.SHORT, traits, is_simulated=is_simulated)
        return _shared(plan, Random(seed ^ 0x5EAD))
    rng = Random(seed ^ 0xBA7C4)
    plan = _plan_of(seed, scenario, traits, is_simulated=is_simulated)
    drops = rng.choice((0.0, 0.0, 0.0, 0.3))
    plan = replace(plan, batch_max=rng.choice((1, 1, 1000)), workers=rng.choice((1, 1, 32)))
    queues = is_simulated and plan.watches and rng.random() < 0.4
    behaviour = replace(plan.behaviour, drops=drops, queues=rng.choice((0.0, 0.0, 0.0, 0.8)))
    return replace(plan, queues=queues, behaviour=behaviour)


def _shared(plan: Plan, rng: Random) -> Plan:
    """Let some of the workers be readers: few, half of them, or nearly all; one may know none."""
    behaviour = replace(
        plan.behaviour,
        reads=rng.choice((0.3, 0.6, 0.9)),
        downgrades=rng.choice((0.0, 0.0, 0.9)),
        old=rng.random() < 0.3,
    )
    settings = (*plan.settings, *(rng.choice(plan.settings) for _ in range(rng.choice((0, 1, 2)))))
    rates = (*plan.rates, *_rates(rng, len(settings) - len(plan.settings), plan.settings[0].drift))
    return replace(plan, scenario=Scenario.SHARED, behaviour=behaviour, settings=settings, rates=rates)


def _plan_of(seed: int, scenario: Scenario | None, traits: Traits | None, *, is_simulated: bool) -> Plan:
    rng = Random(seed ^ 0x5EED)
    plan = _long(rng) if (scenario or scenario_of(seed)) is Scenario.LONG else _short(rng)
    if traits is None and seed % _EXPIRING_OF in _EXPIRING_AT:
        traits = EXPIRING
    if traits is not None:
        plan = replace(plan, traits=traits)
    if plan.traits.clock is StoreClock.SERVER_EXPIRES:
        shortest = min(settings.ttl for settings in plan.settings)
        return replace(plan, grants_at_most=Random(seed ^ 0xE7CD).choice((0.0, 0.0, 0.9 * shortest)))
    if not is_simulated:
        return plan
    if plan.traits.clock is StoreClock.ONE_CLOCK:
        plan = _setting_the_clock(plan, Random(seed ^ 0xC10C))
    return plan if plan.sets_clock else _with_extra(plan, Random(seed ^ 0xE7A))


def _setting_the_clock(plan: Plan, rng: Random) -> Plan:
    """Let the store's clock be set in two plans of five: only back, or also forward.

    It is set back by any time, together with any other faults. It is set forward by hours, which cannot be mistaken for
    drift; then no process dies, because a new process cannot know that the clock was set.
    """
    if rng.random() >= 0.4:
        return plan
    sets = [-plan.longest * rng.choice((0.2, 0.7, 2.0, 300.0)) for _ in range(rng.choice((1, 2)))]
    if rng.random() < 0.5:
        return replace(plan, sets_clock=tuple(sets))
    sets.insert(rng.randrange(len(sets) + 1), plan.longest * rng.choice((300.0, 3000.0)))
    return _without(
        replace(plan, sets_clock=tuple(sets), injected={**plan.injected, "kill": 0}), MessageFault.SENDER_DIES
    )


def _without(plan: Plan, *message_faults: MessageFault) -> Plan:
    faults = plan.message_faults
    odds = {fault: 0.0 if fault in message_faults else odds for fault, odds in faults.odds.items()}
    return replace(plan, message_faults=replace(faults, odds=odds))


def _with_extra(plan: Plan, rng: Random) -> Plan:
    """Add one of `Extra` to three plans of five."""
    behaviour = plan.behaviour
    if rng.random() >= 0.4:
        if rng.random() >= 1 / 3:
            return plan
        return replace(plan, extra=Extra.KEYS, behaviour=replace(behaviour, other_keys=0.9, work=2 * plan.longest))
    is_dated = plan.traits.clock is StoreClock.TWO_CLOCKS
    extra = rng.choice((Extra.THREADS, Extra.RESTART, *((Extra.PACED, Extra.CONTENDER) if is_dated else ())))
    plan = replace(plan, extra=extra)
    match extra:
        case Extra.THREADS:
            return replace(plan, behaviour=replace(behaviour, threads=0.7, shares=max(0.7, behaviour.shares)))
        case Extra.RESTART:
            return replace(plan, injected={**plan.injected, "empty": rng.choice((1, 2))})
        case Extra.PACED:
            return replace(
                plan,
                traits=replace(plan.traits, pace=1.0),
                message_faults=replace(plan.message_faults, changes_every=1.0),
                behaviour=replace(behaviour, draws=0.9, idle=0.1),
            )
        case _:
            behaviour = replace(behaviour, work=2 * plan.longest)
            plan = replace(plan, behaviour=behaviour, injected={**plan.injected, "jump": 0, "contend": 1})
            # no late or duplicated requests: a renewal that arrives after the next one would set `expires_at` back
            return _without(plan, MessageFault.REQUEST_LATE, MessageFault.DUPLICATED)


@lru_cache(maxsize=1024)
def _settings(ttl: float, drift: float, lock_delay: float, backoff_max: float, margin: float) -> Settings:
    return Settings.make(
        ttl=ttl, drift=drift, lock_delay=lock_delay, backoff_max=backoff_max, abort_margin=ttl * margin
    )


def _rates(rng: Random, count: int, drift: float) -> tuple[float, ...]:
    # the limits of the tolerated drift find more bugs than values in between
    return tuple(1 + drift * rng.choice((-1.0, 1.0, 2 * rng.random() - 1)) for _ in range(count))


# --- long ------------------------------------------------------------------------------------------------------------

_FOCUSES: Final = ("messages", "pauses", "members", "operators")
_SKEWS: Final = (0.0, 0.5, -0.5, 1.0, -1.9, 5.0, -5.0, 60.0)


def _long(rng: Random) -> Plan:
    """Return a long plan with one focus: lost messages, processes paused for a ttl, many members, operators."""
    choice = rng.choice
    focus = choice(_FOCUSES)
    drift = choice((0.01, 0.05, 0.1))
    ttls = choice(((12.0, 12.0, 12.0), (12.0, 24.0, 12.0), (24.0, 8.0, 24.0)))
    lock_delay, backoff_max = choice((0.0, 0.0, 0.0, 3.0)), choice((0.2, 0.5, 2.0, 5.0))
    margin = choice((0.01, 1 / 6))
    lasts = max(ttls) * choice((2.0, 4.0))
    has_operators = focus == "operators"
    injected = {
        "pause": choice((3, 6)) if focus == "pauses" else rng.randrange(3),
        "kill": choice((1, 3)) if focus == "members" else rng.randrange(3),
        "isolate": rng.randrange(3),
        "outage": choice((0, 0, 1)),
        "jump": rng.randrange(2),
        "revoke": choice((0, 1, 2)) if has_operators else 0,
        "break": choice((0, 1, 2)) if has_operators else 0,
        "delete": choice((0, 1)) if has_operators else 0,
        "delete_companion": choice((0, 1)) if has_operators else 0,
        "damage": choice((0, 0, 1)) if has_operators else 0,
        "foreign": choice((0, 0, 1, 2)),
    }
    return Plan(
        scenario=Scenario.LONG,
        traits=choice(PROFILES),
        settings=tuple(_settings(ttl, drift, lock_delay, backoff_max, margin) for ttl in ttls),
        rates=_rates(rng, len(ttls) + 1, drift),
        skew=choice(_SKEWS),
        message_faults=_long_faults(focus, rng),
        behaviour=_long_behaviour(focus, max(ttls), rng),
        lasts=lasts,
        delivers=0,
        within=lasts,
        injected=injected,
        watches=rng.random() < 0.3,
    )


def _long_faults(focus: str, rng: Random) -> MessageFaults:
    odds = [rng.choice((0.0, 0.02, 0.1)) * (1.0 if focus == "messages" else 0.2) for _ in range(len(MessageFault) - 2)]
    odds += [rng.choice((0.01, 0.03)) if focus == "pauses" else 0.0, rng.choice((0.0, 0.0, 0.005))]
    return MessageFaults(
        dict(zip(MessageFault, odds, strict=True)),
        latency=rng.choice((0.005, 0.05, 0.3, 0.6)),
        latest=rng.choice((2.0, 20.0, 120.0)),
        changes_every=rng.choice((0.0, 0.0, 1.0)),
    )


def _long_behaviour(focus: str, longest: float, rng: Random) -> Behaviour:
    choice, has_members = rng.choice, focus == "members"
    return Behaviour(
        work=longest * choice((0.1, 0.5) if has_members else (0.2, 0.6, 2.0)),
        idle=choice((0.1, 2.0)),
        draws=choice((0.0, 0.9)),
        shares=choice((0.7, 1.0)) if has_members else choice((0.0, 0.3)),
        attaches=0.9 if has_members else 0.5,
        detaches=choice((0.1, 0.5)) if has_members else 0.05,
        gives_up=choice((0.1, 0.6)),
        cancels=choice((0.0, 0.3)),
        reclaims=choice((0.0, 0.9)),
        rivals=choice((0.0, 0.3)),
    )


# --- short -----------------------------------------------------------------------------------------------------------

_SHORT_INJECTED: Final = {
    "pause": (1, 2, 3),
    "kill": (0, 1, 2),
    "isolate": (0, 1),
    "outage": (0, 0, 1),
    "jump": (0, 1),
    "revoke": (0, 0, 0, 1),
    "break": (0, 0, 0, 1),
    "delete": (0, 0, 0, 0, 1),
    "delete_companion": (0, 0, 0, 1),
    "damage": (0, 0, 0, 0, 0, 1),
    "foreign": (0, 0, 0, 1),
}
"""The choices for the number of each fault in a short run; every one is possible in every run."""


def _short(rng: Random) -> Plan:
    """Return a short plan: three processes that work and share briefly; faults happen in the first two ttls."""
    choice = rng.choice
    drift = choice((0.01, 0.05, 0.1))
    ttls = choice(((12.0, 12.0, 12.0), (12.0, 24.0, 12.0)))
    backoff_max = choice((2.0, 5.0))
    lock_delay, margin = choice((0.0, 0.0, 0.0, 3.0)), choice((0.01, 1 / 6))
    longest = max(ttls)
    few = choice((0.005, 0.01, 0.03))
    return Plan(
        scenario=Scenario.SHORT,
        traits=choice(PROFILES),
        settings=tuple(_settings(ttl, drift, lock_delay, backoff_max, margin) for ttl in ttls),
        rates=_rates(rng, len(ttls) + 1, drift),
        skew=choice(_SKEWS),
        message_faults=MessageFaults(
            {
                **dict.fromkeys(MessageFault, few),
                MessageFault.SENDER_PAUSES: choice((0.005, 0.03)),
                MessageFault.SENDER_DIES: 0.005,
            },
            latency=choice((0.005, 0.05, 0.3, 0.6)),
            latest=choice((2.0, 20.0)),
            changes_every=choice((0.0, 1.0)),
        ),
        behaviour=Behaviour(
            work=longest * choice((0.1, 0.3, 1.0)),
            idle=choice((0.1, 1.0)),
            draws=choice((0.2, 0.9)),
            shares=choice((0.3, 1.0)),
            attaches=0.7,
            detaches=choice((0.05, 0.3)),
            gives_up=0.3,
            cancels=choice((0.05, 0.3)),
            reclaims=choice((0.2, 0.9)),
            rivals=choice((0.05, 0.3)),
        ),
        lasts=40 * longest,
        delivers=FAULTY_DELIVERED,
        within=2 * longest,
        injected={fault: choice(times) for fault, times in _SHORT_INJECTED.items()},
        watches=rng.random() < 0.3,
    )
