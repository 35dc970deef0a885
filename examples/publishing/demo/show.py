"""Plays the acts in order and prints at the end whether the claims hold."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from examples.publishing.demo.acts import Finding, killed_and_paused, real_clients, with_lock, without_lock
from examples.publishing.demo.board import board_for
from examples.publishing.demo.faults import Faults
from examples.publishing.demo.fitness import Unfit, check_fences, check_shared
from examples.publishing.demo.locks_board import locks_board_for
from examples.publishing.demo.orchestrated import Course, a_home
from examples.publishing.demo.theatre import Ledger, theatre
from examples.publishing.gcs import Place


def show(place: Place | None, lock_url: str | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the four acts of the engine; return whether all claims hold.

    Unfit, with one line, for an unusable lock store. KeyboardInterrupt passes, after everything was stopped.
    """
    if lock_url is not None:
        check_fences(lock_url)
    with (
        _judging(console) as findings,
        board_for(console) as board,
        theatre(board, place, lock_url, ttl, pace) as stage,
    ):
        if lock_url is not None:
            check_shared(lock_url, [Path(sys.executable)])
        ledger = Ledger()
        findings.extend(without_lock(stage))
        findings.extend(with_lock(stage, ledger))
        findings.extend(killed_and_paused(stage, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


DRAWINGS = (".svg", ".png", ".pdf")


@dataclass(frozen=True, slots=True)
class Written:
    """The files to write: the output as plain lines, and the timeline."""

    record: Path | None = None
    diagram: Path | None = None

    def check(self) -> None:
        """Raise Unfit if the folder of one is missing, or the suffix of the timeline is not one of a drawing."""
        for path in filter(None, (self.record, self.diagram)):
            if not path.parent.is_dir():
                raise Unfit(f"{path}: there is no folder {path.parent}")
        if self.diagram is not None and self.diagram.suffix not in DRAWINGS:
            raise Unfit(f"{self.diagram}: a drawing ends in {', '.join(DRAWINGS)}")


def show_four(
    place: Place | None,
    lock_url: str | None,
    written: Written,
    *,
    seed: int,
    ttl: float,
    pace: float,
    console: Console,
) -> bool:
    """Play three orchestrators and a script that publish to the same repositories; like `show`.

    Unfit or Absent, with one line, before anything was started.
    """
    from examples.publishing.demo.four import Cast, one_repository
    from examples.publishing.demo.on_airflow import AIRFLOW, AirflowParty
    from examples.publishing.demo.on_dagster import DAGSTER, DagsterParty
    from examples.publishing.demo.on_prefect import PREFECT, PrefectParty
    from examples.publishing.demo.on_shell import ShellParty

    cast = Cast({one.name: one for one in (AirflowParty, PrefectParty, DagsterParty)}, {ShellParty.name: ShellParty})
    faults = Faults.of(seed, list(cast.harmed))
    written.check()
    if lock_url is not None:
        check_fences(lock_url)
    pythons = [Path(sys.executable), *(one.python for one in (AIRFLOW, PREFECT, DAGSTER))]
    course = Course()
    with (
        _recording(written.record) as recorded,
        _judging(console, recorded) as findings,
        locks_board_for(console, recorded) as board,
        theatre(board, place, lock_url, ttl, pace) as stage,
        a_home(stage, "demo", findings) as home,
    ):
        if lock_url is not None:
            check_shared(lock_url, pythons)
        ledger = Ledger()
        findings.extend(one_repository(cast, faults, stage, ledger, course, home))
        findings.extend(real_clients(stage, ledger))
    if written.diagram is not None:
        from examples.publishing.demo.diagram import draw

        draw(course, written.diagram)
    return all(finding.is_good for finding in findings)


def show_on_airflow(place: Place | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the demo on a real Airflow; like `show`."""
    # The tests' Airflow needs the tests' tools, which the other demos do without.
    from examples.publishing.demo.on_airflow import an_airflow, two_dags

    with _judging(console) as findings, board_for(console) as board, theatre(board, place, None, ttl, pace) as stage:
        ledger = Ledger()
        with an_airflow(stage, findings) as airflow:
            findings.extend(two_dags(stage, airflow, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


def show_on_prefect(place: Place | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the demo on a real Prefect; like `show`."""
    from examples.publishing.demo.on_prefect import a_prefect, two_flows

    with _judging(console) as findings, board_for(console) as board, theatre(board, place, None, ttl, pace) as stage:
        ledger = Ledger()
        with a_prefect(stage, findings) as prefect:
            findings.extend(two_flows(stage, prefect, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


def show_on_dagster(place: Place | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the demo on a real Dagster; like `show`."""
    from examples.publishing.demo.on_dagster import a_dagster, two_jobs

    with _judging(console) as findings, board_for(console) as board, theatre(board, place, None, ttl, pace) as stage:
        ledger = Ledger()
        with a_dagster(stage, findings) as dagster:
            findings.extend(two_jobs(stage, dagster, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


@contextmanager
def _recording(path: Path | None) -> Iterator[Console | None]:
    """Return a console that writes plain lines of 100 columns to a file, without wrapping; None without a path."""
    if path is None:
        yield None
        return
    with path.open("w", encoding="utf-8") as file:
        yield Console(file=file, width=100)


@contextmanager
def _judging(console: Console, record: Console | None = None) -> Iterator[list[Finding]]:
    """Collect findings and print the verdict at the end, to the record as well."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _as_interrupt)
    started = time.monotonic()
    findings: list[Finding] = []
    yield findings
    failed = [finding for finding in findings if not finding.is_good]
    verdict = "nothing lost, nobody harmed" if not failed else f"{len(failed)} of {len(findings)} claims did not hold"
    text = f"\nVerdict: {verdict}; {len(findings) - len(failed)} claims hold ({time.monotonic() - started:.0f} s)"
    for where in filter(None, (console, record)):
        for finding in failed:
            where.print(f"NOT SO: {finding.text}", style="bold red", highlight=False, markup=False)
        where.print(text, style="bold red" if failed else "bold green", highlight=False, soft_wrap=True)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
