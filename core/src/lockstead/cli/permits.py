"""The command `lockstead permits`: show a semaphore, change its limit, or remove it."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from lockstead.cli.exits import Exit, Failed, plain
from lockstead.cli.inspect import in_full
from lockstead.cli.options import as_json, opened, parse_lock_url, time_option, warn_of_place
from lockstead.cli.output import out, out_json, wants_colours
from lockstead.cli.signals import interruptible

EPILOG: Final = """\b
Examples:
  lockstead permits sqlite:///locks.db#api
  lockstead permits sqlite:///locks.db#api --set 5
  lockstead permits sqlite:///locks.db#api --set 2 --wait 10m
  lockstead permits sqlite:///locks.db#api --remove --json

\b
Exit codes: 0 shown, or done, or
  64 wrong usage      69 the store failed, or there is no semaphore to change
  75 the limit is set, but permits above it are still held
  128 + n signal n ended the wait
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option("--set", "limit", type=int, metavar="N", help="Set the limit; 0 closes the semaphore.")
@click.option("--remove", "removes", is_flag=True, help="Close the semaphore, and remove it if no permit is held.")
@time_option("--wait", "Wait so long for the holders of permits above the limit.")
@as_json()
def permits(url: str, limit: int | None, removes: bool, wait: float | None, json: bool) -> int:
    """Show the semaphore at URL: its limit, and who holds which permit. Or change it.

    Holders above a lowered limit keep their permits until they release them.
    """
    if limit is not None and removes:
        raise click.UsageError("--set and --remove exclude each other")
    if wait is not None and limit is None and not removes:
        raise click.UsageError("--wait belongs to --set or --remove")
    named = parse_lock_url(url)
    with interruptible(f"the wait for {named.key!r}"), opened(named.store) as client:
        semaphore = client.semaphore(named.key, **named.settings)
        is_done = True
        if limit is not None:
            is_done = semaphore.resize(limit, wait=wait)
        elif removes:
            is_done = semaphore.remove(wait=wait)
        shown = semaphore.inspect()
        warn_of_place(client)
    from lockstead.cli.format import facts
    from lockstead.views import semaphore_info

    now, held = time.time(), None if shown is None else semaphore_info(shown)
    if json:
        out_json({**facts(named.key, held, now), "done": is_done})
    elif is_done or shown is not None:
        if held is None:
            out(f"there is no semaphore {plain(named.key)}")
        else:
            out(in_full(named.key, held, now, colours=wants_colours(sys.stdout)))
    if not is_done and json:
        return Exit.NOT_ACQUIRED
    if not is_done:
        said = "it is closed, but not removed" if removes else f"the limit is {limit}"
        raise Failed(Exit.NOT_ACQUIRED, f"{said}: permits above the limit are still held")
    return Exit.OK
