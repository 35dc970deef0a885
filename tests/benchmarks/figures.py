"""How a figure is taken, against what, and how the one table of `make bench` looks. Must not know any store.

Ours and theirs are measured in turn, in rounds, after one that does not count; the order changes with every round. So a
machine that gets slower or busier does so for both, and the ratio of a round means something even when the times do
not. Medians of the rounds are shown.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from rich.table import Table

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. rounds of `times` repetitions, short enough to fall between what else the machine does."""

    rounds: int = 101
    times: int = 40
    samples: int = 40
    waiters: int = 1000
    waiting: float = 10.0
    leases: int = 10_000
    keeping: float = 75.0
    awaiting: int = 10_000
    rounds_networked: int = 41
    times_networked: int = 20
    hand_overs: int = 100
    leases_networked: int = 1000
    ttl_networked: float = 24.0
    fail_overs: int = 5
    ttl_fail_over: float = 10.0
    scanned: int = 100_000
    keys_scraped: int = 10_000


TINY = Size(
    rounds=1,
    times=2,
    samples=1,
    waiters=5,
    waiting=1.2,
    leases=20,
    keeping=0.2,
    awaiting=40,
    rounds_networked=1,
    times_networked=2,
    hand_overs=1,
    leases_networked=20,
    ttl_networked=8.0,
    fail_overs=1,
    ttl_fail_over=4.0,
    scanned=50,
    keys_scraped=20,
)
"""For the test that every benchmark runs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and theirs in seconds and their ratio, medians of the rounds; nine ratios of ten are in low to high."""

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. unit is that of ours and theirs; limit is what ours, or the ratio, may be at most.

    No limit: the row is there to be read, not to be reached.
    """

    what: str
    ours: float
    unit: str
    limit: float | None
    against: str = ""
    theirs: float | None = None
    ratio: float | None = None
    spread: str = ""
    of_ratio: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the figure is within its limit."""
        judged = self.ratio if self.of_ratio else self.ours
        return self.limit is None or (judged is not None and judged <= self.limit)

    @property
    def to_reach(self) -> str:
        """Say the limit."""
        if self.limit is None:
            return ""
        return f"≤ {self.limit:g} ×" if self.of_ratio else f"≤ {self.limit:g} {self.unit}"


def middle(work: Work, times: int) -> float:
    """Return the median of the seconds that single calls take: who is interrupted now and then does not show it."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def in_turn(ours: Work, theirs: Work, size: Size) -> Pair:
    """Measure two things in turn."""
    for work in (ours, theirs):
        middle(work, size.times)
    mine: list[float] = []
    other: list[float] = []
    for number in range(size.rounds):
        pairs = [(mine, ours), (other, theirs)]
        for taken, work in pairs if number % 2 == 0 else reversed(pairs):
            taken.append(middle(work, size.times))
    return paired(mine, other)


def paired(mine: list[float], other: list[float]) -> Pair:
    """Summarise what was measured in turn."""
    ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
    edge = len(ratios) // 20
    low, high = ratios[edge], ratios[-1 - edge]
    return Pair(statistics.median(mine), statistics.median(other), statistics.median(ratios), low, high)


def alone(work: Work, size: Size) -> float:
    """Return the median over the rounds of the seconds per call."""
    middle(work, size.times)
    return statistics.median(middle(work, size.times) for _ in range(size.rounds))


def compared(
    what: str, pair: Pair, against: str, limit: float | None, unit: str = "µs", *, of_ratio: bool = True
) -> Row:
    """Make the row of a pair."""
    scale = {"µs": 1e6, "ms": 1e3}[unit]
    spread = f"{pair.low:.2f}-{pair.high:.2f}"
    return Row(what, pair.ours * scale, unit, limit, against, pair.theirs * scale, pair.ratio, spread, of_ratio)


# --- the table ------------------------------------------------------------------------------------------------------

HEADINGS = ("what", "ours", "measured against", "theirs", "ratio", "90 % of them", "to reach", "")


def cells(row: Row) -> tuple[str, ...]:
    """Write one row."""
    theirs = "" if row.theirs is None else f"{_figure(row.theirs)} {row.unit}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    reached = "" if row.limit is None else "yes" if row.is_reached else "NO"
    return row.what, f"{_figure(row.ours)} {row.unit}", row.against, theirs, ratio, row.spread, row.to_reach, reached


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def table(rows: Iterable[Row], about: str) -> Table:
    """Lay the rows out for a terminal."""
    laid = Table(title=about, caption="ours and theirs in turn; medians of the rounds")
    for heading in HEADINGS:
        laid.add_column(heading, justify="right" if heading in {"ours", "theirs", "ratio"} else "left")
    for row in rows:
        laid.add_row(*cells(row))
    return laid


def markdown(rows: Iterable[Row], about: str) -> str:
    """Return the rows as docs/benchmarks.md prints them: one line for each figure of ours, with all its peers."""
    lines = [about, "", "| what | ours | compared with: ratio |", "|---|---|---|"]
    for (what, _), group in groupby(rows, key=lambda row: (row.what, row.ours)):
        same = list(group)
        lines.append(f"| {what} | {_ours(same)} | {'<br>'.join(filter(None, map(_peer, same)))} |")
    return "\n".join(lines)


def _ours(same: list[Row]) -> str:
    return f"{_figure(same[0].ours)} {same[0].unit}".strip() + "".join(_goal(row) for row in same if not row.of_ratio)


def _peer(row: Row) -> str:
    if not row.against:
        return ""
    theirs = "" if row.theirs is None else f" {_figure(row.theirs)} {row.unit}"
    ratio = "" if row.ratio is None else f": {row.ratio:.2f}"
    spread = f" ({row.spread})" if row.spread else ""
    return row.against + theirs + ratio + spread + (_goal(row) if row.of_ratio else "")


def _goal(row: Row) -> str:
    goal = row.to_reach.strip().replace("≤ ", "≤").replace(" ×", "×")
    return f"; {goal}{'' if row.is_reached else ': **NO**'}" if goal else ""


def machine(load_before: tuple[float, float, float]) -> str:
    """Say where and when this was measured, and what else the machine did."""
    before, after = load_before[0], os.getloadavg()[0]
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {_processor()}, {os.cpu_count()} cores, {platform.system()}, {versions}; "
        f"load {before:.1f} at the beginning, {after:.1f} at the end"
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()
