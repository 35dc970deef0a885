"""Playing many seeds on all cores, and the report: failures, speed, and the count of every kind of fault.

Must not know what happens in a run. A kind of fault that never happens is reported as 0.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from operator import add
from typing import Final

from tests.simulation.network import FAULTS
from tests.simulation.plans import Scenario
from tests.simulation.scenario import Run, play

CHUNK: Final = 250
"""Number of seeds that one process plays before it reports."""


@dataclass(slots=True)
class Tally:
    """The sums over the runs of one scenario. took: seconds of CPU time. fewest: fewest messages of any run."""

    runs: int = 0
    delivered: int = 0
    answered: int = 0
    fewest: int | None = None
    grants: int = 0
    losses: int = 0
    tokens: int = 0
    took: float = 0.0
    faults: list[int] = field(default_factory=lambda: [0] * len(FAULTS))
    failed: list[tuple[int, str]] = field(default_factory=list)

    def count(self, run: Run, took: float) -> None:
        """Count one run."""
        self.runs += 1
        self.delivered += run.delivered
        self.answered += run.answered
        self.grants += run.grants
        self.losses += run.losses
        self.tokens += run.tokens
        self.took += took
        self.faults = list(map(add, self.faults, run.faults))
        if run.violation is not None:
            self.failed.append((run.seed, run.violation))
        elif self.fewest is None or run.delivered + run.answered < self.fewest:
            self.fewest = run.delivered + run.answered

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.runs += other.runs
        self.delivered += other.delivered
        self.answered += other.answered
        self.grants += other.grants
        self.losses += other.losses
        self.tokens += other.tokens
        self.took += other.took
        self.faults = list(map(add, self.faults, other.faults))
        self.failed += other.failed
        known = [fewest for fewest in (self.fewest, other.fewest) if fewest is not None]
        self.fewest = min(known, default=None)


Tallies = dict[Scenario, Tally]


def play_all(seeds: range, scenario: Scenario | None, jobs: int) -> Iterator[Tallies]:
    """Play seeds in `jobs` processes; yield the sums of each chunk as soon as it is done."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    work = partial(play_chunk, scenario)
    if jobs == 1 or len(chunks) == 1:
        yield from map(work, chunks)
        return
    # spawn, not fork: the caller may have threads
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=gc.freeze) as pool:
        yield from pool.map(work, chunks)


def play_chunk(scenario: Scenario | None, seeds: range) -> Tallies:
    """Play some seeds in this process."""
    # the garbage collector keeps its default thresholds: with rarer collections, the objects have left the CPU caches
    # by then, which takes a fifth more time
    tallies: Tallies = {}
    clock: Callable[[], float] = time.process_time
    before = clock()
    for seed in seeds:
        run = play(seed, scenario)
        now = clock()
        tallies.setdefault(run.scenario, Tally()).count(run, now - before)
        before = now
    return tallies


def cores() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shown(tallies: Tallies, took: float) -> Iterable[str]:
    """Return the lines of the report. took: seconds from the first run to the last."""
    runs = sum(tally.runs for tally in tallies.values())
    failed = sum(len(tally.failed) for tally in tallies.values())
    yield f"{runs} runs, {failed} failed, in {took:.1f} s: {runs / took:.0f} runs a second"
    for scenario, tally in tallies.items():
        each = tally.runs
        yield (
            f"  {scenario.value:<5} {each} runs, {each / tally.took:.0f} a second and core; delivered in a run: "
            f"{tally.delivered / each:.1f} requests and {tally.answered / each:.1f} answers, {tally.fewest} in the "
            f"poorest; {tally.grants / each:.2f} beliefs, {tally.losses / each:.2f} losses, "
            f"{tally.tokens / each:.2f} tokens"
        )
    yield "  faults " + " ".join(f"{scenario.value:>9}" for scenario in tallies)
    for number, kind in enumerate(FAULTS):
        yield "         " + " ".join(f"{tally.faults[number]:>9}" for tally in tallies.values()) + f"  {kind}"
