"""Plays the first seeds for each mutant, 2,000, or 300 with readers or a pruner, and writes how many of them catch it.

`python -m tests.simulation.mutants [NAME...]`; with `--table` it prints the table of the mutants instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.simulation import play
from tests.simulation.mutants import MUTANTS, broken
from tests.simulation.mutants.table import FOUND, found, table
from tests.simulation.totals import cores


def search(name: str) -> tuple[str, int, str]:
    """Return how many of the seeds catch a mutant, and the first of them with its violation."""
    first, caught = "", 0
    with broken(name):
        for seed in MUTANTS[name].seeds:
            run = play(seed, MUTANTS[name].scenario)
            if run.violation is not None:
                caught += 1
                first = first or f"{seed}: {run.violation}"
    return name, caught, first


def main(arguments: list[str]) -> None:
    if "--table" in arguments:
        print(table())
        return
    known = found()
    with ProcessPoolExecutor(cores()) as pool:
        for name, caught, first in pool.map(search, arguments or MUTANTS):
            print(f"{name:42} {caught:5} of {len(MUTANTS[name].seeds)}  {first}"[:180], flush=True)
            known[name] = caught
            FOUND.write_text("".join(lines(known)))


def lines(known: dict[str, int]) -> Iterable[str]:
    yield "# How many of 2000 seeds (300 of other scenarios) catch; written by `python -m tests.simulation.mutants`\n\n"
    for name in MUTANTS:
        yield f"{name} = {known.get(name, 0)}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
