"""Computes hand-overs and waits from the notes of a section's holders."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.figures import Pair

THEIRS: Final = "theirs"
"""The kind of section that is a limit of Prefect's; all others are locks of ours, on the store of that name."""

LEASE: Final = 60
"""A lease's ttl in seconds: the least that Prefect's server allows, and our default."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One stay of a process in a section, in seconds of a clock that all share. ended: None if it never left."""

    who: int
    asked: float
    began: float
    ended: float | None

    @property
    def waited(self) -> float:
        """How long it waited before."""
        return self.began - self.asked


def lines(notes: Path) -> list[dict[str, Any]]:
    """Return what was noted until now."""
    text = notes.read_text("utf-8") if notes.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def stays(noted: Sequence[dict[str, Any]]) -> list[Stay]:
    """Return the stays in the order of entering. Who asked again after a failure has waited from the first time on."""
    at: dict[tuple[Any, ...], float] = {}
    for line in noted:
        at.setdefault((line["what"], line["who"], line["place"], line["left"]), line["at"])
    found = [
        Stay(who, at["asks", who, place, left], began, at.get(("leaves", who, place, left)))
        for (what, who, place, left), began in at.items()
        if what == "enters"
    ]
    return sorted(found, key=lambda stay: stay.began)


def hand_overs(found: Sequence[Stay]) -> list[float]:
    """Return the seconds from each end to the next beginning, where the next one had been waiting.

    RuntimeError if two were in the section at once: then nothing that was measured counts.
    """
    taken = []
    for one, two in pairwise(found):
        if one.ended is None or two.began < one.ended:
            raise RuntimeError(f"{one} and {two} overlap")
        if two.asked < one.ended:
            taken.append(two.began - one.ended)
    return taken


def longest_wait(found: Sequence[Stay], hold: float) -> float:
    """Return how many holds the one waited who waited longest."""
    return max(stay.waited for stay in found) / hold


def by_rounds(mine: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Pair:
    """Summarise rounds of which each has many: medians of all, the ratio of the medians, and the rounds' ratios."""
    ours = statistics.median(second for taken in mine for second in taken)
    theirs = statistics.median(second for taken in other for second in taken)
    ratios = sorted(statistics.median(a) / statistics.median(b) for a, b in zip(mine, other, strict=True))
    edge = len(ratios) // 20
    return Pair(ours, theirs, ours / theirs, ratios[edge], ratios[-1 - edge])


def recoveries(noted: Sequence[dict[str, Any]], places: Sequence[str], since: float) -> list[float | None]:
    """Return for each section the seconds from a moment until it was entered for the second time; None: it was not."""
    entered = {
        place: [line["at"] for line in noted if (line["what"], line["place"]) == ("enters", place)] for place in places
    }
    return [at[1] - since if len(at) > 1 else None for at in entered.values()]
