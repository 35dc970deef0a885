"""The command `lockstead inspect`: show one lock."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from lockstead.cli.exits import Exit, say
from lockstead.cli.options import as_json, opened, parse_lock_url, warn_of_place
from lockstead.cli.output import out, out_json, wants_colours
from lockstead.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstead.lock import Client, Lock
    from lockstead.views import Contender, LockInfo

EPILOG: Final = """\b
Examples:
  lockstead inspect gs://my-bucket/locks/apt
  lockstead inspect --json sqlite:///locks.db#nightly
  lockstead inspect --exit-code sqlite:///locks.db#apt || echo "it is held"

\b
Exit codes: 0 shown, whether it is held or free, or
  64 wrong usage      69 the store failed, or the record cannot be read
  75 it is held (with --exit-code only)
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option("--exit-code", is_flag=True, help="Exit with 75 if it is held.")
@as_json()
def inspect(url: str, exit_code: bool, json: bool) -> int:
    """Show who holds the lock at URL, since when, why, until when; and who waits, if the store keeps a queue."""
    from lockstead.stores.port import ShowsQueue

    named = parse_lock_url(url)
    with opened(named.store) as client:
        lock = client.lock(named.key, **named.settings)
        held = inspected(client, lock)
        has_queue = isinstance(client._engine.store, ShowsQueue) and (held is None or held.permits is None)
        waiting = _waiting(lock) if has_queue else None
        warn_of_place(client)
    from lockstead.cli.format import facts, waiting_facts
    from lockstead.states import TAKEABLE, state_of

    now = time.time()
    if json:
        out_json({**facts(named.key, held, now), "waiting": waiting_facts(waiting, now)})
    else:
        out(in_full(named.key, held, now, waiting or (), colours=wants_colours(sys.stdout)))
    return Exit.NOT_ACQUIRED if exit_code and state_of(held, now) not in TAKEABLE else Exit.OK


def inspected(client: Client, lock: Lock) -> LockInfo | None:
    """Return the holder of a lock, or the semaphore under its key; None if it is free."""
    from lockstead.protocol.record import KeyIsSemaphore
    from lockstead.views import semaphore_info

    try:
        return lock.inspect()
    except KeyIsSemaphore:
        shown = client.semaphore(lock.key).inspect()
        return None if shown is None else semaphore_info(shown)


def _waiting(lock: Lock) -> list[Contender] | None:
    try:
        return lock.contenders()
    except StoreError as error:
        say(f"the waiters are not known: {error}")
        return None


def in_full(key: str, held: LockInfo | None, now: float, waiting: Sequence[Contender] = (), *, colours: bool) -> str:
    """Return all fields of a lock as lines of text."""
    from lockstead.cli.format import details, headline, queue
    from lockstead.states import URGENT, state_of

    first = headline(key, held, now)
    if colours:
        first = click.style(first, bold=True, fg="red" if state_of(held, now) in URGENT else None)
    lines = [first]
    before = ""
    for name, text in (*(details(held, now) if held is not None else ()), *queue(waiting, now)):
        shown = "" if name == before else name
        before = name
        lines.append(f"  {click.style(f'{shown:<9}', dim=True) if colours else f'{shown:<9}'}  {text}")
    return "\n".join(lines)
