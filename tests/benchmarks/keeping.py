"""A process that keeps leases on a store with a server, and says how often they were renewed when it is asked.

As a program (`python -m tests.benchmarks.keeping URL LEASES TTL`) it takes the leases, prints a line with the resident
memory of each, and then for each line on its standard input the renewals until now. Also says how the program is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

import lockstead
from lockstead.events import LockEvent, Renewed
from tests.benchmarks.memory import resident_bytes

QUIET = 0.25
"""Seconds without a renewal: a round of them is over."""

WITHIN = 60.0
"""Seconds; for a store that renews nothing, not for a slow machine."""


class Keeping:
    """The program, from here. bytes_each is resident memory, lost how many of the leases were, when last asked."""

    def __init__(self, url: str, count: int, ttl: float) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.keeping", url, str(count), str(ttl)]
        self._count = count
        self.lost = 0
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.bytes_each = float(self._hear())

    def _hear(self) -> str:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the process that keeps leases ended with {self._process.wait()}")
        return said

    def renewals(self) -> int:
        """Return how many there were until now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told: dict[str, int] = json.loads(self._hear())
        self.lost = told["lost"]
        return told["renewals"]

    def until(self, enough: Callable[[int], bool]) -> int:
        """Wait for a number of renewals, or a loss, and then until a round is over; give the number."""
        ends_at = time.monotonic() + WITHIN
        last, changed_at = -1, 0.0
        while time.monotonic() < ends_at:
            now = self.renewals()
            if now != last:
                last, changed_at = now, time.monotonic()
            elif (enough(now) or self.lost) and time.monotonic() - changed_at >= QUIET:
                return now
            time.sleep(0.02)
        raise RuntimeError(f"{last} renewals of {self._count} leases in {WITHIN:g} s, and never a pause")

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Let the process give its leases back, and end."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def keep(url: str, count: int, ttl: float) -> None:
    """Be the program."""
    renewals = 0

    def count_renewals(event: LockEvent) -> None:
        nonlocal renewals
        renewals += isinstance(event, Renewed)

    with lockstead.connect(url, listener=count_renewals) as client:
        client.lock("warm").acquire().release()
        before = resident_bytes()
        kept = [client.lock(f"key-{number}", ttl=ttl).acquire() for number in range(count)]
        print((resident_bytes() - before) / count, flush=True)
        for _line in sys.stdin:
            lost = sum(not lease.is_held for lease in kept)
            print(json.dumps({"renewals": renewals, "lost": lost}), flush=True)
        for lease in kept:
            lease.release()


if __name__ == "__main__":
    keep(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
