"""A crowd of processes under one semaphore, killed and stopped at random: never more of them than permits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

import lockstead
from lockstead.stores.bootclock import boot_now
from tests.processes.permit_worker import SETTINGS, _quiet

ROOT = Path(__file__).parents[2]
WORKERS = 8
SECONDS = 60.0 if os.environ.get("LOCKSTEAD_LONG") else 20.0

Span = tuple[float, float, int]
"""When one lease was held, at least: from, until, and its slot."""


class Crowd:
    """The processes, and who harms them."""

    def __init__(self, url: str, folder: Path, permits: int, seed: int) -> None:
        self._command = [sys.executable, "-m", "tests.processes.permit_worker", url, str(folder), str(permits)]
        self._dice = random.Random(seed)
        self.workers = [self._start() for _ in range(WORKERS)]
        self._stopped: dict[subprocess.Popen[bytes], float] = {}
        self.kills = self.stops = 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT)

    def harm_for(self, seconds: float) -> None:
        """Kill and stop processes at random; a killed one is followed by another, a stopped one goes on later."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(self._dice.uniform(0.2, 1.2))
            place = self._dice.randrange(WORKERS)
            worker = self.workers[place]
            if self._dice.random() < 0.4:
                worker.kill()
                worker.wait()
                self._stopped.pop(worker, None)
                self.workers[place] = self._start()
                self.kills += 1
            elif worker not in self._stopped:
                worker.send_signal(signal.SIGSTOP)
                self._stopped[worker] = time.monotonic() + self._dice.choice([0.1, 1.0, 3.0])
                self.stops += 1
            self._resume(time.monotonic())

    def _resume(self, now: float) -> None:
        for worker in [worker for worker, until in self._stopped.items() if until <= now]:
            worker.send_signal(signal.SIGCONT)
            del self._stopped[worker]

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def spans(folder: Path) -> list[Span]:
    """Return when each lease was held, from the notes of all processes."""
    found: list[Span] = []
    for note in folder.glob("*.held"):
        held: dict[tuple[str, str], list[float]] = defaultdict(list)
        for line in note.read_text().splitlines():
            number, slot, at = line.split()
            held[number, slot].append(float(at))
        found += [(min(ats), max(ats), int(slot)) for (_, slot), ats in held.items()]
    return found


def most_at_once(held: list[Span]) -> int:
    """Return the greatest number of leases that were held at the same instant."""
    changes = sorted([(begin, 1) for begin, _, _ in held] + [(end, -1) for _, end, _ in held])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_never_more_processes_than_permits_though_they_are_killed_and_stopped(shared_url: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    with lockstead.connect(shared_url, listener=_quiet) as client:
        operator = client.semaphore("api", 3, **SETTINGS)
        operator.acquire().release()
        crowd = Crowd(shared_url, tmp_path, 3, seed)
        try:
            crowd.harm_for(SECONDS / 2)
            assert operator.resize(2, wait=60)
            shrunk_at = boot_now()
            crowd.harm_for(SECONDS / 2)
            grown_at = boot_now()
            assert operator.resize(3)
            crowd.harm_for(SECONDS / 4)
        finally:
            crowd.end()
    held = spans(tmp_path)
    assert crowd.kills > 3
    assert crowd.stops > 3
    assert len(held) > 20
    assert most_at_once(held) == 3  # it happened to be reached, and never more
    while_two = [
        (max(begin, shrunk_at), end, slot) for begin, end, slot in held if end >= shrunk_at and begin <= grown_at
    ]
    assert most_at_once([(begin, min(end, grown_at), slot) for begin, end, slot in while_two]) == 2
    assert {slot for _, _, slot in while_two} == {0, 1}
    for slot in range(3):
        assert most_at_once([one for one in held if one[2] == slot]) == 1
