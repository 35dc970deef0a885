"""The display of the demo: a row for each run and repository, a column for each phase; plain lines if not a terminal.

Draws events, decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.publishing.events import Event, EventKind
from examples.publishing.pipeline import PHASES

COLUMNS = ("stage", "wait", *PHASES)
STYLES = {
    EventKind.PUBLISHED: "green",
    EventKind.REFUSED: "yellow",
    EventKind.FAILED: "red",
    EventKind.HOLDS: "cyan",
    EventKind.PHASE: "cyan",
    EventKind.KILLED: "bold red",
    EventKind.PAUSED: "bold yellow",
    EventKind.RESUMED: "bold yellow",
}

NOTES_MIN = 5
FURNITURE = 9
"""Lines that are neither rows nor notes: titles, heads, and lines between them."""

DONE_TO = {EventKind.KILLED, EventKind.PAUSED, EventKind.RESUMED}
"""Events that are done to a run, not by it."""


class Board(Protocol):
    """A display of the demo."""

    def __enter__(self) -> Self:
        """Start the display."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the display."""
        ...

    def act(self, title: str) -> None:
        """Begin an act; the rows of the previous one stay and do not change any more."""
        ...

    def note(self, text: str, style: str = "") -> None:
        """Print a line."""
        ...

    def event(self, event: Event) -> None:
        """Show an event of a run."""
        ...


def sentence(event: Event, holder: str) -> str:
    """Describe where a run is; holder is the holder of the lock that it waits for."""
    match event.what:
        case EventKind.STAGING:
            return "uploads"
        case EventKind.WAITING:
            whom = event.text or holder
            return f"waiting for {whom}" if whom else "waiting"
        case EventKind.HOLDS:
            return f"holds, token {event.number}"
        case EventKind.PHASE:
            return event.phase
        case EventKind.PUBLISHED:
            cleared = f", cleared away {', '.join(map(str, event.pruned))}" if event.pruned else ""
            return f"version {event.number}: {event.text}{cleared}"
        case EventKind.REFUSED | EventKind.FAILED | EventKind.KILLED | EventKind.PAUSED | EventKind.RESUMED:
            return f"{event.what}: {event.text}"


@dataclass(slots=True)
class Row:
    """One run on one repository. phase: the last one that it began under its lease. since: when its state last
    changed."""

    run: str
    repository: str
    ms: dict[str, float] = field(default_factory=dict)
    column: str = ""
    phase: str = ""
    since: float = 0.0
    token: int | None = None
    version: int | None = None
    said: str = ""
    style: str = ""

    @property
    def is_waiting(self) -> bool:
        """Return whether it waits for the lock."""
        return self.column == "wait"


@dataclass(slots=True)
class Rows:
    """All rows of an act, and the holder of each lock. Independent of terminals."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)

    def take(self, event: Event) -> Row:
        """Update the row of an event."""
        row = self.rows.setdefault((event.run, event.repository), Row(event.run, event.repository))
        if row.column:
            row.ms[row.column] = row.ms.get(row.column, 0.0) + (event.at - row.since) * 1000
        match event.what:
            case EventKind.STAGING:
                row.column = "stage"
            case EventKind.WAITING:
                row.column = "wait"
            case EventKind.HOLDS:
                row.column, row.phase, row.token = "", "", event.number
                self.holders[event.repository] = event.run
            case EventKind.PHASE:
                row.column = row.phase = event.phase
            case EventKind.KILLED | EventKind.PAUSED | EventKind.RESUMED:
                # the lease lives until its ttl ends
                row.column = ""
            case EventKind.PUBLISHED | EventKind.REFUSED | EventKind.FAILED:
                row.column = ""
                row.version = event.number if event.what is EventKind.PUBLISHED else row.version
                if self.holders.get(event.repository) == event.run:
                    del self.holders[event.repository]
        row.since = event.at
        row.style = STYLES.get(event.what, "")
        row.said = sentence(event, self.holders.get(event.repository, ""))
        if event.what is EventKind.PHASE and row.token is not None:
            row.said = f"holds, token {row.token}"
        return row


class PlainBoard:
    """The display as lines of text, one for each event that ends something."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows = Rows()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def act(self, title: str) -> None:
        """Begin an act."""
        self._rows = Rows()
        self._console.print(f"\n{title}", highlight=False)

    def note(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._console.print(f"  {text}", style=style, highlight=False, markup=False, soft_wrap=True)

    def event(self, event: Event) -> None:
        """Print what a run did, with its times when it has ended."""
        row = self._rows.take(event)
        if event.what in {EventKind.STAGING, EventKind.PHASE}:
            return
        spent = "  ".join(f"{column} {row.ms[column]:.0f}" for column in COLUMNS if column in row.ms)
        timing = f"  [{spent} ms]" if event.what is EventKind.PUBLISHED else ""
        self.note(
            f"{event.run:<9} {event.repository:<4} {row.said}{timing}", row.style if event.what in DONE_TO else ""
        )


class LiveBoard:
    """The display as a table that is updated in place."""

    def __init__(self, console: Console) -> None:
        self._rows = Rows()
        self._title = ""
        self._notes: list[Text] = []
        self._console = console
        self._is_over = False
        self._live = Live(console=console, refresh_per_second=12, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        self._live.stop()

    def act(self, title: str) -> None:
        """Begin an act; the previous table scrolls up."""
        if self._title:
            self._live.console.print(self._shown(self._notes))
        self._rows, self._title, self._notes = Rows(), title, []

    def note(self, text: str, style: str = "") -> None:
        """Print a line below the table."""
        self._notes = [*self._notes, Text(text, style=style)]

    def event(self, event: Event) -> None:
        """Show an event of a run."""
        self._rows.take(event)

    def _draw(self) -> Group:
        # rows that do not fit are cut off below, and the last notes are the newest
        room = self._console.height - FURNITURE - len(self._rows.rows)
        return self._shown(self._notes if self._is_over else self._notes[-max(NOTES_MIN, room) :])

    def _shown(self, notes: list[Text]) -> Group:
        shown = self._tables() if self._rows.rows else []
        return Group(Text(f"\n{self._title}", style="bold"), *shown, *notes)

    def _tables(self) -> list[RenderableType]:
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        for name in ("run", "repo"):
            table.add_column(name)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        table.add_column("", overflow="fold", ratio=1)
        for row in list(self._rows.rows.values()):
            cells = [Text("•", style="cyan") if row.column == name else _ms(row.ms.get(name)) for name in COLUMNS]
            table.add_row(row.run, row.repository, *cells, Text(row.said, style=row.style))
        return [table]


def _ms(spent: float | None) -> Text:
    return Text("" if spent is None else f"{spent:.0f}", style="dim")


def board_for(console: Console) -> Board:
    """Return the display that fits the output."""
    return LiveBoard(console) if console.is_terminal else PlainBoard(console)
