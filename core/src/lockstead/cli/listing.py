"""The command `lockstead list`: show the locks of a store, as a table, as JSON or as metrics."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import click

from lockstead.cli.exits import Exit, Failed, say
from lockstead.cli.options import as_json, opened, store_at, warn_of_place
from lockstead.cli.output import out, out_json_lines, to_file

if TYPE_CHECKING:
    from lockstead.views import LockInfo

EPILOG: Final = """\b
Examples:
  lockstead list gs://my-bucket/locks
  lockstead list sqlite:///locks.db
  lockstead list --json sqlite:///locks.db
  lockstead list --format openmetrics --output locks.prom sqlite:///locks.db

\b
Exit codes: 0 shown, or
  64 wrong usage      69 the store failed     74 FILE cannot be written
"""

ROWS_MAX: Final = 1000
"""Rows of the table: nobody reads more, and each is kept until the last lock was read, because it may be urgent."""


@click.command("list", epilog=EPILOG)
@click.argument("url")
@as_json("one JSON object a lock, unsorted,")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "openmetrics"]),
    help="Format of the output. Default: table.",
)
@click.option("--output", "path", metavar="FILE", help="Write to FILE, which is replaced only as a whole.")
@click.option(
    "--lock-label",
    "lock_labels",
    metavar="PATTERN=NAME",
    multiple=True,
    help="Name of matching locks in metrics; may be repeated. Default: other.",
)
def list_locks(url: str, json: bool, form: str | None, path: str | None, lock_labels: Sequence[str]) -> int:
    """Show every lock of the store at URL, overdue ones first.

    URL is a store's; with '#key' at its end, only that lock is shown. A record that cannot be read (damaged, not ours,
    of a newer version) is shown as such. If the store fails, FILE stays as it is.
    """
    if json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = "json" if json else form or "table"
    if lock_labels and form != "openmetrics":
        raise click.UsageError("--lock-label belongs to --format openmetrics")
    place = store_at(url)
    with nullcontext() if path is None else to_file(path), opened(place.store) as client:
        shown = (held for held in client.scan() if place.key in (None, held.key))
        if form == "openmetrics":
            out(_metrics(client._engine.store.url, shown, lock_labels))
        elif form == "json":
            _print_json(shown)
        else:
            _print_table(shown)
        warn_of_place(client)
    return Exit.OK


def _print_json(shown: Iterable[LockInfo]) -> None:
    from lockstead.cli.format import facts

    out_json_lines(facts(held.key, held, time.time()) for held in shown)


def _print_table(shown: Iterable[LockInfo]) -> None:
    from lockstead.cli.format import LOCK_HEADS, LOCK_WORDS, lock_row
    from lockstead.cli.table import out_table
    from lockstead.states import URGENT, state_of

    now = time.time()
    rank = {state: number for number, state in enumerate(URGENT)}
    count = itertools.count()
    urgent = heapq.nsmallest(
        ROWS_MAX,
        # counted as they come: only the most urgent are kept
        (held for held, _ in zip(shown, count, strict=False)),
        key=lambda held: (rank.get(state_of(held, now), len(rank)), held.key),
    )
    # a scan may show a lock twice
    found = list({held.key: held for held in urgent}.values())
    if not found:
        say("no lock is held there")
    out_table(LOCK_HEADS, [lock_row(held, now) for held in found], LOCK_WORDS)
    if (more := next(count) - len(urgent)) > 0:
        say(f"{more} more are not shown; --json shows every lock")


def _metrics(store: str, shown: Iterable[LockInfo], lock_labels: Sequence[str]) -> str:
    """Return the metrics of one round, in which every lock is shown."""
    try:
        from lockstead.monitor.openmetrics import Metrics
    except ModuleNotFoundError as missing:
        needs = f"metrics need {missing.name}: pip install 'lockstead[cli,prometheus]'"
        raise Failed(Exit.STORE, needs) from None
    from lockstead.monitor.names import LockNames
    from lockstead.monitor.rounds import Round

    metrics = Metrics(LockNames.parse(lock_labels))
    watcher = metrics.of(store)
    began = time.time()
    watcher.began(began)
    locks = 0
    for held in shown:
        watcher.saw(held)
        locks += 1
    watcher.ended(Round(store, 1, began, time.time() - began, locks))
    return metrics.text().decode().rstrip("\n")
