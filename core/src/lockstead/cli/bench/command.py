"""The command `lockstead bench`: measures a lock on a real store, within limits, and cleans up afterwards."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import click

from lockstead.cli.bench import measures
from lockstead.cli.bench.keys import Keys
from lockstead.cli.bench.measures import Bench, Measure
from lockstead.cli.bench.peer import Peer, ProcessPeer, ThreadPeer
from lockstead.cli.doctor.figures import in_short, percentile
from lockstead.cli.doctor.prober import Prober
from lockstead.cli.exits import Exit, Failed
from lockstead.cli.options import as_json, opened, settings_in
from lockstead.cli.output import out, out_json
from lockstead.cli.signals import Interrupted, Signals
from lockstead.cli.table import out_table
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.stores import url as urls
from lockstead.stores.port import StoreUrl
from lockstead.values import seconds

TTL: Final = "60s"
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
cycle: take a free lock and give it back. renewal: of a lease that is held.
hand-over: from the release of one process until the next one, which waits,
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
    "--count", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many of each at most."
)
@click.option("--limit", metavar="TIME", default="30s", show_default=True, help="Start no measurement after this time.")
@as_json()
def bench(url: str, count: int, limit: str, json: bool) -> int:
    """Measure what a lock costs on the store at URL, under fresh random keys that are removed afterwards.

    Settings of the URL are those of the locks; a key in it is left aside. Half as many hand-overs as cycles.
    """
    parsed = urls.resolved(urls.parse_store(url))
    settings = {"ttl": TTL, **settings_in(parsed)}
    bound = seconds(limit, "limit")
    signals = Signals()
    signals.install()
    try:
        found, counts = measured(parsed, settings, count, bound)
    except Interrupted as interrupted:
        line = f"{signal.Signals(interrupted.number).name} ended the measurement"
        raise Failed(Exit.SIGNALLED + interrupted.number, line) from None
    if json:
        out_json(document(urls.printable(parsed), found, counts))
    else:
        out_table(HEADS, [row(measure) for measure in found])
        told = ", ".join(f"{number} {command}" for command, number in counts.items())
        out(f"a cycle is {sum(counts.values())} requests: {told}")
    return Exit.OK


def measured(
    parsed: StoreUrl, settings: Mapping[str, Any], count: int, limit: float
) -> tuple[list[Measure], Mapping[str, int]]:
    """Open the store, measure, and always clean up. Return the measures, and the requests of a cycle by command."""
    keys = Keys()
    given = {**settings, "owner": keys.owner}
    # the client gets its own store, which it closes; the clean-up uses this one
    store = urls.open_store(parsed)
    began_at = SYSTEM_CLOCK.now()
    prober = Prober(store, CLEAN_LIMIT, began_at + limit + LATE)
    try:
        with opened(parsed) as client:
            bench = Bench(store, client, prober, keys, given, count, began_at, limit)
            counts = measures.requests(bench)
            cycles = measures.cycles(bench)
            renewals = measures.renewals(bench)
            with closing(_peer(parsed, given)) as peer:
                hand_overs = measures.hand_overs(bench, peer, cycles.floor)
        return [cycles, renewals, hand_overs], counts
    finally:
        try:
            _clean(keys, prober)
        finally:
            store.close()


def _peer(parsed: StoreUrl, settings: Mapping[str, Any]) -> Peer:
    return (ProcessPeer if urls.spans_processes(parsed.text) else ThreadPeer)(parsed.text, settings)


def _clean(keys: Keys, prober: Prober) -> None:
    try:
        keys.clean(prober.store, CLEAN_LIMIT)
        prober.clean()
    except Interrupted:
        # only the first signal interrupts; the remaining clean-up is short and bounded
        keys.clean(prober.store, CLEAN_LIMIT)
        prober.clean()
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
