"""Tables of aligned columns, without truncation, coloured on a terminal.

On a narrow terminal the free-text columns are printed below each row. rich is imported for a terminal only, because its
import takes longer than reading a lock.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from lockstead.cli.output import is_terminal, out, wants_colours

STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "overdue": {"bold": True, "fg": "red"},
    "unreadable": {"bold": True, "fg": "red"},
    "revoked": {"fg": "yellow"},
    "removed": {"fg": "yellow"},
    "expired": {"dim": True},
    "closing": {"dim": True},
}
"""The style of a cell with exactly this text."""


def out_table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ()) -> None:
    """Write rows with their heads; nothing without rows. words: heads of columns that may be printed below a row."""
    if not rows:
        return
    if is_terminal(sys.stdout):
        out(_for_terminal(heads, rows, words))
    else:
        out("\n".join(aligned([heads, *rows])))


def aligned(rows: Sequence[Sequence[str]], width_of: Callable[[str], int] = len) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _for_terminal(heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str]) -> str:
    from rich.cells import cell_len

    lines = aligned([heads, *rows], cell_len)
    below = [""] * len(rows)
    if max(map(cell_len, lines)) > shutil.get_terminal_size().columns:
        kept = [place for place, head in enumerate(heads) if head not in words]
        lines = aligned([[row[place] for place in kept] for row in (heads, *rows)], cell_len)
        below = [_words(heads, row, words) for row in rows]
    if not wants_colours(sys.stdout):
        styled = lines
    else:
        styled = [click.style(lines[0], bold=True), *map(_styled, lines[1:], rows)]
    return "\n".join([styled[0], *(line + under for line, under in zip(styled[1:], below, strict=True))])


def _words(heads: Sequence[str], row: Sequence[str], words: Sequence[str]) -> str:
    """Return the non-empty cells of these heads, one per line."""
    named = dict(zip(heads, row, strict=True))
    return "".join(f"\n    {head.lower()}: {named[head]}" for head in words if named[head])


def _styled(line: str, row: Sequence[str]) -> str:
    """Return a line with the first cell that has a style shown in it."""
    word = next((cell for cell in row if cell in STYLES), None)
    return line if word is None else line.replace(word, click.style(word, **STYLES[word]), 1)
