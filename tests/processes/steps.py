"""A program that kills a process at each step of each command of the SQLite store, and looks what is left of the file.

A step is the beginning of a SQL statement, a tick of SQLite's machine inside one, or (with the shim of `disk.c`) a
system call that changes a file. Instead of dying there, the process may meet a disk that fails from there on. Decides
how, and what to compare; prints one line of JSON for each step. It has one thread and no open file of its own when it
forks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
    Create,
    Extend,
    List,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Name, Space
from tests.processes.kill_run import born
from tests.processes.ways import FAILING, WAYS, failures_met, without_transactions

APT: Final = Name("apt")
DEB: Final = Name("deb")
STEPS_MAX: Final = 5_000
ROOT: Final = Path(__file__).parents[2]

State = tuple[Any, ...]


def store(path: Path) -> SqliteStore:
    """Open the store with clocks that do not advance, so that two runs leave identical file contents."""
    return SqliteStore(path, now=lambda: 1000.0, wall=lambda: 0.0)


def reach(path: Path, *commands: Command[Any]) -> None:
    """Make a file by these commands."""
    opened = store(path)
    for command in commands:
        opened.perform(command, 10.0)
    opened.close()


MADE: Final = (Create(DEB, {"who": "deb"}), Create(APT, {"who": "apt"}))
"""Two records; the second is of incarnation 2, revision 1."""

COMMANDS: Final[dict[str, tuple[tuple[Command[Any], ...], Command[Any]]]] = {
    "create": (MADE[:1], Create(APT, {"who": "apt"})),
    "extend": (MADE, Extend(APT, {"more": "x" * 5000}, "2")),
    "replace": (MADE, Replace(APT, {"who": "another"}, "2", "1")),
    "remove": (MADE, Remove(APT, "2", "1")),
    "read": (MADE, Read(APT)),
    "list": (MADE, List(Space.LOCK)),
    "found": ((), Create(APT, {"who": "apt"})),
}
"""What the file holds before, and the command that is killed; `found` makes the file itself and its schema."""


def state(path: Path) -> State | None:
    """Return everything the file says; None while it is not a store yet. AssertionError if it is damaged."""
    if not path.exists():
        return None
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            raise AssertionError(f"the file is damaged: {found}")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return None
        records = connection.execute("SELECT * FROM record ORDER BY space, key, part").fetchall()
        return (*records, *connection.execute("SELECT granted FROM meta").fetchall())


ANSWERS: Final[dict[int, type[StoreError] | None]] = {
    20: StoreUnavailable,
    21: OutcomeUnknown,
    22: StoreRefused,
    23: None,
}
"""How a process ends that met a failing disk: by what the store raised."""


def survive(path: Path, command: Command[Any]) -> int:
    """Carry a command out on a disk that may fail; give the code to end with, 0 if nothing failed on the way."""
    answer: type[StoreError] | None = None
    opened = store(path)
    try:
        opened.perform(command, 10.0)
    except StoreError as error:
        answer = type(error)
    has_failed = answer is not None or failures_met() > 0
    opened.close()
    return next(code for code, kind in ANSWERS.items() if kind is answer) if has_failed else 0


# --- one step ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Death:
    """What the file was after a death, or a failing disk, at this step; fault is empty if all is well.

    answer is what the store said to who met a failing disk.
    """

    command: str
    way: str
    step: int
    after: str
    answer: str = ""
    fault: str = ""


def bystander(path: Path) -> Callable[[], None]:
    """Start a process that has the file open all the time; give what ends it."""
    ready, is_ready = os.pipe()
    stay, go = os.pipe()

    def stays() -> None:
        os.close(go)
        opened = store(path)
        opened.perform(List(Space.LOCK), 10.0)
        os.write(is_ready, b"x")
        os.read(stay, 1)

    pid = born(stays)
    os.read(ready, 1)

    def end() -> None:
        os.close(go)
        os.waitpid(pid, 0)
        for descriptor in (ready, is_ready, stay):
            os.close(descriptor)

    return end


def proceed(path: Path) -> None:
    """Take the key as a next holder would; AssertionError if it cannot be had, or by a token that did not grow."""
    opened = store(path)
    try:
        before = max([0, *(seen.token or 0 for _name, seen in opened.perform(List(Space.LOCK), 10.0).entries)])
        seen = opened.perform(Read(APT), 10.0)
        taking: Command[Any] = Create(APT, {"who": "next"})
        if isinstance(seen, Snapshot):
            taking = Replace(APT, {"who": "next"}, seen.incarnation, seen.revision)
        taken = opened.perform(taking, 10.0)
        assert isinstance(taken, Snapshot), f"the next holder got {taken}"
        assert (taken.token or 0) > before, f"token {taken.token} after {before}"
        assert isinstance(opened.perform(Remove(APT, taken.incarnation), 10.0), Removed)
        assert isinstance(opened.perform(Read(APT), 10.0), Absent)
    finally:
        opened.close()


class Killing:
    """All deaths of one command by one way. with_bystander: another process has the file open meanwhile."""

    def __init__(self, folder: Path, command: str, way: str, *, with_bystander: bool, sabotage: bool) -> None:
        self.name, self.way, self.with_bystander, self.sabotage = command, way, with_bystander, sabotage
        before, self.command = COMMANDS[command]
        self.template, self.path = folder / "template.db", folder / "locks.db"
        self._clear(self.template)
        if before:
            reach(self.template, *before)
        old = state(self.template)
        self._prepare()
        reach(self.path, self.command)
        new = state(self.path)
        # where nothing is to be changed, old and new are one
        self.allowed: dict[State | None, str] = {new: "new", old: "old"}
        self.changes = new != old
        if old is None:
            # creating the file is a step of its own: a store without records, but never half a store
            self.allowed[((0,),)] = "empty"

    def _clear(self, path: Path) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    def _prepare(self) -> None:
        self._clear(self.path)
        if self.template.exists():
            shutil.copy(self.template, self.path)

    def at(self, step: int) -> Death | None:
        """Kill at this step; None if the command was over before."""
        self._prepare()
        end = bystander(self.path) if self.with_bystander else lambda: None

        def child() -> None:
            if self.sabotage:
                without_transactions()
            WAYS[self.way](step)
            if self.way in FAILING:
                os._exit(survive(self.path, self.command))
            # closing is part of it: the last one to close moves the log into the file
            reach(self.path, self.command)

        _pid, status = os.waitpid(born(child), 0)
        try:
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                return None
            if code != -signal.SIGKILL and code not in ANSWERS:
                raise AssertionError(f"the command failed with {code}")
            return self._found(step, code)
        finally:
            end()

    def _found(self, step: int, code: int) -> Death:
        after, answer = "?", ""
        try:
            seen = state(self.path)
            assert seen in self.allowed, f"between: {seen}"
            after = self.allowed[seen]
            if code in ANSWERS:
                kind = ANSWERS[code]
                answer = "done" if kind is None else kind.__name__
                assert kind is not None or after == "new" or not self.changes, "done was said, and it was not"
                assert kind not in (StoreUnavailable, StoreRefused) or after != "new", f"{answer}, and it was done"
            proceed(self.path)
        except Exception as error:
            return Death(self.name, self.way, step, after, answer, f"{type(error).__name__}: {error}")
        return Death(self.name, self.way, step, after, answer)


def deaths(folder: Path, *words: str, **environment: str) -> list[Death]:
    """Run this program, and give what it told."""
    command = [sys.executable, "-m", "tests.processes.steps", str(folder), *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{command}: {done.stderr}")
    return [Death(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    """Kill at each step until none is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--bystander", action="store_true")
    parser.add_argument("--sabotage", action="store_true")
    parser.add_argument("--command", choices=sorted(COMMANDS), action="append")
    asked = parser.parse_args()
    for command in asked.command or COMMANDS:
        killing = Killing(asked.folder, command, asked.way, with_bystander=asked.bystander, sabotage=asked.sabotage)
        for step in range(1, STEPS_MAX):
            death = killing.at(step)
            if death is None:
                break
            print(json.dumps(asdict(death)))
        else:
            raise AssertionError(f"{command} never came to its end")
    with suppress(BrokenPipeError):
        sys.stdout.flush()


if __name__ == "__main__":
    main()
