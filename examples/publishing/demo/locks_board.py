"""The display of the demo of four: the holder and waiters of each lock, and the state of each run.

For a terminal of 100 columns. Draws events, decides nothing.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from examples.publishing.demo.board import Board, LiveBoard, PlainBoard, Row, Rows
from examples.publishing.events import Event
from examples.publishing.pipeline import PHASES
from examples.publishing.runner import FORMATS


class LocksBoard(LiveBoard):
    """Two tables that are updated in place: one of the locks, one of the runs."""

    def _tables(self) -> list[RenderableType]:
        locks = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("lock", "holder", "token", "waiting"):
            locks.add_column(name)
        for kind in FORMATS:
            locks.add_row(kind, *_lock(self._rows, kind))
        runs = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
        for name in ("run", "repo", "section", "token", "version"):
            runs.add_column(name, justify="right" if name == "version" else "left", no_wrap=True)
        runs.add_column("now", overflow="ellipsis", no_wrap=True, ratio=1)
        for row in sorted(self._rows.rows.values(), key=lambda row: (row.repository, row.run)):
            runs.add_row(row.run, row.repository, bar(row), _or(row.token), _or(row.version), _now(row))
        return [locks, Text(), runs, Text()]


def bar(row: Row) -> Text:
    """Return the progress of a run in its section: a block for each phase."""
    if not row.phase:
        return Text("·" * len(PHASES), style="dim")
    at = PHASES.index(row.phase)
    is_through = not row.column and row.style == "green"
    done = len(PHASES) if is_through else at
    current = "" if is_through else "▶"
    return Text("■" * done + current + "·" * (len(PHASES) - done - len(current)), style=row.style)


def _lock(rows: Rows, kind: str) -> tuple[Text, Text, Text]:
    holder = rows.holders.get(kind, "")
    held = rows.rows.get((holder, kind))
    waiting = [row.run for row in rows.rows.values() if row.repository == kind and row.is_waiting]
    return (
        Text(holder or "free", style=held.style if held else "dim"),
        Text(_or(held.token if held else None)),
        Text(", ".join(waiting)),
    )


def _now(row: Row) -> Text:
    since = f", {time.monotonic() - row.since:.0f} s" if row.is_waiting else ""
    phase = f": {row.phase}" if row.column and row.column == row.phase else ""
    # the token has its own column
    said = "holds" if phase or row.said.startswith("holds") else row.said
    return Text(f"{said}{phase}{since}", style=row.style)


def _or(number: int | None) -> str:
    return "" if number is None else str(number)


class Both:
    """Two displays that show the same."""

    def __init__(self, first: Board, second: Board) -> None:
        self._first, self._second = first, second

    def __enter__(self) -> Self:
        self._first.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._first.__exit__(kind, error, traceback)

    def act(self, title: str) -> None:
        """Begin an act."""
        self._first.act(title)
        self._second.act(title)

    def note(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._first.note(text, style)
        self._second.note(text, style)

    def event(self, event: Event) -> None:
        """Show an event of a run."""
        self._first.event(event)
        self._second.event(event)


def locks_board_for(console: Console, record: Console | None) -> Board:
    """Return the display that fits the output. record: a console that gets the same as plain lines."""
    shown = LocksBoard(console) if console.is_terminal else PlainBoard(console)
    return shown if record is None else Both(shown, PlainBoard(record))
