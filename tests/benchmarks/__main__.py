"""Measures what a lock costs, against its floor and its peers, and prints one table. `make bench`.

`--only WORD` runs the benchmarks whose name has the word; `--markdown` prints what docs/benchmarks.md keeps.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console

from tests.benchmarks import crowds, cycles, handing, imports, networked
from tests.benchmarks.figures import Row, Size, machine, markdown, table

Benchmark = Callable[[Size], Iterator[Row]]

BENCHMARKS: Final[dict[str, Benchmark]] = {
    "memory": cycles.memory,
    "sqlite": cycles.sqlite,
    "hand-over": handing.sqlite,
    "gcs": cycles.gcs,
    "waiters": crowds.waiters,
    "leases": crowds.leases,
    **networked.BENCHMARKS,
    "imports": imports.imports,
}


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help="run only the benchmarks whose name has this word")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    wanted = parser.parse_args()
    load = os.getloadavg()
    console = Console(width=None if os.isatty(1) else 180)
    rows: list[Row] = []
    for name, benchmark in BENCHMARKS.items():
        if wanted.only in name:
            with console.status(name):
                rows += benchmark(Size())
    about = machine(load)
    if wanted.markdown:
        print(markdown(rows, about))
    else:
        console.print(table(rows, about))


if __name__ == "__main__":
    main()
