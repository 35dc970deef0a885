"""The command line of the benchmarks: options, the working folder, and the printed table."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from tests.benchmarks.figures import Row, machine, markdown, table

Measure = Callable[[argparse.Namespace, Path, Callable[[str], None]], Iterable[Row]]
"""Returns the rows for the chosen benchmarks; the folder is removed afterwards, and `progress` is called meanwhile.
"""


def parser(target: str, description: str | None) -> argparse.ArgumentParser:
    """Return what reads the arguments of `make TARGET`; a benchmark adds its own."""
    made = argparse.ArgumentParser(prog=f"make {target}", description=description)
    made.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return made


def command(wanted: argparse.Namespace, measure: Measure, *, doing: str, about: str = "") -> None:
    """Measure, and print one table. about: additional lines above it, beside the machine and the time."""
    load, began = os.getloadavg(), time.monotonic()
    console = Console(width=None if os.isatty(1) else 180)
    directory = Path(tempfile.mkdtemp(prefix="lockstead-bench-"))
    try:
        with console.status(doing) as status:
            rows = list(measure(wanted, directory, status.update))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    took = f"took {(time.monotonic() - began) / 60:.1f} minutes"
    title = "; ".join(one for one in (about, machine(load), took) if one)
    if wanted.markdown:
        print(markdown(rows, title))
    else:
        console.print(table(rows, title))
