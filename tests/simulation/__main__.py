"""The command line: the history of one seed, or one line for each seed that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulation.plan import Scenario, plan_of, scenario_of
from tests.simulation.run import play
from tests.simulation.totals import Totals, TotalsByScenario, cores, play_all, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Play one seed or many; return 1 if any invariant was violated, else 0."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print its history")
    parser.add_argument("--seeds", type=int, default=100_000, help="number of seeds to play (default 100,000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of the seeds")
    parser.add_argument("--scenario", type=Scenario, choices=Scenario, help="default: a mix of short and long")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes that play (default: one for each core)")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _replay(options.seed, options.scenario)
    return _play_many(range(options.first, options.first + options.seeds), options.scenario, options.jobs)


def _replay(seed: int, scenario: Scenario | None) -> int:
    run = play(seed, scenario, keeps_history=True)
    print(plan_of(seed, scenario), *run.history, sep="\n")
    if run.violation is not None:
        print(f"seed {seed} violates: {run.violation}")
        return 1
    print(
        f"seed {seed} holds; {run.delivered} requests delivered, {sum(run.faults.values())} faults, {run.grants} grants"
    )
    return 0


def _play_many(seeds: range, scenario: Scenario | None, jobs: int) -> int:
    started = time.perf_counter()
    all_totals: TotalsByScenario = {}
    for chunk in play_all(seeds, scenario, jobs):
        for kind, totals in chunk.items():
            all_totals.setdefault(kind, Totals()).add(totals)
            for seed, violation in totals.failed:
                print(f"{replay_line(seed, kind)}  # {violation}", flush=True)
    print(*report(all_totals, time.perf_counter() - started), sep="\n")
    return 1 if any(totals.failed for totals in all_totals.values()) else 0


def replay_line(seed: int, scenario: Scenario) -> str:
    """Return the command that replays a seed; with the scenario only if it is not the seed's own."""
    return f"make sim SEED={seed}" + ("" if scenario is scenario_of(seed) else f" SCENARIO={scenario.value}")


if __name__ == "__main__":
    sys.exit(main())
