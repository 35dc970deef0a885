"""Plays the four acts in order and says at the end whether the claims hold."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from examples.publishing.demo.acts import Finding, killed_and_paused, real_clients, with_lock, without_lock
from examples.publishing.demo.board import board_for
from examples.publishing.demo.theatre import Ledger, theatre
from examples.publishing.gcs import Place


def show(place: Place | None, lock_url: str | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the demo; gives whether everything it claims was seen. KeyboardInterrupt passes, with all stopped."""
    with (
        _judging(console) as findings,
        board_for(console) as board,
        theatre(board, place, lock_url, ttl, pace) as stage,
    ):
        ledger = Ledger()
        findings.extend(without_lock(stage))
        findings.extend(with_lock(stage, ledger))
        findings.extend(killed_and_paused(stage, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


def show_on_airflow(place: Place | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the demo on a real Airflow; as `show`."""
    # The tests' Airflow comes with the tests' tools, which the other demo does without.
    from examples.publishing.demo.on_airflow import an_airflow, two_dags

    with _judging(console) as findings, board_for(console) as board, theatre(board, place, None, ttl, pace) as stage:
        ledger = Ledger()
        with an_airflow(stage, findings) as airflow:
            findings.extend(two_dags(stage, airflow, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


def show_on_prefect(place: Place | None, *, ttl: float, pace: float, console: Console) -> bool:
    """Play the demo on a real Prefect; as `show`."""
    from examples.publishing.demo.on_prefect import a_prefect, two_flows

    with _judging(console) as findings, board_for(console) as board, theatre(board, place, None, ttl, pace) as stage:
        ledger = Ledger()
        with a_prefect(stage, findings) as prefect:
            findings.extend(two_flows(stage, prefect, ledger))
        findings.extend(real_clients(stage, ledger))
    return all(finding.is_good for finding in findings)


@contextmanager
def _judging(console: Console) -> Iterator[list[Finding]]:
    """Collect findings and give the verdict at the end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _as_interrupt)
    started = time.monotonic()
    findings: list[Finding] = []
    yield findings
    failed = [finding for finding in findings if not finding.is_good]
    for finding in failed:
        console.print(f"NOT SO: {finding.text}", style="bold red", highlight=False, markup=False)
    verdict = "nothing lost, nobody harmed" if not failed else f"{len(failed)} of {len(findings)} claims did not hold"
    console.print(
        f"\nVerdict: {verdict}; {len(findings) - len(failed)} claims hold ({time.monotonic() - started:.0f} s)",
        style="bold red" if failed else "bold green",
        highlight=False,
        soft_wrap=True,
    )


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
