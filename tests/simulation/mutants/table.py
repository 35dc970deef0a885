"""How the table of faults in the documentation reads, from the mutants themselves and from what was found."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conformance.test_the_suite_catches import CAUGHT_BY
from tests.simulation.mutants import MUTANTS

SEEDS: Final = 2000
RARE: Final = 5
STEPS: Final = (10, 30, 100, 300, 1000, SEEDS)
FOUND: Final = Path(__file__).parent / "found.toml"
PAGE: Final = Path(__file__).parents[3] / "docs" / "broken-on-purpose.md"

_BEGIN: Final = "<!-- the table is written by `python -m tests.simulation.mutants`, and a test compares it -->\n"
_END: Final = "<!-- end of the table -->\n"


def found() -> dict[str, int]:
    """Return how many of the seeds catch each mutant."""
    return tomllib.loads(FOUND.read_text())


def within(caught: int) -> int | None:
    """Return within how many seeds a mutant must be found that so many of them catch; None where that is luck.

    Five times what it takes on the average: what a seed stands for changes with the engine and the simulator.
    """
    if caught < RARE:
        return None
    return next(step for step in STEPS if step * caught >= 5 * SEEDS)


def _said(caught: int) -> str:
    bound = within(caught)
    if bound is not None:
        return f"within {bound:,} seeds"
    return f"rarely: {caught} of {SEEDS:,} seeds" if caught else f"not in {SEEDS:,} seeds"


def table() -> str:
    """Return the table."""
    known = found()
    rows = ["| fault | the accident | caught by | random search |", "|---|---|---|---|"]
    for mutant in MUTANTS.values():
        what = f"{'store: ' if mutant.is_store else ''}{mutant.what} (`{mutant.name}`)"
        rows.append(f"| {what} | {mutant.accident} | `{mutant.directed.name}` | {_said(known[mutant.name])} |")
    return "\n".join(rows) + "\n\n" + "\n".join(_stores()) + "\n"


def _stores() -> Iterator[str]:
    yield "Stores that break one promise each, and the test of the conformance suite that sees it:"
    yield ""
    yield "| the store | caught by |"
    yield "|---|---|"
    for kind, test in CAUGHT_BY.items():
        words = re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
        yield f"| {words} | `{test}` |"


def shown() -> str:
    """Return the table as it stands in the documentation."""
    return PAGE.read_text().split(_BEGIN)[1].split(_END)[0]


def write_table() -> None:
    """Write the table into the documentation."""
    before, rest = PAGE.read_text().split(_BEGIN)
    PAGE.write_text(before + _BEGIN + table() + _END + rest.split(_END)[1])
