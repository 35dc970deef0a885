"""Decides how the table of faults in the documentation reads, from the mutants themselves and from what was found."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from tests.simulation.mutants import MUTANTS

SEEDS: Final = 2000
STEPS: Final = (10, 30, 100, 300, 1000, SEEDS)
FOUND: Final = Path(__file__).parent / "found.toml"
PAGE: Final = Path(__file__).parents[3] / "docs" / "broken-on-purpose.md"

_BEGIN: Final = "<!-- the table is written by `python -m tests.simulation.mutants`, and a test compares it -->\n"
_END: Final = "<!-- end of the table -->\n"


def found() -> dict[str, int]:
    """Give within how many seeds random search finds each mutant; those that it does not find are missing."""
    return tomllib.loads(FOUND.read_text()) if FOUND.exists() else {}


def table() -> str:
    """Give the table."""
    known = found()
    rows = ["| fault | the accident | caught by | random search |", "|---|---|---|---|"]
    for mutant in MUTANTS.values():
        within = f"within {known[mutant.name]:,} seeds" if mutant.name in known else f"not in {SEEDS:,}"
        what = f"{'store: ' if mutant.is_store else ''}{mutant.what} (`{mutant.name}`)"
        rows.append(f"| {what} | {mutant.accident} | `{mutant.directed.name}` | {within} |")
    return "\n".join(rows) + "\n"


def shown() -> str:
    """Give the table as it stands in the documentation."""
    return PAGE.read_text().split(_BEGIN)[1].split(_END)[0]


def write_table() -> None:
    """Write the table into the documentation."""
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(before + _BEGIN + table() + _END + rest.split(_END)[1])
