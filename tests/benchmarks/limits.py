"""Measures a lock in Prefect's flows beside what Prefect itself has for the purpose, a global limit of one; in one run.

`make bench-prefect`; `--quick` leaves out the recoveries, which wait for minutes; `--markdown` prints what
docs/benchmarks.md keeps. Each kind of section is entered in flow runs of real processes, ours and theirs in turn.
Conditions are equal: the leases of all live as long as the server lets its own live at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.command import command, parser
from tests.benchmarks.figures import Row, compared, paired
from tests.benchmarks.processes import Process, Site, site
from tests.benchmarks.recoveries import recoveries
from tests.benchmarks.stays import LEASE, THEIRS, by_rounds, hand_overs, lines, longest_wait, stays

OURS: Final = ("Redis", "SQLite")
KINDS: Final = (THEIRS, *OURS)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. hold: seconds of a stay; crowds: how often all the waiters come; stays: of each of two."""

    rounds: int = 21
    times: int = 5
    crowds: int = 3
    waiters: int = 8
    hold: float = 0.5
    stays: int = 12


CYCLE: Final = 0.2
HAND_OVER: Final = 0.1
LONGEST: Final = 3.0
"""What is to be reached: of theirs, of theirs, in holds."""


def measured(directory: Path, size: Size, say: Callable[[str], None], *, quick: bool) -> Iterator[Row]:
    """Measure beside a server on PostgreSQL, then beside one on SQLite; there also what waits for minutes."""
    for database in ("PostgreSQL", "SQLite"):
        say(f"a server on {database}")
        with site(database, directory / database) as here:
            there = f"`concurrency()` on {database}"
            processes = [here.process() for _ in range(size.waiters)]
            for process in processes:
                process.hear("started")
            say("cycles")
            yield from cycles(here, processes[0], size, there)
            say("hand-overs")
            yield from crowded(here, processes, size, there)
            if database == "SQLite":
                say("fairness")
                yield from fairness(here, processes[:2], size, there)
                if not quick:
                    say("recoveries, which take four minutes")
                    yield from recoveries(here, processes, directory, OURS, there)


def cycles(here: Site, process: Process, size: Size, there: str) -> Iterator[Row]:
    """Enter and leave in turn, in one flow run."""
    places = {kind: here.place(kind, "cycle") for kind in KINDS}
    process.order("cycles", places=places, rounds=size.rounds, times=size.times)
    taken = process.hear("taken")
    for kind in OURS:
        pair = paired(taken[kind], taken[THEIRS])
        yield compared(f"`@locked` on {kind}: enter and leave in a flow, p50", pair, there, CYCLE, "ms")


def crowded(here: Site, processes: list[Process], size: Size, there: str) -> Iterator[Row]:
    """Let many want to enter at once, one kind after another; the first time, which takes longer, does not count."""
    taken: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for number in range(-1, size.crowds):
        first = number % len(KINDS)
        for kind in KINDS[first:] + KINDS[:first]:
            noted = together(here, processes, kind, f"crowd-{number}", size.hold if number >= 0 else 0.0, 1)
            if number >= 0:
                taken[kind].append(hand_overs(stays(lines(noted))))
    for kind in OURS:
        what = f"`@locked` on {kind}: hand-over between {size.waiters} flows, p50"
        yield compared(what, by_rounds(taken[kind], taken[THEIRS]), there, HAND_OVER, "ms")


def fairness(here: Site, processes: list[Process], size: Size, there: str) -> Iterator[Row]:
    """Let two want to enter again as soon as they have left."""
    longest = {}
    for kind in KINDS:
        noted = together(here, processes, kind, "two", size.hold, size.stays)
        found = stays(lines(noted))
        hand_overs(found)  # see that no two were in at once
        longest[kind] = longest_wait(found, size.hold)
    for kind in OURS:
        what = f"`@locked` on {kind}: two processes, {size.stays} stays each: longest wait"
        yield Row(what, longest[kind], "holds", LONGEST, there, longest[THEIRS], longest[kind] / longest[THEIRS])


def together(here: Site, processes: list[Process], kind: str, name: str, hold: float, times: int) -> Path:
    """Have each process stay some times in one section; all ask at once. Where they noted it."""
    place = here.place(kind, name)
    noted = here.notes(kind, name)
    for process in processes:
        process.order("stay", notes=str(noted), kind=kind, place=place, hold=hold, times=times)
    for process in processes:
        process.hear("ready")
    for process in processes:
        process.say("go")
    for process in processes:
        process.hear("done")
    return noted


def main() -> None:
    """Measure, and print one table."""
    arguments = parser("bench-prefect", __doc__)
    arguments.add_argument("--quick", action="store_true", help="leave out the recoveries after kill -9")
    command(
        arguments.parse_args(),
        lambda wanted, folder, say: measured(folder, Size(), say, quick=wanted.quick),
        doing="a Prefect, for some minutes",
        about=f"Prefect 3.8; leases {LEASE} s",
    )


if __name__ == "__main__":
    main()
