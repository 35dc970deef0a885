"""Playing many seeds on all cores, and the report: failures, speed, and the count of every kind of fault.

Must not know what happens in a run. A kind of fault that never happens is reported as 0.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Final

from tests.simulation.faults import FAULTS
from tests.simulation.plan import Scenario
from tests.simulation.run import Run, play

CHUNK: Final = 250
"""Number of seeds that one process plays before it reports."""

COUNTED: Final = ("delivered", "answered", "grants", "losses", "tokens")


@dataclass(slots=True)
class Totals:
    """The sums over the runs of one scenario. took: seconds of CPU time. counts: of each of `COUNTED`."""

    runs: int = 0
    took: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def count(self, run: Run, took: float) -> None:
        """Count one run."""
        self.runs += 1
        self.took += took
        self.counts.update({what: getattr(run, what) for what in COUNTED})
        self.faults.update(run.faults)
        if run.violation is not None:
            self.failed.append((run.seed, run.violation))

    def add(self, other: Totals) -> None:
        """Add other totals."""
        self.runs += other.runs
        self.took += other.took
        self.counts += other.counts
        self.faults += other.faults
        self.failed += other.failed


TotalsByScenario = dict[Scenario, Totals]


def play_all(seeds: range, scenario: Scenario | None, jobs: int) -> Iterator[TotalsByScenario]:
    """Play seeds in `jobs` processes; yield the sums of each chunk as soon as it is done."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    work = partial(play_chunk, scenario)
    if jobs == 1 or len(chunks) == 1:
        yield from map(work, chunks)
        return
    # spawn, not fork: the caller may have threads
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=gc.freeze) as pool:
        yield from pool.map(work, chunks)


def play_chunk(scenario: Scenario | None, seeds: range) -> TotalsByScenario:
    """Play some seeds in this process."""
    # the garbage collector keeps its default thresholds: with rarer collections, the objects have left the CPU caches
    # by then, which takes a fifth more time
    all_totals: TotalsByScenario = {}
    before = time.process_time()
    for seed in seeds:
        run = play(seed, scenario)
        now = time.process_time()
        all_totals.setdefault(run.scenario, Totals()).count(run, now - before)
        before = now
    return all_totals


def cores() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report(all_totals: TotalsByScenario, took: float) -> Iterable[str]:
    """Return the lines of the report. took: seconds from the first run to the last."""
    runs = sum(totals.runs for totals in all_totals.values())
    failed = sum(len(totals.failed) for totals in all_totals.values())
    yield f"{runs} runs, {failed} failed, in {took:.1f} s: {runs / took:.0f} runs a second"
    for scenario, totals in all_totals.items():
        means = ", ".join(f"{totals.counts[what] / totals.runs:.2f} {what}" for what in COUNTED)
        speed = totals.runs / totals.took
        yield f"  {scenario.value:<5} {totals.runs} runs, {speed:.0f} a second and core; in a run: {means}"
    yield "  faults " + " ".join(f"{scenario.value:>9}" for scenario in all_totals)
    for fault in FAULTS:
        yield "         " + " ".join(f"{totals.faults[fault]:>9}" for totals in all_totals.values()) + f"  {fault}"
