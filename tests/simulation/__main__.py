"""What the command line shows: the event log of one seed, or one line for each seed that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulation.plans import Scenario, plan_of, scenario_of
from tests.simulation.scenario import Run, play
from tests.simulation.tally import Tallies, Tally, cores, play_all, shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Play one seed or many; return 1 if any property was violated, else 0."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print its event log")
    parser.add_argument("--seeds", type=int, default=100_000, help="play so many seeds (default 100,000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of the seeds")
    parser.add_argument("--scenario", type=Scenario, choices=Scenario, help="short or long; default: a mix of both")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes that play (default: one for each core)")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        return _replay(asked.seed, asked.scenario)
    return _play_many(range(asked.first, asked.first + asked.seeds), asked.scenario, asked.jobs)


def _replay(seed: int, scenario: Scenario | None) -> int:
    run = play(seed, scenario, is_told=True)
    sys.stdout.write(f"{plan_of(seed, scenario)}\n")
    sys.stdout.writelines(f"{line}\n" for line in run.log)
    sys.stdout.write(f"{_verdict(run)}\n")
    return 0 if run.violation is None else 1


def _play_many(seeds: range, scenario: Scenario | None, jobs: int) -> int:
    started = time.perf_counter()
    tallies: Tallies = {}
    for chunk in play_all(seeds, scenario, jobs):
        for kind, tally in chunk.items():
            tallies.setdefault(kind, Tally()).add(tally)
            for seed, violation in tally.failed:
                sys.stdout.write(f"{replay_line(seed, kind)}  # {violation}\n")
                sys.stdout.flush()
    sys.stdout.writelines(f"{line}\n" for line in shown(tallies, time.perf_counter() - started))
    return 1 if any(tally.failed for tally in tallies.values()) else 0


def replay_line(seed: int, scenario: Scenario) -> str:
    """Return the command that replays a seed; with the scenario only if it is not the seed's own."""
    return f"make sim SEED={seed}" + ("" if scenario is scenario_of(seed) else f" SCENARIO={scenario.value}")


def _verdict(run: Run) -> str:
    if run.violation is not None:
        return f"seed {run.seed} violates: {run.violation}"
    return f"seed {run.seed} holds; {run.delivered} requests delivered, {sum(run.faults)} faults, {run.grants} beliefs"


if __name__ == "__main__":
    sys.exit(main())
