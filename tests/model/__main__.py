"""Checks the models of the protocol and prints one table: `make model`. `--deep` adds what takes minutes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tests.model import checker
from tests.model.claims import DEEP, FAULTS, HARMLESS, LARGE, PROOFS, SECOND_LINES


def _rows(*, deep: bool) -> Iterator[tuple[bool, str, str, checker.Verdict]]:
    for proof in (*PROOFS, *LARGE, *SECOND_LINES, *HARMLESS, *(DEEP if deep else ())):
        verdict = checker.check(proof.model, *proof.switches, deep=proof in DEEP, is_progress=proof.is_progress)
        what = "proved" if verdict.is_proved else verdict.violated or "cut short"
        is_spared = proof in SECOND_LINES or proof in HARMLESS
        spared = f" (spared here: {', '.join(proof.switches).lower().replace('_', ' ')})" if is_spared else ""
        yield verdict.is_proved, proof.model, f"{proof.says}{spared}: {what}", verdict
    for fault in FAULTS:
        verdict = checker.refute(fault.model, *fault.switches, is_progress=fault.is_progress)
        is_found = verdict.violated is not None and verdict.violated.startswith(fault.breaks)
        yield is_found, fault.model, f"{fault.name.replace('_', ' ')}: {'found' if is_found else 'NOT FOUND'}", verdict


def main() -> int:
    """Return 0 if every promise is proved and every fault is found."""
    parser = argparse.ArgumentParser(prog="make model", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="more at once: takes minutes and about 4 GB")
    words = parser.parse_args()
    absent = checker.missing()
    if absent:
        print(f"not here: {', '.join(absent)}; see requirements/debian.list", file=sys.stderr)
        return 69
    table = Table("", "model", "what", "states", "s", title="the models of the protocol")
    bad = 0
    for is_good, model, what, verdict in _rows(deep=words.deep):
        bad += not is_good
        table.add_row("✓" if is_good else "✗", model, what, f"{verdict.states:,}", f"{verdict.seconds:.1f}")
    Console().print(table)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
