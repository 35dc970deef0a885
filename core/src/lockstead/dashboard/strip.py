"""The history of a lock as a drawing: a bar for each lease, from left to right in time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockstead.dashboard.changes import Event

WIDTH: Final = 1000
"""Units of the drawing's width; the page scales it."""

LEAST: Final = 4
"""Width of the shortest bar."""

ENDS: Final = {"released": "released", "lost": "lost", "removed": "lost"}
"""The events that end a bar, and how it ended."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A lease: where it is drawn, and how it ended: "held" (it has not), "released" or "lost"."""

    x: int
    width: int
    how: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The bars between two instants, in epoch seconds."""

    bars: tuple[Bar, ...]
    since: float
    until: float

    @property
    def lost(self) -> int:
        """How many leases were lost."""
        return sum(bar.how == "lost" for bar in self.bars)


def strip(events: Sequence[Event], holders: Collection[str], now: float) -> Strip | None:
    """Draw a history, the newest event first; None if it has no lease. holders: who holds the lock now."""
    spans: list[tuple[float, float, str]] = []
    begun: dict[str, float] = {}
    ended: set[str] = set()
    dated = [event for event in reversed(events) if event.at > 0.0]
    for event in dated:
        if event.what == "granted":
            begun[event.holder] = event.at
        elif event.what in ENDS and event.holder not in ended:
            # what was held before anybody watched begins at the edge
            spans.append((begun.pop(event.holder, dated[0].at), event.at, ENDS[event.what]))
            ended.add(event.holder)
    for holder, at in begun.items():
        # its end was not seen: it was before whatever came next
        later = now if holder in holders else next((event.at for event in dated if event.at > at), now)
        spans.append((at, later, "held" if holder in holders else "released"))
    if not spans:
        return None
    since = min(at for at, _, _ in spans)
    return Strip(tuple(_bar(span, since, max(now - since, 1.0)) for span in sorted(spans)), since, now)


def _bar(span: tuple[float, float, str], since: float, length: float) -> Bar:
    begins, ends = (round(WIDTH * min(max((at - since) / length, 0.0), 1.0)) for at in span[:2])
    x = min(begins, WIDTH - LEAST)
    return Bar(x, max(LEAST, ends - x), span[2])
