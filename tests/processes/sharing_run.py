"""A program of processes that read and write one page under one lock, and are killed and stopped meanwhile.

A writer changes the page in two steps; a reader looks whether it ever changes under it. Each notes what it saw in the
journal; `tests.processes.sharing` judges it. It has one thread and no engine when it forks.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import lockstead
from lockstead import Client, Lease
from lockstead.events import LockEvent
from lockstead.fencing import FenceGuard
from lockstead.protocol import groups
from lockstead.protocol.commands import Script, TokenSource
from lockstead.stores.bootclock import boot_now
from lockstead.values import Sequencer
from tests.inventory import folder, known
from tests.processes.journal import Journal
from tests.processes.kill_run import born
from tests.processes.sharing import tally

TTL: Final = 2.0
SETTINGS: Final[dict[str, Any]] = {
    "ttl": TTL,
    "renew_every": 0.4,
    "request_timeout": 0.35,
    "max_failures": 3,
    "abort_margin": 0.2,
    "backoff_min": 0.01,
    "backoff_max": 0.2,
}
AT_ONCE: Final = 6
READS: Final = 0.7
"""Share of the turns that only read."""
ENOUGH: Final = {"wrote": 3, "reads": 20}
"""A run goes on, on a busy machine for longer than was asked, until the journal has so many of each event.

And until two readers were seen at once.
"""
LONGEST: Final = 120.0
KILLED_MIN: Final = 2
STOPPED_FOR: Final = 1.3 * TTL
PAGE_BYTES: Final = 1024

Half = tuple[int, str]
"""What a writer leaves in one half of the page: a number, the same in both halves, and its holder."""

BLANK: Final[Half] = (0, "")


class Page:
    """Two halves in a file, and the highest token that it has admitted. guarded: it refuses superseded tokens."""

    def __init__(self, path: Path, *, guarded: bool) -> None:
        self.path = path
        self._guard = FenceGuard(self) if guarded else None
        self._halves = [BLANK, BLANK]
        self._highest: Sequencer | None = None

    def advance(self, sequencer: Sequencer) -> Sequencer:
        """Keep the highest token; the fence store of the guard, which is asked with the file locked."""
        if self._highest is None or self._highest.rank < sequencer.rank:
            self._highest = sequencer
        return self._highest

    def read(self, sequencer: Sequencer | None) -> list[Half]:
        """Return both halves. LeaseLost if a later holder was here."""
        with self._locked():
            if self._guard is not None and sequencer is not None:
                self._guard.admit_reader(sequencer)
            return list(self._halves)

    def write(self, sequencer: Sequencer | None, number: int, half: Half) -> list[Half]:
        """Set one half, and return both. LeaseLost if a later holder was here."""
        with self._locked():
            if self._guard is not None and sequencer is not None:
                self._guard.admit(sequencer)
            self._halves[number] = half
            return list(self._halves)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # the file's own lock makes judging and touching one step, as a database would; it dies with its process
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            written = os.pread(descriptor, PAGE_BYTES, 0)
            if written:
                halves, highest = json.loads(written)
                self._halves = [(number, holder) for number, holder in halves]
                self._highest = Sequencer.parse(highest) if highest else None
            yield
            text = json.dumps([self._halves, str(self._highest) if self._highest else ""])
            os.pwrite(descriptor, text.encode().ljust(PAGE_BYTES), 0)
        finally:
            os.close(descriptor)


@dataclass
class Worker:
    """One process, which takes turns until its time is over."""

    url: str
    page: Page
    journal: Journal
    dice: random.Random
    guarded: bool
    until: float = field(default=0.0, init=False)

    def work(self) -> None:
        """Read and write until the run is over, with a fresh client now and then."""
        over = _over(self.page.path.parent)
        while not over.exists():
            with lockstead.connect(self.url, listener=_quiet) as client:
                for _turn in range(self.dice.randint(1, 12)):
                    if not over.exists():
                        self._turn(client, "shared" if self.dice.random() < READS else "exclusive")

    def _turn(self, client: Client, mode: str) -> None:
        try:
            lease = client.lock("page", **SETTINGS).acquire(self.dice.choice((0.0, 0.2, 2 * TTL, 4 * TTL)), mode=mode)
        except lockstead.NotAcquired:
            return
        except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
            self.journal.note("silent")
            return
        self.until = boot_now() + lease.time_left
        self.journal.note("began", "page", lease.holder, token=lease.token, word=mode)
        try:
            sequencer = lease.sequencer() if self.guarded else None
            if mode == "exclusive":
                self._write(lease, sequencer)
                if self.dice.random() < 0.3:
                    lease.downgrade()
                    self._read(lease, lease.sequencer() if self.guarded else None)
            else:
                self._read(lease, sequencer)
        except lockstead.LeaseLost as lost:
            self.journal.note("lost", "page", lease.holder, word=lost.reason.value, until=self.until)
        except (lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
            self.journal.note("silent", "page", lease.holder)
        with suppress(lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
            lease.release()

    def _read(self, lease: Lease, sequencer: Sequencer | None) -> None:
        began_at, leaves_at = boot_now(), boot_now() + self.dice.choice((0.0, 0.05, 0.4))
        first = self._touch(lease, lambda: self.page.read(sequencer))
        if first[0] != first[1]:
            self.journal.note("half", "page", first[0][1], word=lease.previous_lease.ending.value)
        while True:
            self._may_stop()
            again = self._touch(lease, lambda: self.page.read(sequencer))
            if again != first:
                self.journal.note("changed", "page", lease.holder, word=f"{first} became {again}")
            self.journal.note("reads", "page", lease.holder, at=began_at, until=boot_now(), value=again[0][0])
            if boot_now() > leaves_at:
                return
            time.sleep(0.01)

    def _write(self, lease: Lease, sequencer: Sequencer | None) -> None:
        before = self._touch(lease, lambda: self.page.read(sequencer))
        if before[0] != before[1]:
            self.journal.note("half", "page", before[0][1], word=lease.previous_lease.ending.value)
        mine = (max(number for number, _holder in before) + 1, lease.holder)
        for number, expected in enumerate(([mine, before[1]], [mine, mine])):
            lease.check()
            after = self._touch(lease, lambda number=number: self.page.write(sequencer, number, mine))  # type: ignore[misc]
            if after != expected:
                self.journal.note("changed", "page", lease.holder, word=f"{expected} became {after}")
            time.sleep(self.dice.choice((0.0, 0.01, 0.1)))
            self._may_stop()
        self.journal.note("wrote", "page", lease.holder, value=mine[0])

    def _touch(self, lease: Lease, touch: Callable[[], list[Half]]) -> list[Half]:
        """Touch the page, and look afterwards whether the lease was held all the time: LeaseLost if not."""
        try:
            found = touch()
        except lockstead.LeaseLost as refused:
            if lease.is_held:
                self.journal.note("refused", "page", lease.holder, word=str(refused))
            lease.check()
            raise
        lease.check()
        self.until = boot_now() + lease.time_left
        return found

    def _may_stop(self) -> None:
        if self.dice.random() < 0.01:
            self.journal.note("stops")
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _over(directory: Path) -> Path:
    """Return the file that ends a run."""
    return directory / "over"


def _quiet(_event: LockEvent) -> None:
    """Ignore an event."""


def _nobody(*_arguments: object) -> Script[float | None]:
    yield from ()
    return None


SABOTAGE: Final[dict[str, Callable[[], None]]] = {
    "writers see no reader": lambda: setattr(groups, "_occupied_for", _nobody),
}
"""Ways to break the engine of the workers, to see that the judge sees it."""


class Run:
    """Starts, kills, stops and continues workers."""

    def __init__(self, asked: argparse.Namespace, journal: Journal, *, guarded: bool) -> None:
        self.asked, self.journal, self.guarded = asked, journal, guarded
        self.dice = random.Random(asked.seed)
        self.running: set[int] = set()
        self.stopped: dict[int, float] = {}
        self.started = self.killed = 0

    def go(self) -> None:
        """Run for the asked time; then one process takes the lock in both modes."""
        began_at = boot_now()
        trouble_at = boot_now() + 1.0
        while not self._is_enough(boot_now() - began_at):
            while len(self.running) < AT_ONCE:
                self._start()
            self._look_at_the_stopped()
            # what goes on for longer is undisturbed: a queue may wait for a dead waiter for many seconds
            is_long = boot_now() > began_at + self.asked.seconds and self.killed >= KILLED_MIN
            if boot_now() > trouble_at and not is_long:
                trouble_at = boot_now() + self.dice.uniform(0.5, 2.0)
                self._trouble()
            time.sleep(0.02)
        _over(self.asked.folder).touch()
        while self.running:
            self._look_at_the_stopped()
            self._wait_for_ended()
            time.sleep(0.02)
        self.running.add(born(self._come_last))
        while self.running:
            self._wait_for_ended()
            time.sleep(0.02)

    def _is_enough(self, seconds: float) -> bool:
        if seconds < self.asked.seconds or self.killed < KILLED_MIN:
            return False
        told = self.journal.path.read_bytes()
        has_enough = all(told.count(f'"{what}"'.encode()) >= least for what, least in ENOUGH.items())
        return seconds > LONGEST or (has_enough and tally(self.journal.events())["together"] > 0)

    def _start(self) -> None:
        self.started += 1
        dice = random.Random(f"{self.asked.seed}/{self.started}")
        page = Page(self.asked.folder / "page", guarded=self.guarded)
        worker = Worker(self.asked.url, page, self.journal, dice, self.guarded)

        def child() -> None:
            if self.asked.sabotage:
                SABOTAGE[self.asked.sabotage]()
            worker.work()

        self.running.add(born(child))

    def _trouble(self) -> None:
        pid = self.dice.choice(sorted(self.running))
        if self.dice.random() < 0.5 or not self.guarded:
            self.killed += 1
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.journal.note("killed", pid=pid)
            self.running.remove(pid)
            self.stopped.pop(pid, None)
        elif len(self.stopped) < AT_ONCE // 2:
            # without a guard a process may be stopped only where it looks before it touches: by itself
            os.kill(pid, signal.SIGSTOP)

    def _look_at_the_stopped(self) -> None:
        for pid in self.running - self.stopped.keys():
            with suppress(ChildProcessError):  # it has ended
                if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None:
                    self.stopped[pid] = boot_now() + STOPPED_FOR
        for pid, until in list(self.stopped.items()):
            if boot_now() > until:
                del self.stopped[pid]
                os.kill(pid, signal.SIGCONT)
                self.journal.note("continued", pid=pid)

    def _wait_for_ended(self) -> None:
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.running.remove(pid)
                if status:
                    raise AssertionError(f"worker {pid} ended with {os.waitstatus_to_exitcode(status)}")

    def _come_last(self) -> None:
        with lockstead.connect(self.asked.url, listener=_quiet) as client:
            for mode in ("exclusive", "shared"):
                with client.lock("page", **SETTINGS).hold(timeout=60, mode=mode):
                    self.journal.note("finally", "page", word=mode)

    def kill_all(self) -> None:
        for pid in self.running:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _is_guarded(url: str) -> bool:
    """Return whether leases have tokens; asked in a process of its own, and modules are imported before the fork."""
    import_module(f"{folder(url.partition(':')[0])}.store")
    import_module("lockstead.lease")
    import_module(known(url.partition(":")[0]).module or "sqlite3")

    def ask() -> None:
        with lockstead.connect(url, listener=_quiet) as client:
            client.lock("page").inspect()
            has_tokens = client._engine.traits.tokens is not TokenSource.NONE
        os._exit(0 if has_tokens else 3)

    _pid, status = os.waitpid(born(ask), 0)
    return os.waitstatus_to_exitcode(status) == 0


def main() -> None:
    """Do one run in a folder; the journal is left there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--sabotage", choices=sorted(SABOTAGE))
    asked = parser.parse_args()
    with Journal(asked.folder / "journal") as journal:
        run = Run(asked, journal, guarded=_is_guarded(asked.url))
        try:
            run.go()
        finally:
            run.kill_all()


if __name__ == "__main__":
    main()
