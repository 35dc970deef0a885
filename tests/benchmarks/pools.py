"""Measures a lock in Dagster's ops beside what Dagster itself has for the purpose, a pool with one slot; in one run.

`make bench-dagster`; `--quick` leaves out what takes minutes, the hand-overs between runs and the kill; `--markdown`
prints what docs/benchmarks.md keeps. The instance is as it comes, on SQLite, with Dagster's queue; only one thing is
told it besides: to free the slots of runs that have ended, which it does not do by itself.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.command import command, parser
from tests.benchmarks.figures import Row, compared, paired
from tests.benchmarks.imports import run
from tests.benchmarks.stays import Stay, by_rounds, hand_overs, lines
from tests.servers.dagster import Dagster
from tests.servers.redis import RedisServer

THEIRS: Final = "theirs"
OURS: Final = {"redis": "Redis", "sqlite": "SQLite"}
KINDS: Final = (THEIRS, *OURS)

FREED_AFTER: Final = 5
"""Seconds after the end of a run until Dagster frees its slots, if it is configured to."""

SETTINGS: Final = f"""
concurrency: {{pools: {{default_limit: 1}}}}
run_monitoring: {{enabled: true, poll_interval_seconds: 5, free_slots_after_run_end_seconds: {FREED_AFTER}}}
"""
QUEUED: Final = "{module: dagster._core.run_coordinator, class: QueuedRunCoordinator}"
"""As it comes."""

CYCLE: Final = 0.2
HAND_OVER: Final = 0.1
IMPORT: Final = 30.0
"""What is to be reached: of theirs, of theirs, milliseconds."""

PATIENCE: Final = 180.0
WORKS: Final = 400.0
"""Seconds that an orphan works if nothing stops it: longer than any wait of the benchmark."""

LOOKED_FOR: Final = 15.0
"""Seconds for which an orphan is looked at once the next one has entered: an overlap without an end is that long."""

POOL: Final = "a pool with one slot"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. rounds of `times` cycles; parallel steps of a run, runs; crowds: how often they come."""

    rounds: int = 21
    times: int = 5
    parallel: int = 4
    runs: int = 3
    crowds: int = 2
    imports: int = 15


class Site:
    """A running Dagster, a Redis and a folder for SQLite."""

    def __init__(self, dagster: Dagster, notes: Path) -> None:
        self.dagster = dagster
        self._notes = notes

    def launch(self, job: str, name: str, **tags: object) -> str:
        """Start a run of a job, whose bodies note what they do under this name."""
        named = {"bench/name": name, **{f"bench/{tag}": str(value) for tag, value in tags.items()}}
        return self.dagster.launch(job, tags=named)

    def noted(self, name: str, what: str, run: str = "") -> list[dict[str, Any]]:
        """Return what was noted until now."""
        return [one for one in lines(self._notes / name) if one["what"] == what and run in ("", one["run"])]

    def until(self, condition: Callable[[], object], otherwise: str) -> None:
        """Wait until a condition holds."""
        self.dagster.until(condition, otherwise, PATIENCE)

    def go(self, name: str) -> None:
        """Let the one in the section continue."""
        (self._notes / f"{name}.go").touch()


# --- measurements -----------------------------------------------------------------------------------------------


def imports(size: Size) -> Iterator[Row]:
    """Measure what every step process pays, in fresh interpreters, once everything is compiled."""
    import compileall

    import dagster_lockstead
    import lockstead

    for package in (dagster_lockstead, lockstead):
        compileall.compile_dir(str(Path(package.__file__).parent), quiet=2)
    bare = "import dagster"
    ours = "import dagster; from dagster_lockstead import LockResource, locked, leased"
    taken: dict[str, list[float]] = {bare: [], ours: []}
    for number in range(-1, size.imports):
        codes = [bare, ours] if number % 2 else [ours, bare]
        for code in codes:
            seconds = run(code)
            if number >= 0:
                taken[code].append(seconds)
    pair = paired(taken[ours], taken[bare])
    more = statistics.median(a - b for a, b in zip(taken[ours], taken[bare], strict=True)) * 1e3
    what = "`from dagster_lockstead import LockResource, locked, leased`, processor time above `import dagster`"
    yield Row(what, more, "ms", IMPORT, bare, pair.theirs * 1e3)


def cycles(here: Site, size: Size) -> Iterator[Row]:
    """Enter and leave in turn, in one step of a run."""
    execution = here.launch("cycling", "cycle", rounds=size.rounds, times=size.times)
    assert here.dagster.finished(execution, PATIENCE) == "SUCCESS", here.dagster.story(execution)
    taken = here.noted("cycle", "cycles")[0]["taken"]
    for way in ("hold", "locked"):
        for kind, store in OURS.items():
            pair = paired(taken[f"{way} {kind}"], taken[THEIRS])
            words = "`@locked` on {}: enter and leave, around 50 ms of work, p50"
            what = (words if way == "locked" else "`lock.hold()` on {}: enter and leave in a step, p50").format(store)
            yield compared(what, pair, f"{POOL}: claim and free", CYCLE, "ms")


def in_one_run(here: Site, size: Size) -> Iterator[Row]:
    """Let steps of one run contend, each in a process of its own, one kind after another."""

    def crowd(kind: str, name: str) -> None:
        execution = here.launch(f"stay_{kind}_{size.parallel}", name)
        here.until(lambda: here.noted(name, "enters"), "nobody enters")
        if kind != THEIRS:
            here.until(lambda: waiting(here, execution) == size.parallel - 1, "the others do not wait")
        here.go(name)
        assert here.dagster.finished(execution, PATIENCE) == "SUCCESS", here.dagster.story(execution)

    what = f"hand-over between {size.parallel} steps of a run, p50"
    yield from crowded(here, size, crowd, "steps", what)


def between_runs(here: Site, size: Size) -> Iterator[Row]:
    """Let runs want to enter, one kind after another."""

    def crowd(kind: str, name: str) -> None:
        executions = [here.launch(f"stay_{kind}_1", name)]
        here.until(lambda: here.noted(name, "enters"), "nobody enters")
        executions += [here.launch(f"stay_{kind}_1", name) for _ in range(size.runs - 1)]
        if kind == THEIRS:
            # they are queued, or wait in a run worker
            here.until(lambda: all(here.dagster.status(one) != "NOT_STARTED" for one in executions), "none is queued")
        else:
            here.until(lambda: all(waiting(here, one) for one in executions[1:]), "the others do not wait")
        here.go(name)
        for one in executions:
            assert here.dagster.finished(one, PATIENCE) == "SUCCESS", here.dagster.story(one)

    yield from crowded(here, size, crowd, "runs", f"hand-over between {size.runs} runs, p50")


def crowded(here: Site, size: Size, crowd: Callable[[str, str], None], word: str, what: str) -> Iterator[Row]:
    """Have the crowds come, and compare the hand-overs."""
    taken: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for number in range(size.crowds):
        for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
            name = f"{word}-{kind}-{number}"
            crowd(kind, name)
            taken[kind].append(hand_overs(stays(here.noted(name, "enters"), here.noted(name, "leaves"))))
    for kind, store in OURS.items():
        yield compared(f"`@locked` on {store}: {what}", by_rounds(taken[kind], taken[THEIRS]), POOL, HAND_OVER, "ms")


def stays(entered: Sequence[Mapping[str, Any]], left: Sequence[Mapping[str, Any]]) -> list[Stay]:
    """Return the stays of a crowd in which all had been waiting from the beginning, in the order of entering."""
    ends = {one["who"]: one["at"] for one in left}
    found = [Stay(one["who"], 0.0, one["at"], ends.get(one["who"])) for one in entered]
    return sorted(found, key=lambda stay: stay.began)


def waiting(here: Site, execution: str) -> int:
    """Count the steps of a run that say that they wait for a lock."""
    events = here.dagster.events(execution, "ENGINE_EVENT")
    return len({event.step for event in events if event.message.startswith("waiting:")})


def killed(here: Site) -> Iterator[Row]:
    """Kill the run worker of a step that works on as an orphan, while the next run wants to enter; all at once."""
    names = {kind: f"killed-{kind}" for kind in KINDS}
    holders = {kind: here.launch(f"work_{kind}_1", names[kind], seconds=WORKS) for kind in KINDS}
    here.until(lambda: all(here.noted(name, "enters") for name in names.values()), "nobody enters")
    nexts = {kind: here.launch(f"work_{kind}_1", names[kind], seconds=2) for kind in KINDS}
    here.until(lambda: all(waiting(here, nexts[kind]) for kind in OURS), "the next ones do not wait")
    at = {}
    for kind, holder in holders.items():
        os.kill(here.dagster.run_worker(holder), signal.SIGKILL)
        at[kind] = time.monotonic()
    here.until(lambda: all(here.noted(names[kind], "leaves", nexts[kind]) for kind in KINDS), "they do not enter")
    there = f"{POOL}, freed {FREED_AFTER} s after the end of a run"
    time.sleep(LOOKED_FOR)
    found = {}
    for kind in KINDS:
        entered = here.noted(names[kind], "enters", nexts[kind])[0]["at"]
        ticks = [one["at"] for one in here.noted(names[kind], "ticks", holders[kind])]
        found[kind] = Recovery(entered - at[kind], overlap(entered, ticks))
    yield from recovered(found, there)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What came of a kill: seconds until the next one was in, and seconds for which two were at work."""

    after: float
    overlap: float


def overlap(entered: float, ticks: Sequence[float]) -> float:
    """Return the seconds for which the one before worked on after the next had entered."""
    return max(0.0, max(ticks) - entered)


def recovered(found: Mapping[str, Recovery], there: str) -> Iterator[Row]:
    """Put ours beside theirs: no overlap at all is to be reached."""
    theirs = found[THEIRS]
    for kind, store in OURS.items():
        what = f"`@locked` on {store}: the run worker is killed (-9): "
        yield Row(what + "two at work at once", found[kind].overlap, "s", 0.0, there, theirs.overlap)
        yield Row(what + "until the next one is in", found[kind].after, "s", None, there, theirs.after)


# --- the run --------------------------------------------------------------------------------------------------------


def measured(directory: Path, size: Size, say: Callable[[str], None], *, quick: bool) -> Iterator[Row]:
    """Measure on a new instance."""
    say("imports")
    yield from imports(size)
    notes = directory / "notes"
    notes.mkdir()
    with RedisServer(directory / "redis") as redis:
        told = {
            "LOCKSTEAD_BENCH_NOTES": str(notes),
            "LOCKSTEAD_BENCH_REDIS": f"redis://{redis.address}/0",
            "LOCKSTEAD_BENCH_SQLITE": f"sqlite:///{directory / 'locks.db'}",
        }
        say("a Dagster")
        with Dagster(
            directory / "instance",
            "tests.benchmarks.pooled_jobs",
            coordinator=QUEUED,
            settings=SETTINGS,
            environment=told,
        ) as dagster:
            here = Site(dagster, notes)
            say("cycles")
            yield from cycles(here, size)
            say("hand-overs between steps")
            yield from in_one_run(here, size)
            if not quick:
                say("hand-overs between runs")
                yield from between_runs(here, size)
                say("a kill")
                yield from killed(here)


def main() -> None:
    """Measure, and print one table."""
    arguments = parser("bench-dagster", __doc__)
    arguments.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    command(
        arguments.parse_args(),
        lambda wanted, folder, say: measured(folder, Size(), say, quick=wanted.quick),
        doing="a Dagster, for some minutes",
        about="Dagster 1.13 on SQLite; leases 60 s",
    )


if __name__ == "__main__":
    main()
