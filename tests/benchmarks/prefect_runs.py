"""The process of `make bench-prefect` that runs flows: it reads one command a line and answers with a line of JSON.

A section is entered as users do it, inside a flow run: Prefect's by `concurrency()`, ours by `@locked`. What happens
in it is noted at once in a file that all processes share, so that a killed one has noted what it did.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from prefect import flow
from prefect.concurrency.sync import concurrency

from prefect_lockstead import locked
from tests.benchmarks.stays import LEASE, THEIRS, lines

FOR_EVER: Final = 3600.0


def section(kind: str, place: str, body: Callable[[], None]) -> Callable[[], None]:
    """Return the body under a limit of Prefect's, of this name, or under a lock of ours, of this URL."""
    if kind != THEIRS:
        return locked(place, ttl=LEASE)(body)

    def limited() -> None:
        with concurrency(place, occupy=1, strict=True, lease_duration=LEASE):
            body()

    return limited


def answer(**words: Any) -> None:
    """Answer a command."""
    print(json.dumps(words), flush=True)


@flow
def cycles(places: Mapping[str, str], rounds: int, times: int) -> dict[str, list[float]]:
    """Enter and leave each kind in turn; the median seconds of each round, after one that does not count."""
    sections = {kind: section(kind, place, _nothing) for kind, place in places.items()}
    kinds = list(sections)
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(-1, rounds):
        first = number % len(kinds)
        for kind in kinds[first:] + kinds[:first]:
            seconds = [_seconds(sections[kind]) for _ in range(times)]
            if number >= 0:
                taken[kind].append(statistics.median(seconds))
    return taken


def _nothing() -> None:
    """Do nothing."""


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Stays:
    """Stays in sections, one after another in each: each section in a flow run, and all begin together."""

    def __init__(self, notes: str, kind: str, hold: float, times: int, together: int) -> None:
        self._notes = Path(notes)
        self._kind = kind
        self._hold = hold
        self._times = times
        self._together = threading.Barrier(together, self._ready)

    @staticmethod
    def _ready() -> None:
        """Say that nothing is missing but the lock, and wait for the word."""
        answer(ready=True)
        sys.stdin.readline()

    def run(self, place: str, begins: Callable[[], None] = lambda: None) -> None:
        """Run the flow; again if it fails, as an author's `retries` would, until it has been in the section."""
        left = self._times
        has_begun = False

        def body() -> None:
            self._note("enters", place, left)
            time.sleep(self._hold)
            self._note("leaves", place, left)

        work = section(self._kind, place, body)

        @flow
        def stays() -> None:
            nonlocal left, has_begun
            if not has_begun:
                has_begun = True
                self._together.wait()
                begins()
            while left:
                self._note("asks", place, left)
                work()
                left -= 1

        while left:
            try:
                stays()
            except Exception as error:
                self._note("fails", place, left, error=repr(error))
                time.sleep(1)

    def after_another(self, place: str) -> None:
        """Wait until another one has entered."""
        while not any(line["what"] == "enters" and line["place"] == place for line in lines(self._notes)):
            time.sleep(0.05)

    def _note(self, what: str, place: str, left: int, **more: Any) -> None:
        line = dict(more, what=what, place=place, left=left, who=os.getpid(), at=time.monotonic())
        there = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(there, f"{json.dumps(line)}\n".encode())
        finally:
            os.close(there)


def stay(notes: str, kind: str, place: str, hold: float, times: int) -> None:
    """Stay in one section, in the main thread, as a flow of a worker does."""
    Stays(notes, kind, hold, times, 1).run(place)


def hold(notes: str, kind: str, places: Sequence[str], apart: float) -> None:
    """Enter several sections, some seconds apart, and stay forever."""
    stays = Stays(notes, kind, FOR_EVER, 1, len(places))
    with ThreadPoolExecutor(len(places)) as threads:
        for number, place in enumerate(places):
            threads.submit(stays.run, place, partial(time.sleep, number * apart))


def follow(notes: str, kind: str, places: Sequence[str]) -> None:
    """Want to enter several sections, each as soon as another one has."""
    stays = Stays(notes, kind, 0.1, 1, len(places))
    with ThreadPoolExecutor(len(places)) as threads:
        for place in places:
            threads.submit(stays.run, place, partial(stays.after_another, place))


def main() -> None:
    """Execute commands until standard input ends."""
    answer(started=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        match order.pop("do"):
            case "cycles":
                answer(taken=cycles(**order))
            case "stay":
                stay(**order)
                answer(done=True)
            case "hold":
                hold(**order)
            case "follow":
                follow(**order)


if __name__ == "__main__":
    main()
