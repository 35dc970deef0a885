"""A program that starts workers, kills them with SIGKILL at moments that its dice choose, and looks at the store.

Decides who dies when, nothing else: what it saw goes to the journal, and the judge reads that. It has one thread and
no engine, so that a worker is a fork away and has everything imported already.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

# what a worker needs is imported before the fork
import lockstead.lease
import lockstead.stores.gcs.store
import lockstead.stores.sqlite.store  # noqa: F401
from lockstead import StoreUnavailable, registry
from lockstead.errors import OutcomeUnknown
from lockstead.protocol import expiry
from lockstead.protocol.commands import List
from lockstead.protocol.record import decode
from lockstead.stores.bootclock import boot_now
from lockstead.values import Space
from tests.processes.journal import Journal
from tests.processes.worker import Course, come_last, work

AT_ONCE = 6
"""Workers that live at one time."""
LIFE_MAX = 0.22
"""Seconds from a worker's start to its end at the latest, unless said otherwise."""
ALL_EVERY = 9
"""After each this many kills all processes die at once, so that none is left that has the file open."""

SABOTAGE: dict[str, Callable[[], None]] = {
    "takes over at once": lambda: setattr(expiry, "expired_by_store_clock", lambda *_args: True),
}
"""Ways to break the engine of the workers, to see that the judge sees it."""


def born(child: Callable[[], None]) -> int:
    """Fork a process that does one thing; one that fails says why and ends with 70."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        child()
        code = 0
    except BaseException:  # the child must never come back into this program
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def look(course: Course, journal: Journal) -> None:
    """Note what the store shows of every lock; StoreRefused if a record is damaged, AssertionError if the file is."""
    store = registry.open_store(course.url, None)
    try:
        began_at = boot_now()
        listing = store.perform(List(Space.LOCK), 10.0)
        shown = {
            name.key: (decode(name, seen.fields).holder, seen.token or decode(name, seen.fields).token)
            for name, seen in listing.entries
        }
        journal.note("looks", at=began_at, until=boot_now(), shown=shown)
    finally:
        store.close()
    file = course.folder / "locks.db"
    if file.exists():
        with closing(sqlite3.connect(file, timeout=10)) as connection:
            found = connection.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            raise AssertionError(f"the file is damaged: {found}")


def kill(journal: Journal, pid: int) -> None:
    """Kill one worker, which must not have ended before."""
    os.kill(pid, signal.SIGKILL)
    _pid, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"worker {pid} ended by itself with {os.waitstatus_to_exitcode(status)}")
    journal.note("killed", pid=pid)


def run(course: Course, seed: int, kills: int, life: float, sabotage: str | None) -> None:
    """Kill so many, none older than `life` seconds, then let one process take every lock."""
    dice = random.Random(seed)
    alive: dict[int, float] = {}
    done = number = 0
    with Journal(course.folder / "journal") as journal:

        def worker() -> None:
            if sabotage is not None:
                SABOTAGE[sabotage]()
            work(course, journal, f"{seed}/{number}")

        try:
            while done < kills:
                while len(alive) < AT_ONCE:
                    number += 1
                    alive[born(worker)] = time.monotonic() + dice.uniform(0.0, life)
                all_at_once = done % ALL_EVERY == ALL_EVERY - 1
                first = min(alive, key=alive.__getitem__)
                time.sleep(max(0.0, alive[first] - time.monotonic()))
                for pid in list(alive) if all_at_once else [first]:
                    del alive[pid]
                    kill(journal, pid)
                    done += 1
                look_patiently(course, journal)
        finally:
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        _pid, status = os.waitpid(born(lambda: come_last(course, journal)), 0)
        look_patiently(course, journal)
        if status:
            raise AssertionError("the last one did not get every lock")


def look_patiently(course: Course, journal: Journal) -> None:
    """Look until the store answers: a busy machine may need more than one request."""
    for _turn in range(10):
        with suppress(StoreUnavailable, OutcomeUnknown):
            return look(course, journal)
    return look(course, journal)


def main() -> None:
    """Do one run in a folder; the journal and the counters are left there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--life", type=float, default=LIFE_MAX)
    parser.add_argument("--sabotage", choices=sorted(SABOTAGE))
    asked = parser.parse_args()
    run(Course(asked.url, asked.folder, asked.keys), asked.seed, asked.kills, asked.life, asked.sabotage)


if __name__ == "__main__":
    main()
