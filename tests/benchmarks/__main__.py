"""Measures what a lock costs, against its floor and its peers, and prints one table. `make bench`.

`--only WORD` runs the benchmarks whose name has the word; `--markdown` prints what docs/benchmarks.md keeps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.benchmarks import (
    awaiting,
    crowds,
    cycles,
    dashboard,
    failing,
    handing,
    imports,
    measured,
    modes,
    networked,
    scans,
)
from tests.benchmarks.command import command, parser
from tests.benchmarks.figures import Row, Size

Benchmark = Callable[[Size], Iterator[Row]]

BENCHMARKS: Final[dict[str, Benchmark]] = {
    "memory": cycles.memory,
    "sqlite": cycles.sqlite,
    "hand-over": handing.sqlite,
    "gcs": cycles.gcs,
    "waiters": crowds.waiters,
    "leases": crowds.leases,
    "awaiting": awaiting.awaiting,
    **networked.BENCHMARKS,
    "readers": modes.readers,
    "semaphores": modes.semaphores,
    "elections": failing.failing,
    "scans": scans.scans,
    "imports": imports.imports,
    "dashboard": dashboard.dashboard,
    "telemetry": measured.telemetry,
}


def main() -> None:
    """Measure, and print one table."""
    arguments = parser("bench", __doc__)
    arguments.add_argument("--only", default="", help="run only the benchmarks whose name has this word")
    command(arguments.parse_args(), _measured, doing="the benchmarks")


def _measured(wanted: argparse.Namespace, _folder: Path, say: Callable[[str], None]) -> Iterator[Row]:
    for name, benchmark in BENCHMARKS.items():
        if wanted.only in name:
            say(name)
            yield from benchmark(Size())


if __name__ == "__main__":
    main()
