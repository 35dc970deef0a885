"""The command `lockstead prune`: remove what processes that died left in a store, and old history."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from lockstead.cli.exits import Exit, Failed, say
from lockstead.cli.options import as_json, opened, store_at, time_option, warn_of_place
from lockstead.cli.output import out_json
from lockstead.cli.signals import interruptible

if TYPE_CHECKING:
    from lockstead.lock import Client
    from lockstead.views import PruneResult

EPILOG: Final = """\b
Examples:
  lockstead prune --dry-run gs://my-bucket/locks
  lockstead prune --older-than 30d sqlite:///locks.db
  lockstead prune --wait 10m --json sqlite:///locks.db

\b
Exit codes: 0 pruned, or
  64 wrong usage      69 the store failed, or refused some of it
  128 + n signal n ended it
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@time_option("--older-than", "Keep what changed within this time. Default: 7d.", default="7d")
@time_option("--history-older-than", "Keep the history of this time. Default: 366d.", default="366d")
@click.option("--dry-run", is_flag=True, help="Remove nothing; show what would be removed.")
@click.option(
    "--forget-unclean",
    is_flag=True,
    help="Also remove records that tell the next holder of a lost or broken lease; the history keeps each.",
)
@time_option(
    "--wait", "Where the store shows no age (ZooKeeper, Cassandra): watch the records for so long.", default="0"
)
@click.option("--per-second", type=float, metavar="N", default=50.0, help="Maximum removals per second. Default: 50.")
@as_json()
def prune(
    url: str,
    older_than: float,
    history_older_than: float,
    dry_run: bool,
    forget_unclean: bool,
    wait: float,
    per_second: float,
    json: bool,
) -> int:
    """Remove what nobody else removes from the store at URL: records of dead processes, and old history.

    A record is removed only if its lease is over, and if it is still as it was seen. Locks that are held stay, and so
    does what the next holder must learn of the last one.
    """
    place = store_at(url)
    if place.key is not None:
        raise click.UsageError(f"prune cleans a whole store: leave out '#{place.key}'")
    asked = {
        "older_than": older_than,
        "history_older_than": history_older_than,
        "dry_run": dry_run,
        "forget_unclean": forget_unclean,
        "per_second": per_second,
    }
    with interruptible("the pruning"), opened(place.store) as client:
        results = list(_rounds(client, asked, wait))
        warn_of_place(client)
        store = client._engine.store.url
    last = results[-1]
    removed = _summed(results, dry_run=dry_run)
    names = list(dict.fromkeys(name for result in results for name in result.names))
    if json:
        shown = [{"kind": kind, "name": name} for kind, name in names]
        said = {"store": store, "dry_run": dry_run, "removed": removed, "kept": dict(last.kept)}
        out_json({**said, "names": shown, "refused": list(last.refused)})
    else:
        _show(removed, names if dry_run else [], last)
    if last.refused:
        raise Failed(Exit.STORE, f"a part was not pruned: {'; '.join(last.refused)}")
    return Exit.OK


def _rounds(client: Client, asked: dict[str, Any], wait: float) -> Iterator[PruneResult]:
    """Prune until nothing is left to do, or `wait` seconds were spent on watching records."""
    ends_at = time.monotonic() + wait
    while True:
        result = client.prune(**asked)
        yield result
        left = ends_at - time.monotonic()
        if not result.is_complete and not result.dry_run and any(result.removed.values()):
            continue
        if result.again_in is None or left <= 0:
            return
        time.sleep(min(left, result.again_in + 0.1))


def _summed(results: list[PruneResult], *, dry_run: bool) -> dict[str, int]:
    """Return the numbers of all rounds; a dry run counts what is still there in each."""
    if dry_run:
        return dict(results[-1].removed)
    total: Counter[str] = Counter(dict.fromkeys(results[0].removed, 0))
    for result in results:
        total.update(result.removed)
    return dict(total)


def _show(removed: dict[str, int], names: list[tuple[str, str]], last: PruneResult) -> None:
    from lockstead.cli.table import out_table

    head = "WOULD BE REMOVED" if last.dry_run else "REMOVED"
    out_table(("KIND", head), [(kind, str(count)) for kind, count in removed.items() if count])
    out_table(("KIND", "NAME"), names)
    if not any(removed.values()):
        say("there is nothing to remove")
    kept = last.kept
    if kept["unclean"]:
        say(
            f"kept records that tell the next holder of a lost or broken lease: {kept['unclean']}; --forget-unclean "
            "moves that into the history"
        )
    if kept["undecided"]:
        again = "" if last.again_in is None or math.isinf(last.again_in) else f" --wait {math.ceil(last.again_in)}s"
        say(f"kept {kept['undecided']} records whose age this store does not show; watch them with{again or ' --wait'}")
    if kept["unreadable"]:
        say(f"kept {kept['unreadable']} unreadable records; 'lockstead list' shows those of locks")
    if kept["changed"]:
        say(f"kept {kept['changed']} records that changed meanwhile, or for which the store did not answer")
