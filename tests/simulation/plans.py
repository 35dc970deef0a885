"""The plan of a seed: store, settings, processes, faults and accidents. Runs nothing.

There are two scenarios. The long one lasts several ttls, and each kind of fault is enabled in only some of its plans,
so that none hides another. The short one ends its rough part with the fiftieth delivered request, and every kind of
fault is enabled in every run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from random import Random
from typing import Final

from lockstead.protocol.commands import StoreClock, Traits
from lockstead.settings import Settings
from tests.simulation.enforcing import ENFORCED
from tests.simulation.network import ACCIDENTS, KINDS, Faults
from tests.simulation.store import PROFILES
from tests.simulation.worker import Habits

ROUGH_DELIVERED: Final = 50
"""Number of delivered requests that ends the rough part of a short run."""

_ENFORCED_OF, _ENFORCED_AT = 7, (1, 4)
"""Two seeds in seven use a server that expires records itself; the plans of the others do not depend on this."""

LONG_EVERY: Final = 5
"""Every fifth seed is a long run, the others are short."""


class Scenario(Enum):
    """The length of a run, and which faults it has."""

    SHORT = "short"
    LONG = "long"


class Extra(Enum):
    """Additional behaviour in some plans, and the property that must hold."""

    THREADS = "several threads of a process are members of one lease: each keeps all that one alone keeps"
    RESTART = "the store comes back empty: who held may believe for as long as after a removal, and nobody for longer"
    PACED = "the store names its pace and keeps it: whoever was turned away asks no faster than that"
    KEYS = "a process has leases of two keys: it keeps each as if it had no other"
    CONTENDER = "another implementation judges by `expires_at`: if prompt and not ahead, it hits no live lease"


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices of a seed before the first event. Times are in seconds.

    rates: of the processes' clocks and, last, of the store's. skew: of the store's `Date`. lasts: length of the rough
    part, which ends earlier after `delivers` delivered requests (0: only by time). within: all accidents start within
    this time. accidents: number of each of `network.ACCIDENTS`. watches: the store notifies waiters. queues: the store
    keeps a queue. grants_at_most: the longest lifetime that a server which expires records grants (0: any). batch_max:
    renewals in one request. workers: threads of each process that send renewals. sets_clock: seconds by which the
    store's clock is set, once for each item, during the rough part. extra: additional behaviour.
    """

    scenario: Scenario
    traits: Traits
    settings: tuple[Settings, ...]
    rates: tuple[float, ...]
    skew: float
    faults: Faults
    habits: Habits
    lasts: float
    delivers: int
    within: float
    accidents: tuple[int, ...]
    watches: bool
    queues: bool = False
    grants_at_most: float = 0.0
    sets_clock: tuple[float, ...] = ()
    extra: Extra | None = None
    batch_max: int = 1
    workers: int = 32


def scenario_of(seed: int) -> Scenario:
    """Return the default scenario of a seed."""
    return Scenario.LONG if seed % LONG_EVERY == 0 else Scenario.SHORT


def plan_of(
    seed: int, scenario: Scenario | None = None, traits: Traits | None = None, *, is_simulated: bool = True
) -> Plan:
    """Return the plan of a seed. traits: those of the store to use, instead of one of the four kinds.

    is_simulated: False for a real store, whose clock is never set and which loses nothing.
    """
    dice = Random(seed ^ 0xBA7C4)
    plan = _plan_of(seed, scenario, traits, is_simulated=is_simulated)
    habits = replace(plan.habits, forgets=dice.choice((0.0, 0.0, 0.0, 0.3)))
    plan = replace(plan, habits=habits, batch_max=dice.choice((1, 1, 1000)), workers=dice.choice((1, 1, 32)))
    queues = is_simulated and plan.watches and dice.random() < 0.4
    return replace(plan, queues=queues, habits=replace(plan.habits, queues=dice.choice((0.0, 0.0, 0.0, 0.8))))


def _plan_of(seed: int, scenario: Scenario | None, traits: Traits | None, *, is_simulated: bool) -> Plan:
    dice = Random(seed ^ 0x5EED)
    plan = _long(dice) if (scenario or scenario_of(seed)) is Scenario.LONG else _short(dice)
    if traits is None and seed % _ENFORCED_OF in _ENFORCED_AT:
        traits = ENFORCED
    if traits is None or traits.clock is not StoreClock.SERVER_EXPIRES:
        plan = plan if traits is None else replace(plan, traits=traits)
        if not is_simulated:
            return plan
        plan = _set_at_times(plan, Random(seed ^ 0xC10C)) if plan.traits.clock is StoreClock.ONE_CLOCK else plan
        return plan if plan.sets_clock else _with_extra(plan, Random(seed ^ 0xE7A))
    shortest = min(settings.ttl for settings in plan.settings)
    return replace(plan, traits=traits, grants_at_most=Random(seed ^ 0xE7CD).choice((0.0, 0.0, 0.9 * shortest)))


def _set_at_times(plan: Plan, dice: Random) -> Plan:
    """Let the store's clock be set in two plans of five: only back, or also forward.

    It is set back by any time, together with any other faults. It is set forward by hours, which cannot be mistaken for
    drift; then no process dies, because a new process cannot know that the clock was set.
    """
    if dice.random() >= 0.4:
        return plan
    longest = max(settings.ttl for settings in plan.settings)
    sets = [-longest * dice.choice((0.2, 0.7, 2.0, 300.0)) for _ in range(dice.choice((1, 2)))]
    if dice.random() < 0.5:
        return replace(plan, sets_clock=tuple(sets))
    sets.insert(dice.randrange(len(sets) + 1), longest * dice.choice((300.0, 3000.0)))
    accidents = tuple(0 if kind == "kill" else times for kind, times in zip(ACCIDENTS, plan.accidents, strict=True))
    faults = replace(plan.faults, odds=(*plan.faults.odds[:-1], 0.0))
    return replace(plan, sets_clock=tuple(sets), accidents=accidents, faults=faults)


def _with_extra(plan: Plan, dice: Random) -> Plan:
    """Add one of `Extra` to three plans of five."""
    if dice.random() >= 0.4:
        if dice.random() >= 1 / 3:
            return plan
        longest = max(settings.ttl for settings in plan.settings)
        return replace(plan, extra=Extra.KEYS, habits=replace(plan.habits, besides=0.9, work=2 * longest))
    is_dated = plan.traits.clock is StoreClock.TWO_CLOCKS
    extra = dice.choice((Extra.THREADS, Extra.RESTART, *((Extra.PACED, Extra.CONTENDER) if is_dated else ())))
    accidents = dict(zip(ACCIDENTS, plan.accidents, strict=True))
    traits, faults, habits = plan.traits, plan.faults, plan.habits
    match extra:
        case Extra.THREADS:
            habits = replace(habits, threads=0.7, shares=max(0.7, habits.shares))
        case Extra.RESTART:
            accidents["restart"] = dice.choice((1, 2))
        case Extra.PACED:
            traits, faults = replace(traits, pace=1.0), replace(faults, changes_every=1.0)
            habits = replace(habits, draws=0.9, idle=0.1)
        case Extra.CONTENDER:
            accidents |= {"jump": 0, "contender": 1}
            habits = replace(habits, work=2 * max(settings.ttl for settings in plan.settings))
            # no late or duplicated requests: a renewal that arrives after the next one would set `expires_at` back
            faults = replace(
                faults, odds=tuple(0.0 if kind in (1, 3) else odds for kind, odds in enumerate(faults.odds))
            )
    counts = tuple(accidents[kind] for kind in ACCIDENTS)
    return replace(plan, extra=extra, accidents=counts, traits=traits, faults=faults, habits=habits)


@lru_cache(maxsize=1024)
def _settings(ttl: float, drift: float, lock_delay: float, backoff_max: float, margin: float) -> Settings:
    return Settings.make(
        ttl=ttl, drift=drift, lock_delay=lock_delay, backoff_max=backoff_max, abort_margin=ttl * margin
    )


def _rates(dice: Random, count: int, drift: float) -> tuple[float, ...]:
    # the limits of the tolerated drift find more bugs than values in between
    return tuple(1 + drift * dice.choice((-1.0, 1.0, 2 * dice.random() - 1)) for _ in range(count))


# --- long ------------------------------------------------------------------------------------------------------------

_MOODS: Final = ("storm", "frozen", "crowd", "office")
_SKEWS: Final = (0.0, 0.5, -0.5, 1.0, -1.9, 5.0, -5.0, 60.0)


def _long(dice: Random) -> Plan:
    """Return a long plan in one of four moods: lost messages, processes paused for a ttl, many members, operators."""
    choice = dice.choice
    mood = choice(_MOODS)
    drift = choice((0.01, 0.05, 0.1))
    ttls = choice(((12.0, 12.0, 12.0), (12.0, 24.0, 12.0), (24.0, 8.0, 24.0)))
    lock_delay, backoff_max = choice((0.0, 0.0, 0.0, 3.0)), choice((0.2, 0.5, 2.0, 5.0))
    margin = choice((0.01, 1 / 6))
    lasts = max(ttls) * choice((2.0, 4.0))
    is_office = mood == "office"
    accidents = {
        "stop": choice((3, 6)) if mood == "frozen" else dice.randrange(3),
        "kill": choice((1, 3)) if mood == "crowd" else dice.randrange(3),
        "cut": dice.randrange(3),
        "outage": choice((0, 0, 1)),
        "jump": dice.randrange(2),
        "revoke": choice((0, 1, 2)) if is_office else 0,
        "break": choice((0, 1, 2)) if is_office else 0,
        "delete": choice((0, 1)) if is_office else 0,
        "forget": choice((0, 1)) if is_office else 0,
        "damage": choice((0, 0, 1)) if is_office else 0,
        "stranger": choice((0, 0, 1, 2)),
    }
    return Plan(
        scenario=Scenario.LONG,
        traits=choice(PROFILES),
        settings=tuple(_settings(ttl, drift, lock_delay, backoff_max, margin) for ttl in ttls),
        rates=_rates(dice, len(ttls) + 1, drift),
        skew=choice(_SKEWS),
        faults=_faults_of(mood, dice),
        habits=_habits_of(mood, max(ttls), dice),
        lasts=lasts,
        delivers=0,
        within=lasts,
        accidents=tuple(accidents.get(kind, 0) for kind in ACCIDENTS),
        watches=dice.random() < 0.3,
    )


def _faults_of(mood: str, dice: Random) -> Faults:
    odds = [dice.choice((0.0, 0.02, 0.1)) * (1.0 if mood == "storm" else 0.2) for _ in KINDS[:-2]]
    stumbles = (dice.choice((0.01, 0.03)) if mood == "frozen" else 0.0, dice.choice((0.0, 0.0, 0.005)))
    latency = dice.choice((0.005, 0.05, 0.3, 0.6))
    latest = dice.choice((2.0, 20.0, 120.0))
    return Faults((*odds, *stumbles), latency, latest, changes_every=dice.choice((0.0, 0.0, 1.0)))


def _habits_of(mood: str, longest: float, dice: Random) -> Habits:
    choice, is_crowd = dice.choice, mood == "crowd"
    return Habits(
        work=longest * choice((0.1, 0.5) if is_crowd else (0.2, 0.6, 2.0)),
        idle=choice((0.1, 2.0)),
        draws=choice((0.0, 0.9)),
        shares=choice((0.7, 1.0)) if is_crowd else choice((0.0, 0.3)),
        attaches=0.9 if is_crowd else 0.5,
        detaches=choice((0.1, 0.5)) if is_crowd else 0.05,
        gives_up=choice((0.1, 0.6)),
        cancels=choice((0.0, 0.3)),
        reclaims=choice((0.0, 0.9)),
        rivals=choice((0.0, 0.3)),
    )


# --- short -----------------------------------------------------------------------------------------------------------

_SHORT_ACCIDENTS: Final = {
    "stop": (1, 2, 3),
    "kill": (0, 1, 2),
    "cut": (0, 1),
    "outage": (0, 0, 1),
    "jump": (0, 1),
    "revoke": (0, 0, 0, 1),
    "break": (0, 0, 0, 1),
    "delete": (0, 0, 0, 0, 1),
    "forget": (0, 0, 0, 1),
    "damage": (0, 0, 0, 0, 0, 1),
    "stranger": (0, 0, 0, 1),
}
"""The choices for the number of each accident in a short run; every accident is possible in every run."""


def _short(dice: Random) -> Plan:
    """Return a short plan: three processes that work and share briefly; accidents happen in the first two ttls."""
    choice = dice.choice
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
        rates=_rates(dice, len(ttls) + 1, drift),
        skew=choice(_SKEWS),
        faults=Faults(
            (*(few for _ in KINDS[:-2]), choice((0.005, 0.03)), 0.005),
            latency=choice((0.005, 0.05, 0.3, 0.6)),
            latest=choice((2.0, 20.0)),
            changes_every=choice((0.0, 1.0)),
        ),
        habits=Habits(
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
        delivers=ROUGH_DELIVERED,
        within=2 * longest,
        accidents=tuple(choice(_SHORT_ACCIDENTS[kind]) if kind in _SHORT_ACCIDENTS else 0 for kind in ACCIDENTS),
        watches=dice.random() < 0.3,
    )
