"""The command `lockstead list`: show the locks of a store, urgent ones first, then by name."""

from __future__ import annotations

import time
from typing import Final

import click

from lockstead.cli.exits import Exit, say
from lockstead.cli.options import as_json, opened, store_at, warn_of_place
from lockstead.cli.output import out_json_lines

EPILOG: Final = """\b
Examples:
  lockstead list gs://my-bucket/locks
  lockstead list sqlite:///locks.db
  lockstead list --json sqlite:///locks.db

\b
Exit codes: 0 shown, or
  64 wrong usage      69 the store failed
"""


@click.command("list", epilog=EPILOG)
@click.argument("url")
@as_json("one JSON object a lock, unsorted,")
def list_locks(url: str, json: bool) -> int:
    """Show every lock of the store at URL, overdue ones first.

    URL is a store's; with '#key' at its end, only that lock is shown. A record that cannot be read (damaged, not ours,
    of a newer version) is shown as such.
    """
    from lockstead.cli.format import LOCK_HEADS, LOCK_WORDS, facts, lock_row
    from lockstead.cli.table import out_table
    from lockstead.states import URGENT, state_of

    place = store_at(url)
    with opened(place.store) as client:
        shown = (held for held in client.scan() if place.key in (None, held.key))
        if json:
            out_json_lines(facts(held.key, held, time.time()) for held in shown)
        found = list({held.key: held for held in shown}.values())
        warn_of_place(client)
    if json:
        return Exit.OK
    now = time.time()
    rank = {state: number for number, state in enumerate(URGENT)}
    found.sort(key=lambda held: (rank.get(state_of(held, now), len(rank)), held.key))
    if not found:
        say("no lock is held there")
    out_table(LOCK_HEADS, [lock_row(held, now) for held in found], LOCK_WORDS)
    return Exit.OK
