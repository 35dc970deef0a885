"""How long a lock lies free between two processes: from before its release in one to its grant in the other."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.benchmarks.figures import Row, Size, compared, paired
from tests.benchmarks.peers import Acquire, opened

SETTLED: Final = (0.15, 0.3)
"""Seconds that the other waits before the release: long enough that it polls as slowly as it ever will, and at no fixed
distance from a poll."""


class Other:
    """The waiting process, from here."""

    def __init__(self, kind: str, where: str, acquire: Acquire) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.peers", kind, where]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._acquire = acquire
        self._kind = kind
        self._hear()

    def handed_over(self, settled: tuple[float, float] = SETTLED) -> float:
        """Return the seconds that one hand-over took. The other has been waiting for some time when it begins."""
        release = self._acquire()
        self._say("wait")
        self._hear()
        time.sleep(random.uniform(*settled))
        began = time.monotonic()
        release()
        return float(self._hear()) - began

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the process that waits for {self._kind} ended with {self._process.wait()}")
        return said

    def close(self) -> None:
        """End the other process."""
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextmanager
def waiting(kind: str, where: str) -> Iterator[Other]:
    """Have another process wait for the lock of a kind."""
    with opened(kind, where) as acquire:
        other = Other(kind, where, acquire)
        try:
            yield other
        finally:
            other.close()


def sqlite(size: Size) -> Iterator[Row]:
    """Measure hand-overs of ours and of filelock's in turn."""
    with (
        tempfile.TemporaryDirectory() as folder,
        waiting("lockstead", f"sqlite:///{folder}/locks.db") as ours,
        waiting("filelock", f"{folder}/theirs.lock") as theirs,
    ):
        pairs = [(ours.handed_over(), theirs.handed_over()) for _ in range(size.samples + 1)][1:]
    pair = paired([mine for mine, _ in pairs], [other for _, other in pairs])
    against = "filelock"
    yield compared("SQLite: hand-over, p50", pair, against, 10, "ms", of_ratio=False)
