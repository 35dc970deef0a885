"""What `top` draws of its state. Texts of records are written without control characters, and cut to the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import chop_cells
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lockstead.cli.exits import plain
from lockstead.cli.format import details, headline
from lockstead.cli.top.state import Mode, State
from lockstead.dashboard.board import Entry, Listing
from lockstead.dashboard.rows import BACKTRACE_MAX, Row, duration, row_of, short
from lockstead.reading import date_text

STYLES: Final = {
    "overdue": "bold red",
    "unreadable": "bold red",
    "revoked": "yellow",
    "expired": "dim",
    "closing": "dim",
}

_HELP: Final = "/ filter  s sort  enter details  t backtrace  b break  r refresh  q quit"
_HELP_OF_A_LOCK: Final = "enter back  t backtrace  b break  r refresh  q quit"
_COLUMNS: Final = {"KEY": 0, "STATE": 0, "OWNER": 40, "HELD FOR": 55, "LEFT": 65, "PURPOSE": 80, "STORE": 110}
"""The columns of the table, and the width of a terminal from which each is shown."""
_TEXTS: Final = ("KEY", "OWNER", "PURPOSE", "STORE")
"""The columns that share what is left of the width."""


def drawn(state: State, now: float, width: int, height: int) -> RenderableType:
    """Return the screen. now: epoch seconds. Notes in the state how many rows fit."""
    head = [_summary(state, now), *(_cut(line, width, "bold red") for line in _troubles(state, now))]
    foot = [_cut(part, width) for part in _footer(state, width)][-max(1, height - 3) :]
    head = head[: max(0, height - len(foot))]
    room = height - len(head) - len(foot)
    body = _lock(state, now, width, room) if state.is_open else _table(state, now, width, room)
    gap = [Text("")] * (room - body.row_count - 1 if isinstance(body, Table) else room - len(body.renderables))
    return Group(*head, body, *gap, *foot)


def _cut(line: str, width: int, style: str = "") -> Text:
    text = Text(plain(line), style=style, no_wrap=True, overflow="ellipsis")
    text.truncate(width, overflow="ellipsis")
    return text


def _wrapped(line: str, width: int) -> list[str]:
    return chop_cells(plain(line), max(2, width)) or [""]


def _summary(state: State, now: float) -> Text:
    total = sum(state.counts.values())
    shown = [f"{count} {name}" for name, count in state.counts.items() if name in STYLES]
    parts = [f"{total} lock{'' if total == 1 else 's'}", *shown, f"by {state.sort}"]
    if total > len(state.rows):
        parts.append(f"the first {len(state.rows)}")
    if state.wanted.q:
        parts.append(f"filter: {state.wanted.q}")
    parts.append(date_text(now) or "")
    return Text(plain(", ".join(parts)), style="bold", no_wrap=True, overflow="ellipsis")


def _troubles(state: State, now: float) -> Iterator[str]:
    for one in state.listings:
        if one.error is not None:
            age = "nothing is known yet" if one.read_at is None else f"shown as of {_ago(one, now)}"
            yield f"{one.name} does not answer, {age}: {one.error}"
        elif one.read_at is None:
            yield f"{one.name} is being read"


def _ago(one: Listing, now: float) -> str:
    return f"{duration(max(0.0, now - (one.read_at or now)))} ago"


def _footer(state: State, width: int) -> list[str]:
    """Return the prompt or message in full, or the keys as far as they fit."""
    line = _prompt(state) or state.message
    return _wrapped(line, width) if line else [_HELP_OF_A_LOCK if state.is_open else _HELP]


def _prompt(state: State) -> str:
    match state.mode:
        case Mode.FILTER:
            return f"filter: {state.text}_"
        case Mode.SLOT:
            return f"number of the permit to break: {state.text}_"
        case Mode.REASON:
            key = "" if state.asked is None else state.asked.key
            return f"reason to break {key}: {state.text}_"
        case Mode.CONFIRM if state.breaking is not None and state.asked is not None:
            held = state.breaking.held
            who = f"{state.asked.key}, held by {short(held.owner or held.holder)}"
            return f"Break {who}? {state.breaking.revoking}  [y: revoke  R: remove at once  any other key: nothing]"
        case _:
            return ""


def _table(state: State, now: float, width: int, room: int) -> Table:
    state.height = max(0, room - 1)
    state.first = max(0, min(state.first, state.cursor, len(state.rows) - 1))
    state.first = max(state.first, state.cursor - state.height + 1)
    heads = [
        head for head, least in _COLUMNS.items() if width >= least and (head != "STORE" or len(state.listings) > 1)
    ]
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), width=width, header_style="bold", show_header=room > 0
    )
    table.add_column("")
    for head in heads:
        table.add_column(head, no_wrap=True, overflow="ellipsis", ratio=1 if head in _TEXTS else None)
    for place, entry in enumerate(state.rows[state.first : state.first + state.height], state.first):
        is_here = place == state.cursor
        cells = _cells(row_of(entry.store, entry.held, now), entry, now)[: len(heads)]
        table.add_row(">" if is_here else "", *cells, style="reverse" if is_here else "")
    return table


def _cells(row: Row, entry: Entry, now: float) -> list[Text]:
    left = None if row.until is None else max(0.0, row.until - now)
    state = entry.state
    if row.limit is not None:
        state = f"{row.limit - (row.free or 0)} of {row.limit}"
    elif entry.held.readers and state == "held":
        state = f"shared {len(entry.held.readers)}"
    what = row.decode_error or (f"wanted by {row.wanted_by}" if row.wanted_by else f"{row.value} {row.purpose}".strip())
    what = f"{what} [{row.progress}]" if row.progress else what
    said = (row.key, state, row.owner, duration(row.held), duration(left), what, entry.store)
    return [
        Text(plain(text), style=STYLES.get(entry.state, "") if place == 1 else "") for place, text in enumerate(said)
    ]


def _lock(state: State, now: float, width: int, room: int) -> Group:
    state.height = room
    store, key = state.chosen or ("", "")
    held = state.held
    lines = [] if state.is_backtrace else [headline(key, held, now), f"  {'store':<9}  {store}"]
    if held is not None:
        shown = [(name, text) for name, text in details(held, now) if (name == "backtrace") is state.is_backtrace]
        lines += [text if state.is_backtrace else f"  {name:<9}  {text}" for name, text in shown]
        if held.backtrace and not state.is_backtrace:
            lines.append(f"  {'backtrace':<9}  {held.backtrace.count(chr(10)) + 1} lines: press t")
    if state.is_backtrace and not lines:
        lines = [f"{key} has no backtrace: only a lock with backtrace=True stores one"]
    parts = [part for line in lines for part in _wrapped(line[:BACKTRACE_MAX], width)]
    state.first = max(0, min(state.first, len(parts) - room))
    return Group(*(Text(part, no_wrap=True) for part in parts[state.first : state.first + room]))
