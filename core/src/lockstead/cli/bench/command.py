"""The command `lockstead bench`: measures a lock on a real store, within limits, and cleans up afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from lockstead.cli.bench.measures import Bench, Measure
from lockstead.cli.doctor.figures import in_short, percentile
from lockstead.cli.doctor.prober import Prober
from lockstead.cli.exits import Exit
from lockstead.cli.options import as_json, opened, settings_in, time_option
from lockstead.cli.output import out, out_json
from lockstead.cli.signals import Interrupted, interruptible
from lockstead.cli.table import out_table
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.stores import url as urls
from lockstead.stores.port import StoreUrl

TTL: Final = 60.0
"""Short, so that records expire soon even if the clean-up is killed; no store recommends a longer ttl."""

LATE: Final = 60.0
"""Seconds that a measurement started before the limit may continue after it."""

CLEAN_LIMIT: Final = 10.0
"""Seconds for each request of the clean-up."""

HEADS: Final = ("WHAT", "N", "P50", "P99", "FLOOR P50", "TIMES")

EPILOG: Final = """\b
Examples:
  lockstead bench gs://my-bucket/locks
  lockstead bench --count 100 --limit 1m sqlite:///locks.db
  lockstead bench --json sqlite:///locks.db

\b
cycle: acquire a free lock and release it. renewal: of a lease that is held.
hand-over: from the release by one client until the next one, which waits,
has the lock. FLOOR: the fewest requests that could do it, by the same client.
TIMES: p50 over the floor's.

\b
Exit codes: 0 measured, or
  64 wrong usage      69 the store failed
  128 + n signal n ended it, and what was written is removed
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option(
    "--count",
    type=click.IntRange(1, 10_000),
    default=20,
    metavar="N",
    show_default=True,
    help="Maximum number of samples of each.",
)
@time_option("--limit", "Start no measurement after this time.", default="30s", show_default=True)
@as_json()
def bench(url: str, count: int, limit: float, json: bool) -> int:
    """Measure what a lock costs on the store at URL, under fresh random keys that are removed afterwards.

    Settings in the URL apply to the locks; a key in it is ignored. Half as many hand-overs as cycles.
    """
    parsed = urls.resolved(urls.parse_store(url))
    settings = {"ttl": TTL, **settings_in(parsed)}
    with interruptible("the measurement"):
        found, counts = measured(parsed, settings, count, limit)
    if json:
        out_json(document(urls.printable(parsed), found, counts))
    else:
        out_table(HEADS, [row(measure) for measure in found])
        listed = ", ".join(f"{number} {command}" for command, number in counts.items())
        out(f"a cycle is {sum(counts.values())} requests: {listed}")
    return Exit.OK


def measured(
    parsed: StoreUrl, settings: Mapping[str, Any], count: int, limit: float
) -> tuple[list[Measure], Mapping[str, int]]:
    """Open the store, measure, and always clean up. Return the measures, and the requests of a cycle by command."""
    began_at = SYSTEM_CLOCK.now()
    # each client gets its own store, which it closes; the bare requests and the clean-up use this one
    store = urls.open_store(parsed)
    bench = Bench(store, Prober(store, CLEAN_LIMIT, began_at + limit + LATE), settings, count, began_at, limit)
    try:
        with opened(parsed) as client:
            counts = bench.requests()
            cycles = bench.cycles(client)
            renewals = bench.renewals(client)
            return [cycles, renewals, bench.hand_overs(client, urls.open_store(parsed), cycles.floor)], counts
    finally:
        try:
            _clean(bench)
        finally:
            store.close()


def _clean(bench: Bench) -> None:
    try:
        bench.clean(CLEAN_LIMIT)
    except Interrupted:
        # only the first signal interrupts; the remaining clean-up is short and bounded
        bench.clean(CLEAN_LIMIT)
        raise


# --- output ------------------------------------------------------------------------------------------------------


def row(measure: Measure) -> Sequence[str]:
    """Return one row of the table."""
    took, floor = measure.took, measure.floor
    return (
        measure.name,
        str(len(took)),
        in_short(percentile(took, 0.5)) if took else "-",
        in_short(percentile(took, 0.99)) if took else "-",
        f"{in_short(percentile(floor, 0.5))} ({measure.of_floor})" if floor else "-",
        f"{percentile(took, 0.5) / percentile(floor, 0.5):.2f}" if took and floor else "-",
    )


def document(store: str, found: Sequence[Measure], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON document. store is the printable URL; durations are in seconds."""
    return {
        "store": store,
        "requests_per_cycle": dict(counts),
        "measures": {measure.name: _figures(measure) for measure in found},
    }


def _figures(measure: Measure) -> dict[str, Any]:
    took, floor = measure.took, measure.floor
    return {
        "count": len(took),
        "p50": percentile(took, 0.5) if took else None,
        "p99": percentile(took, 0.99) if took else None,
        "floor": measure.of_floor,
        "floor_p50": percentile(floor, 0.5) if floor else None,
        "floor_p99": percentile(floor, 0.99) if floor else None,
    }
