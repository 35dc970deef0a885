"""Draws the timeline of a demo into a file with matplotlib; `drawing.py` computes its content."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from examples.publishing.demo.drawing import Drawing, Kind, drawing_of
from examples.publishing.events import EventKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import RcKeyType

    from examples.publishing.demo.orchestrated import Course

Rows: TypeAlias = dict[tuple[str, str], float]
"""The vertical position of a run's lane at a repository's lock, from above."""

COLOURS = {
    Kind.WAITS: "#d7dce4",
    Kind.HOLDS: "#2f7f86",
    Kind.STANDS_STILL: "#e0b252",
    Kind.IS_OVERTAKEN: "#f1ddb0",
    Kind.IS_GONE: "#e3a79b",
}
STRIPED = {Kind.STANDS_STILL, Kind.IS_OVERTAKEN, Kind.IS_GONE}
SIGNS = {
    EventKind.KILLED: ("X", "#b3362b", "killed"),
    EventKind.RESUMED: (">", "#a87712", "goes on"),
    EventKind.REFUSED: ("D", "#6b4a9c", "refused: its lease is lost"),
    EventKind.FAILED: ("s", "#b3362b", "failed"),
}
INK, FAINT, PAPER = "#22303c", "#8894a3", "#ffffff"
STYLE: Final[dict[RcKeyType, Any]] = {
    # the same events give the same file, and text stays text, which can be searched for and read aloud
    "svg.hashsalt": "lockstead",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "hatch.color": PAPER,
    "hatch.linewidth": 1.5,
}
BAR = 0.62
"""Height of a bar, in lanes."""

GAP = 1.0
"""Distance between the lanes of one lock and those of the next, in lanes."""

SHORT = 6
"""Number of digits of a token that is written in full."""

MARGIN = 0.10
"""Space on the right for the last labels, as a part of the length."""


def draw(course: Course, path: Path, title: str = "") -> None:
    """Draw a timeline into a file; the suffix sets the format (.svg, .png, .pdf). ValueError if there are no events."""
    drawing = drawing_of(course.events)
    lanes = [(repository, run) for repository in drawing.repositories for run in drawing.runs(repository)]
    rows = {lane: at + GAP * drawing.repositories.index(lane[0]) for at, lane in enumerate(lanes)}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 0.34 * max(rows.values()) + 2.0), layout="constrained", facecolor=PAPER)
        axes = figure.add_subplot()
        _bars(axes, drawing, rows)
        _marks(axes, drawing, rows)
        _frame(axes, drawing, rows)
        _legend(figure, drawing)
        if title:
            axes.set_title(title, loc="left", color=INK, fontweight="bold")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def shortened(tokens: Sequence[int]) -> dict[int, str]:
    """Return the tokens of a lock without their common prefix: some stores count from the time of the first."""
    digits = {token: str(token) for token in tokens}
    widths = {len(one) for one in digits.values()}
    if len(digits) < 2 or widths.pop() <= SHORT or widths:
        return digits
    shared = len(commonprefix(list(digits.values())))  # noqa: RUF071 # of digits, not of paths
    return {token: f"…{one[shared:]}" for token, one in digits.items()}


def _bars(axes: Axes, drawing: Drawing, rows: Rows) -> None:
    labelled: set[tuple[str, int]] = set()
    texts = {
        repository: shortened([one.token for one in drawing.spans if one.repository == repository and one.token])
        for repository in drawing.repositories
    }
    for span in drawing.spans:
        row, stripes = rows[span.repository, span.run], "////" if span.kind in STRIPED else ""
        axes.barh(row, span.length, BAR, span.begin, color=COLOURS[span.kind], hatch=stripes, linewidth=0)
        if span.token is not None and (span.repository, span.token) not in labelled:
            labelled.add((span.repository, span.token))
            text = f"token {texts[span.repository].get(span.token, span.token)}"
            axes.text(span.begin, row - BAR / 2 - 0.04, text, va="bottom", ha="left", fontsize=7, color=FAINT)


def _marks(axes: Axes, drawing: Drawing, rows: Rows) -> None:
    for mark in drawing.marks:
        row = rows[mark.repository, mark.run]
        if mark.what is EventKind.PUBLISHED:
            axes.text(mark.at, row, f" version {mark.number}", va="center", ha="left", fontsize=9, color=INK)
        else:
            sign, colour, _ = SIGNS[mark.what]
            axes.plot(mark.at, row, sign, color=colour, markersize=9, markeredgecolor=PAPER, zorder=5)


def _frame(axes: Axes, drawing: Drawing, rows: Rows) -> None:
    for repository in drawing.repositories:
        first = min(row for (one, _), row in rows.items() if one == repository)
        axes.text(0, first - 0.75, f"the lock {repository}", color=INK, fontweight="bold", va="bottom")
    axes.set_yticks(list(rows.values()), [run for _, run in rows])
    axes.set_xlim(0, drawing.length * (1 + MARGIN))
    axes.set_ylim(max(rows.values()) + 0.6, -1.5)
    axes.set_xlabel("seconds", color=FAINT)
    axes.tick_params(length=0, colors=FAINT)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=True, axis="x", color="#eceff3", linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _legend(figure: Figure, drawing: Drawing) -> None:
    """Draw the legend of what occurs."""
    kinds = [kind for kind in Kind if any(one.kind is kind for one in drawing.spans)]
    signs = [what for what in SIGNS if any(one.what is what for one in drawing.marks)]
    handles: list[Patch | Line2D] = [
        Patch(facecolor=COLOURS[kind], hatch="////" if kind in STRIPED else "", linewidth=0, label=kind.value)
        for kind in kinds
    ]
    for what in signs:
        sign, colour, text = SIGNS[what]
        handles.append(Line2D([], [], linestyle="", marker=sign, color=colour, markeredgecolor=PAPER, label=text))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, labelcolor=INK)
