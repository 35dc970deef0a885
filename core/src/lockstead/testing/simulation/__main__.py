"""Decides what the command line shows: the event log of one seed, or one line for each seed that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from lockstead.testing.simulation.scenario import Run, plan_of, play


def main(arguments: Sequence[str] | None = None) -> int:
    """Play one seed or many; 1 if any property was violated."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print its event log")
    parser.add_argument("--seeds", type=int, default=1000, help="play so many seeds (default 1000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of the seeds")
    asked = parser.parse_args(arguments)
    return _replay(asked.seed) if asked.seed is not None else _play_many(asked.first, asked.seeds)


def _replay(seed: int) -> int:
    run = play(seed, is_told=True)
    sys.stdout.write(f"{plan_of(seed)}\n")
    sys.stdout.writelines(f"{line}\n" for line in run.log)
    sys.stdout.write(f"{_verdict(run)}\n")
    return 0 if run.violation is None else 1


def _play_many(first: int, count: int) -> int:
    started = time.perf_counter()
    failed = delivered = faulted = grants = losses = tokens = 0
    for seed in range(first, first + count):
        run = play(seed)
        delivered, faulted = delivered + run.delivered, faulted + run.faulted
        grants, losses, tokens = grants + run.grants, losses + run.losses, tokens + run.tokens
        if run.violation is not None:
            failed += 1
            sys.stdout.write(f"make sim SEED={seed}  # {run.violation}\n")
    took = time.perf_counter() - started
    sys.stdout.write(
        f"{count} runs, {failed} failed; {delivered} requests delivered, {faulted} faults, {grants} beliefs begun, "
        f"{losses} losses, {tokens} tokens; {count / took:.0f} runs a second\n"
    )
    return 0 if not failed else 1


def _verdict(run: Run) -> str:
    if run.violation is not None:
        return f"seed {run.seed} violates: {run.violation}"
    return f"seed {run.seed} holds; {run.delivered} requests delivered, {run.faulted} faults, {run.grants} beliefs"


if __name__ == "__main__":
    sys.exit(main())
