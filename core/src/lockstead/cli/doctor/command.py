"""The command `lockstead doctor`: examines a real store, prints the findings, and cleans up afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import click

from lockstead.cli.doctor import figures
from lockstead.cli.doctor.prober import PAUSES, Prober
from lockstead.cli.doctor.promises import tried
from lockstead.cli.doctor.report import document, is_usable, line, summary
from lockstead.cli.exits import Exit
from lockstead.cli.options import as_json, settings_in, time_option
from lockstead.cli.output import out, out_json, wants_colours
from lockstead.cli.signals import Interrupted, interruptible
from lockstead.errors import OutcomeUnknown, StoreError, StoreUnavailable
from lockstead.protocol.commands import Command, Create, Read, Remove, Snapshot
from lockstead.runtime.clock import SYSTEM_CLOCK
from lockstead.settings import Settings
from lockstead.stores import url as urls
from lockstead.stores.examination import Finding, Guarantee, Severity
from lockstead.stores.port import Store, StoreUrl, SupportsDiagnostics
from lockstead.values import SCRATCH_KEY, Name

SAMPLES: Final = 10
"""Number of times each command is timed."""

LIMIT: Final = "10s"
WHOLE: Final = 180.0
"""Seconds after which no further request is sent."""

EPILOG: Final = """\b
Examples:
  lockstead doctor gs://my-bucket/locks
  lockstead doctor --quiet 'gs://my-bucket/locks?ttl=30s'
  lockstead doctor --json sqlite:///locks.db

\b
Severities: ok; note: no action needed; warning: locks work, but trouble is
likely; failure: locks do not work here.

\b
Exit codes: 0 usable, perhaps with warnings, or
  64 wrong usage      69 a failure was found
  128 + n signal n ended it, and what was written is removed
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@as_json()
@click.option("-q", "--quiet", is_flag=True, help="Show only notes, warnings and failures.")
@time_option("--limit", "How long one request may take.", default=LIMIT, show_default=True)
def doctor(url: str, json: bool, quiet: bool, limit: float) -> int:
    """Examine the store at URL and report each problem.

    Sends the requests of a lock, under its own names in the reserved space, and removes what it wrote, also after
    Ctrl-C. Other locks are neither changed nor read. A key in the URL is ignored.
    """
    parsed = urls.resolved(urls.parse_store(url))
    options = settings_in(parsed)
    ttl = Settings.make(**options).ttl if options else None
    if limit <= 0:
        raise click.UsageError("--limit must be above 0")
    guarantee = urls.opener(parsed.scheme).traits.guarantee
    findings: list[Finding] = []
    with interruptible("the examination"), closing(examined(parsed, limit, ttl)) as found:
        for finding in found:
            findings.append(finding)
            if not json and not (quiet and finding.severity is Severity.OK):
                out(line(finding, colour=wants_colours(sys.stdout)))
    if json:
        out_json(document(urls.printable(parsed), guarantee, findings))
    else:
        out(summary(findings, guarantee))
    return Exit.OK if is_usable(findings) else Exit.STORE


def examined(parsed: StoreUrl, limit: float, ttl: float | None) -> Generator[Finding, None, None]:
    """Open a store, examine it, and close it. Yields findings; always cleans up, even if it is ended early."""
    try:
        store = urls.open_store(parsed)
    except StoreError as error:
        yield _failed(error)
        return
    try:
        prober = Prober(store, limit, SYSTEM_CLOCK.now() + WHOLE)
        try:
            yield from examined_store(store, prober, limit, ttl)
        finally:
            left = _cleaned(prober)
        if left:
            yield _left(len(left))
    finally:
        store.close()


def _cleaned(prober: Prober) -> list[Name]:
    try:
        return prober.clean()
    except Interrupted:
        # only the first signal interrupts; the remaining clean-up is short and bounded
        prober.clean()
        raise


def examined_store(store: Store, prober: Prober, limit: float, ttl: float | None) -> Iterator[Finding]:
    """Examine an open store through a prober; the caller cleans up the prober's scratch records."""
    behind: Mapping[Guarantee, str] = {}
    try:
        if isinstance(store, SupportsDiagnostics):
            behind = store.behind
            for finding in store.examine(prober.lent, limit):
                yield finding
                if finding.stops:
                    return
        for finding in tried(prober, behind):
            yield finding
            if finding.stops:
                return
        took = timed(prober)
    except StoreError as error:
        yield _failed(error)
        return
    yield from figures.of_time(prober.answers, store.traits)
    yield from figures.of_pace(took, store.traits, ttl)


def timed(prober: Prober) -> Mapping[str, list[float]]:
    """Time each command of an uncontended lock on scratch records; requests without a clear reply are left out."""
    took: dict[str, list[float]] = {"Create": [], "Read": [], "Remove": []}
    made: dict[Name, Snapshot] = {}
    for name in [prober.fresh() for _ in range(SAMPLES)]:
        seen = _timed(prober, Create(name, {"n": "1"}), took["Create"])
        if isinstance(seen, Snapshot):
            made[name] = seen
    for name in made:
        _timed(prober, Read(name), took["Read"])
    for name, seen in made.items():
        if isinstance(_timed(prober, Remove(name, seen.incarnation), took["Remove"]), StoreError):
            # some stores accept only one change of a record per second
            time.sleep(PAUSES[0])
    return took


def _timed(prober: Prober, command: Command[Any], took: list[float]) -> object:
    began_at = time.perf_counter()
    answer = prober.once(command)
    if not isinstance(answer, StoreError):
        took.append(time.perf_counter() - began_at)
    return answer


def _failed(error: StoreError) -> Finding:
    match error:
        case StoreUnavailable():
            remedy = "make sure that the store can be reached from here: network, proxy, endpoint, credentials"
        case OutcomeUnknown():
            remedy = "run it again; if it persists, look for a proxy in front of the store"
        case _:
            remedy = ""  # the message of StoreRefused already says what to do
    return Finding(Severity.FAILURE, "store", str(error), remedy, stops=True)


def _left(count: int) -> Finding:
    records = "1 scratch record" if count == 1 else f"{count} scratch records"
    text = f"{records} may be left, under the reserved name of the member {SCRATCH_KEY!r}"
    remedy = "run it again in an hour: a run also removes what an older one left"
    return Finding(Severity.WARNING, "scratch", text, remedy)
