"""The command `lockstead history`: show who broke which lease, the newest last."""

from __future__ import annotations

from typing import Final

import click

from lockstead.cli.exits import Exit, say
from lockstead.cli.options import as_json, opened, store_at, warn_of_place
from lockstead.cli.output import out_json_lines

EPILOG: Final = """\b
Examples:
  lockstead history gs://my-bucket/locks
  lockstead history sqlite:///locks.db#nightly
  lockstead history --json sqlite:///locks.db

\b
Exit codes: 0 shown, or
  64 wrong usage      69 the store failed
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@as_json("one JSON object an entry")
def history(url: str, json: bool) -> int:
    """Show who broke which lease, when and why.

    URL is a store's; with '#key' at its end, only the entries of that lock are shown.
    """
    place = store_at(url)
    with opened(place.store) as client:
        entries = client.history(place.key)
        warn_of_place(client)
    from lockstead.cli.format import ENTRY_HEADS, ENTRY_WORDS, entry_facts, entry_row
    from lockstead.cli.table import out_table

    if json:
        out_json_lines(map(entry_facts, entries))
        return Exit.OK
    if not entries:
        say("no broken leases recorded")
    out_table(ENTRY_HEADS, [entry_row(entry) for entry in entries], ENTRY_WORDS)
    return Exit.OK
