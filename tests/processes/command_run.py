"""A program that kills a process before and after each store command of a lease, from acquire to release.

What the process considered its own, and what became of its locks, is written to the journal. "After" means that the
store has answered and the process has not read the answer. It has one thread and no engine when it forks.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lockstead.registry
from lockstead.events import LockEvent, Renewed
from tests.processes.journal import Journal
from tests.processes.kill_run import born, look
from tests.processes.worker import Course, come_last, give_back, increment, tell

COMMANDS_MAX: Final = 100


class DiesAt:
    """A store that kills its process at the n-th command, before or after it is carried out."""

    def __init__(self, inner: Any, count: int, *, after: bool) -> None:
        self._inner = inner
        self._count = count
        self._after = after
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perform(self, command: Any, limit: float) -> Any:
        with self._lock:
            self._count -= 1
            is_last = self._count == 0
        if is_last and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = self._inner.perform(command, limit)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def live(course: Course, journal: Journal, key: str, count: int, *, after: bool) -> None:
    """Go through a lease's whole life once: acquire, draw a token, share, renew, release."""
    renewed = threading.Event()

    def told(event: LockEvent) -> None:
        if isinstance(event, Renewed):
            renewed.set()

    store = DiesAt(lockstead.registry.open_store(course.url, None), count, after=after)
    with lockstead.Client(store, listener=told) as client:
        journal.note("asks", key)
        lease = course.lock(client, key).acquire(timeout=60)
        tell(lease, journal)
        increment(course, lease, journal)
        lease.progress("half of it")
        renewed.clear()
        renewed.wait(60)
        tell(lease, journal)
        lease.share()
        renewed.clear()
        renewed.wait(60)
        tell(lease, journal)
        give_back(lease, journal)


def run(folder: Path, url: str) -> int:
    """Kill at each command until none is left, then take every lock; give how many were killed."""
    number = 0
    with Journal(folder / "journal") as journal:
        # patient: a request that takes long on a busy machine must not become another command
        course = Course(url, folder, 0, ttl=3.0, renew_every=0.3, request_timeout=0.29, max_failures=5)
        for after in (False, True):
            for count in range(1, COMMANDS_MAX):
                key = course.key(number)
                number += 1
                pid = born(child(course, journal, key, count, after=after))
                _pid, status = os.waitpid(pid, 0)
                journal.note("killed", pid=pid)
                look(course, journal)
                if status == 0:
                    break
                if not os.WIFSIGNALED(status):
                    raise AssertionError(f"the life failed with {os.waitstatus_to_exitcode(status)} at {count}")
            else:
                raise AssertionError("the life never came to its end")
        _pid, status = os.waitpid(born(lambda: come_last(Course(url, folder, number), journal)), 0)
        if status:
            raise AssertionError("the last one did not get every lock")
    return number - 2


def child(course: Course, journal: Journal, key: str, count: int, *, after: bool) -> Callable[[], None]:
    return lambda: live(course, journal, key, count, after=after)


def main() -> None:
    """Do one run in a folder; the journal and the counters are left there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    print(run(asked.folder, asked.url))


if __name__ == "__main__":
    main()
