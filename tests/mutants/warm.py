"""How many mutants are tried fast: one process imports everything once and is forked for each of them.

A fork gets the code of the changed functions in place of theirs. Only tests that run the changed line are run, the
quickest first, up to the first that fails; one that fails on the whole engine too is passed over. What no function
holds (a constant of a module, a default) is not tried here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import pytest

from tests.mutants.killing import PYTEST, ROOT, SEEDS, Mutant, of_file, path_of
from tests.mutants.swapping import statement, swapped

LIMIT: Final = 150.0
"""Seconds that a fork has beyond twice the time that its tests take on the whole engine."""

CPU_LIMIT: Final = 5.0
"""Seconds of CPU that a test has beyond what it took on the whole engine, where every line of it was noted besides. A
loop without an end costs so much and no more, and a machine that is busy elsewhere ends no test."""

TEST_LIMIT: Final = 30.0
"""Seconds after which a test has failed. The signal that ends it then may be just what it stood still for."""

LOOK_LIMIT: Final = 900.0
ANSWERS: Final = 9
"""The descriptor that answers are written to: whatever tests print goes nowhere."""

ELSEWHERE: Final = "the change is outside of all functions"
STILL: Final = "its process ended, or it stood still"
LOOPS: Final = "it took far more CPU than on the whole engine"
SEEDED: Final = "seeds"
"""The name among the tests of what the simulator plays."""


@dataclass(slots=True)
class Seen:
    """What ran which line. took: seconds of each test. cpu: those of CPU. lines: by file and line."""

    took: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    failed: list[str] = field(default_factory=list)

    def of(self, mutant: Mutant, first: int, last: int) -> list[str]:
        """Return the tests that run one of these lines, the quickest first."""
        lines = self.lines.get(mutant.file, {})
        names = {name for line in range(first, last + 1) for name in lines.get(line, ())}
        return sorted(names - set(self.failed), key=self.took.__getitem__)


@dataclass(slots=True)
class _Try:
    """A mutant under way. suspect: the test that failed, which is now run on the whole engine."""

    mutant: Mutant
    names: list[str]
    began_at: float
    suspect: str | None = None
    said: bytearray = field(default_factory=bytearray)


class Warm:
    """Takes the place of pytest's loop over the tests: tries mutants instead."""

    def __init__(self, mutants: Sequence[Mutant], jobs: int, *, is_seeded: bool) -> None:
        self._mutants = mutants
        self._files = {str(path_of(file)): file for file in {one.file for one in mutants}}
        self._jobs = jobs
        self._is_seeded = is_seeded
        self._items: dict[str, pytest.Item] = {}
        self._failed = False
        self._ran: set[tuple[str, int]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Look once which test runs which line, then try the mutants."""
        self._items = {item.nodeid: item for item in session.items}
        with os.fdopen(_forked(self._look, LOOK_LIMIT), "rb") as answer:
            seen = _seen(json.loads(answer.read()))
        _say({"tests": len(seen.took), "failed": seen.failed})
        for line in self._try_all(seen):
            _say(line)
        return True

    def _try_all(self, seen: Seen) -> Iterator[dict[str, Any]]:
        left = list(self._mutants)
        running: dict[int, _Try] = {}

        def go(one: _Try) -> None:
            limit = LIMIT + 2 * sum(seen.took[name] for name in one.names)
            running[_forked(lambda: self._kill(one.mutant, one.names, seen.cpu), limit)] = one

        while left or running:
            while left and len(running) < self._jobs:
                mutant = left.pop(0)
                go(_Try(mutant, seen.of(mutant, *statement(mutant)), time.monotonic()))
            for answer in select.select(list(running), (), (), 1.0)[0]:
                one = running[answer]
                chunk = os.read(answer, 65536)
                one.said += chunk
                if chunk:
                    continue
                del running[answer]
                os.close(answer)
                said = json.loads(one.said) if one.said else STILL
                one.said = bytearray()
                if one.suspect is not None and said is not True:
                    # it fails on the whole engine too, for now: what comes after it may tell more
                    one.names, one.suspect = one.names[one.names.index(one.suspect) + 1 :], None
                    go(one)
                elif one.suspect is None and said in self._items:
                    one.suspect = said
                    running[_forked(lambda said=said: self._passes(said))] = one
                else:
                    took = round(time.monotonic() - one.began_at, 1)
                    yield {"name": one.mutant.name, "killer": one.suspect or said, "took": took}
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    # --- in a fork -----------------------------------------------------------------------------------------------

    def _look(self) -> Any:
        """Run every test once, and give what each took and which lines it ran."""
        seen = Seen()
        for name in [*self._items, *[SEEDED] * self._is_seeded]:
            self._ran = set()
            sys.settrace(self._trace)
            threading.settrace(self._trace)
            began_at, cpu = time.monotonic(), time.process_time()
            has_passed = self._passes(name)
            seen.took[name], seen.cpu[name] = time.monotonic() - began_at, time.process_time() - cpu
            sys.settrace(None)
            threading.settrace(None)
            if not has_passed:
                seen.failed.append(name)
            for file, line in self._ran:
                seen.lines[file][line].append(name)
        return {"took": seen.took, "cpu": seen.cpu, "lines": seen.lines, "failed": seen.failed}

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        del event, arg
        file, ran = self._files.get(frame.f_code.co_filename), self._ran
        if file is None:
            return None
        ran.add((file, frame.f_lineno))

        def lines(frame: FrameType, event: str, arg: object) -> Any:
            del event, arg
            ran.add((file, frame.f_lineno))
            return lines

        return lines

    def _kill(self, mutant: Mutant, names: list[str], cpu: dict[str, float]) -> Any:
        if not swapped(mutant):
            return ELSEWHERE
        for name in names:
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT + cpu[name])
            if not self._passes(name):
                return name
        return None

    def _passes(self, name: str) -> bool:
        if name == SEEDED:
            from tests.simulation import play

            return all(play(seed).violation is None for seed in SEEDS)
        self._failed = False
        item, began_at = self._items[name], time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed and time.monotonic() - began_at < TEST_LIMIT


def _forked(work: Any, limit: float = LIMIT) -> int:
    """Call a function in a fork for at most `limit` seconds; return where its result, as JSON, can be read."""
    reads, writes = os.pipe()
    if os.fork():
        os.close(writes)
        return reads
    os.close(reads)
    os.close(ANSWERS)
    os.setsid()
    signal.signal(signal.SIGPROF, lambda *_: _end(writes, LOOPS))
    worker = os.getpid()
    if os.fork() == 0:  # ends them all, however the worker ends: the tests use its alarm themselves
        os.close(writes)
        ends_at = time.monotonic() + limit
        while time.monotonic() < ends_at and os.getppid() == worker:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)
    try:
        said = work()
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"[:200]
    _end(writes, said)
    os._exit(0)


def _end(writes: int, said: Any) -> None:
    """Answer, and end this process with all that it started."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    data = json.dumps(said).encode()
    while data:
        data = data[os.write(writes, data) :]
    os.close(writes)
    os.killpg(0, signal.SIGKILL)


def _seen(said: dict[str, Any]) -> Seen:
    lines = {file: {int(line): names for line, names in of.items()} for file, of in said["lines"].items()}
    return Seen(said["took"], said["cpu"], lines, said["failed"])


def _say(line: dict[str, Any]) -> None:
    os.write(ANSWERS, json.dumps(line).encode() + b"\n")


def tried_warm(
    mutants: Sequence[Mutant], jobs: int, places: Sequence[str], *, is_seeded: bool
) -> Iterator[dict[str, Any]]:
    """Try mutants in a process of their own. First what it says of the tests, then a verdict on each, as they come."""
    asked = {"mutants": [(one.file, one.mutation.name) for one in mutants], "places": places}
    words = [sys.executable, "-m", "tests.mutants.warm", json.dumps({"jobs": jobs, "is_seeded": is_seeded})]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        yield from map(json.loads, process.stdout)


def main(words: str) -> None:
    """Be the process that is forked."""
    asked = json.load(sys.stdin)
    os.dup2(1, ANSWERS)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    named = {file: {one.mutation.name: one for one in of_file(file)} for file, _name in asked["mutants"]}
    mutants = [named[file][name] for file, name in asked["mutants"]]
    places = [str(ROOT / place) for place in asked["places"]]
    # by a signal: a thread would end the process, and the look with it
    pytest.main(
        [*PYTEST, f"--timeout={TEST_LIMIT}", "--timeout-method=signal", "-s", *places],
        plugins=[Warm(mutants, **json.loads(words))],
    )


if __name__ == "__main__":
    main(sys.argv[1])
