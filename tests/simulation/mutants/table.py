"""Table of the mutants, with the seeds that were found to catch them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conformance.test_the_suite_catches import CAUGHT_BY
from tests.simulation.mutants import MUTANTS

RARE: Final = 5
STEPS: Final = (10, 30, 100, 300, 1000, 2000)
FOUND: Final = Path(__file__).parent / "found.toml"


def found() -> dict[str, int]:
    """Return how many of the seeds catch each mutant."""
    return tomllib.loads(FOUND.read_text())


def within(name: str) -> int | None:
    """Return the number of seeds within which a mutant must be found, by how many catch it; None if these are rare.

    This is five times the average, because the meaning of a seed changes with the engine and the simulator.
    """
    caught = found()[name]
    if caught < RARE:
        return None
    return next(step for step in STEPS if step * caught >= 5 * len(MUTANTS[name].seeds))


def _seeds(name: str) -> str:
    bound, caught = within(name), found()[name]
    if bound is not None:
        return f"{bound:,}"
    return f"rare: {caught}" if caught else "none"


def table() -> str:
    """Return the table."""
    rows = ["| fault | accident | directed test | seeds |", "|---|---|---|---|"]
    for mutant in MUTANTS.values():
        what = f"{'store: ' if mutant.is_store else ''}{mutant.what} (`{mutant.name}`)"
        rows.append(f"| {what} | {mutant.accident} | `{mutant.directed.name}` | {_seeds(mutant.name)} |")
    return "\n".join(rows) + "\n\n" + "\n".join(_stores()) + "\n"


def _stores() -> Iterator[str]:
    yield "Stores that break one promise each, by the conformance test that catches them:"
    yield ""
    yield "| conformance test | broken stores |"
    yield "|---|---|"
    kinds: dict[str, list[str]] = {}
    for kind, test in CAUGHT_BY.items():
        kinds.setdefault(test, []).append(re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__).lower())
    for test, stores in kinds.items():
        yield f"| `{test}` | {', '.join(stores)} |"
