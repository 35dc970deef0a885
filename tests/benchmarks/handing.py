"""How long a lock lies free between two processes: from before its release in one to its grant in the other.

As a program (`python -m tests.benchmarks.handing KIND PATH`) it is the other process: for each line on its standard
input it takes the lock, notes when, gives it back and writes down the instant.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import filelock

import lockstead
from tests.benchmarks.figures import Row, Size, compared, paired

Acquire = Callable[[], Callable[[], object]]
"""Takes the lock, waiting for it, and gives what gives it back."""


def locks(kind: str, path: str) -> Acquire:
    """Give the lock of a kind in a file."""
    if kind == "filelock":
        lock = filelock.FileLock(path)
        return lambda: lock.acquire().lock.release
    ours = lockstead.connect(f"sqlite:///{path}", listener=lambda _event: None).lock("bench")
    return lambda: ours.acquire().release


class Other:
    """The waiting process, from here."""

    def __init__(self, kind: str, path: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.handing", kind, path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._acquire = locks(kind, path)

    def handed_over(self) -> float:
        """Give the seconds that one hand-over took. The other has been waiting for some time when it begins."""
        release = self._acquire()
        self._say("wait")
        self._hear()
        # long enough that it polls as slowly as it ever will, and at no fixed distance from a poll
        time.sleep(random.uniform(0.15, 0.3))
        began = time.monotonic()
        release()
        return float(self._hear()) - began

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the other process."""
        self._process.communicate(timeout=30)


@contextmanager
def waiting(kind: str, path: str) -> Iterator[Other]:
    """Have another process wait for the lock of a kind."""
    other = Other(kind, path)
    try:
        yield other
    finally:
        other.close()


def sqlite(size: Size) -> Iterator[Row]:
    """Measure hand-overs of ours and of filelock's in turn."""
    with (
        tempfile.TemporaryDirectory() as folder,
        waiting("sqlite", f"{folder}/locks.db") as ours,
        waiting("filelock", f"{folder}/theirs.lock") as theirs,
    ):
        pairs = [(ours.handed_over(), theirs.handed_over()) for _ in range(size.samples + 1)][1:]
    pair = paired([mine for mine, _ in pairs], [other for _, other in pairs])
    against = "filelock, hand-over"
    yield compared("SQLite: hand-over between two processes, p50", pair, against, 10, "ms", of_ratio=False)


def wait_in_turn(kind: str, path: str) -> None:
    """Be the other process."""
    acquire = locks(kind, path)
    for _line in sys.stdin:
        print("waiting", flush=True)
        release = acquire()
        granted_at = time.monotonic()
        release()
        print(granted_at, flush=True)


if __name__ == "__main__":
    wait_in_turn(*sys.argv[1:])
