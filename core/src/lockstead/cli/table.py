"""Decides how rows are laid out: as a table on a terminal, elsewhere as aligned columns that nothing is cut from.

Must not know what the rows are about. rich is imported for a terminal only: it takes longer than a lock to look at.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from lockstead.cli.output import is_terminal, out

STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("overdue", "unreadable"), "bold red"),
    **dict.fromkeys(("revoked", "removed"), "yellow"),
    **dict.fromkeys(("expired", "closing"), "dim"),
}
"""How a cell with just this word is shown."""


def out_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows below their heads; nothing if there are none."""
    if not rows:
        return
    if is_terminal(sys.stdout):
        out(_for_eyes(heads, rows))
    else:
        out("\n".join(aligned([heads, *rows])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Give rows as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _for_eyes(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        # as Text: a bracket in somebody's purpose is no markup
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")
