"""A program that kills a process at each step of each command of the SQLite store, and looks what is left of the file.

A step is the beginning of a SQL statement, a tick of SQLite's machine inside one, or (with the shim of `disk.c`) a
system call that changes a file. Decides how to die and what to compare; prints one line of JSON for each death. It has
one thread and no open file of its own when it forks.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

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
from lockstead.stores.sqlite import SqliteStore
from lockstead.values import Name, Space
from tests.processes.slaughter import born

APT: Final = Name("apt")
DEB: Final = Name("deb")
STEPS_MAX: Final = 5_000

State = tuple[Any, ...]


def store(path: Path) -> SqliteStore:
    """Open the store with clocks that stand still, so that two runs leave the very same file contents."""
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
    """Give everything the file says; None while it is no store yet. AssertionError if it is damaged."""
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


# --- dying ----------------------------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    """Counts steps, and dies at the n-th."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, *_told: object) -> int:
        self.left -= 1
        if self.left == 0:
            die()
        return 0


def at_statement(count: int) -> None:
    """Die when the n-th SQL statement begins."""
    _connect_with(lambda made: made.set_trace_callback(_countdown(count)))


def at_tick(count: int) -> None:
    """Die at the n-th tick of SQLite's machine, as fine as it tells."""
    _connect_with(lambda made: made.set_progress_handler(_countdown(count), 1))


@functools.cache
def _countdown(count: int) -> Callable[..., int]:
    # one countdown for all connections of a process
    return Countdown(count).step


def _connect_with(prepare: Callable[[sqlite3.Connection], None]) -> None:
    connect = sqlite3.connect

    def connecting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        made = connect(*args, **kwargs)
        prepare(made)
        return made

    sqlite3.connect = connecting


def at_call(count: int) -> None:
    """Die before the n-th system call that changes a file."""
    ctypes.CDLL(None).die_at_call(ctypes.c_long(count), ctypes.c_int(0))


def in_call(count: int) -> None:
    """Die in the middle of the n-th system call that changes a file: half of what was to be written is."""
    ctypes.CDLL(None).die_at_call(ctypes.c_long(count), ctypes.c_int(1))


WAYS: Final[dict[str, Callable[[int], None]]] = {
    "statement": at_statement,
    "tick": at_tick,
    "before call": at_call,
    "in call": in_call,
}


def without_transactions(_count: int) -> None:
    """Break the store: each statement is a change of its own."""
    real = sqlite3.connect

    class Careless(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            return super().execute("SELECT 1" if sql in ("BEGIN IMMEDIATE", "COMMIT") else sql, *rest)

    sqlite3.connect = functools.partial(real, factory=Careless)


# --- one death ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Death:
    """What the file was after a death at this step; fault is empty if all is well."""

    command: str
    way: str
    step: int
    after: str
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
        reach(self.template, *before) if before else None
        old = state(self.template)
        self._prepare()
        reach(self.path, self.command)
        new = state(self.path)
        self.allowed: dict[State | None, str] = {new: "new", old: "old"}
        if old is None:
            # the making of the file is a step of its own: a store without records, but never half a store
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

        def dying() -> None:
            if self.sabotage:
                without_transactions(step)
            WAYS[self.way](step)
            # closing is part of it: the last one to close moves the log into the file
            reach(self.path, self.command)

        _pid, status = os.waitpid(born(dying), 0)
        try:
            if not os.WIFSIGNALED(status):
                assert status == 0, "the command failed"
                return None
            return self._found(step)
        finally:
            end()

    def _found(self, step: int) -> Death:
        after = "?"
        try:
            seen = state(self.path)
            assert seen in self.allowed, f"between: {seen}"
            after = self.allowed[seen]
            proceed(self.path)
        except Exception as error:
            return Death(self.name, self.way, step, after, f"{type(error).__name__}: {error}")
        return Death(self.name, self.way, step, after)


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
        killing = Killing(
            asked.folder, command, asked.way, with_bystander=asked.bystander, sabotage=asked.sabotage
        )
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
