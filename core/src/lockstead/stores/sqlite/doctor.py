"""Diagnosis of a SQLite file beyond the store's commands: disk, journal, clock, processes.

Locking between processes is tested with a real child process, which must also see what we wrote. Must not know
commands or records.
"""

from __future__ import annotations

import os
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lockstead.errors import StoreUnavailable
from lockstead.stores.bootclock import BootIdentity
from lockstead.stores.examination import Finding, Severity
from lockstead.stores.mounts import mounts
from lockstead.stores.sqlite.file import check_place, connect, create, failure, file_system_of

ROOM_MIN: Final = 1 << 20
ROOM_LOW: Final = 64 << 20
"""Bytes. A file of locks takes some tens of KiB, its journal a few MiB."""

CHILD_LIMIT: Final = 20.0
"""Seconds that the child may take to start and to reply."""

# We signal the child while we hold the write lock, when it must be refused, and after we released it, when it must get
# it. It reads a number that we changed: processes that do not share the journal's index would see different values.
CHILD: Final = """
import sqlite3, sys
one = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
one.execute("PRAGMA data_version").fetchone()
print("ready", flush=True)
for line in sys.stdin:
    try:
        one.execute(f"PRAGMA busy_timeout = {int(line)}")
        one.execute("BEGIN IMMEDIATE")
        seen = one.execute("SELECT granted FROM meta").fetchone()[0]
        one.execute("ROLLBACK")
        print("free", seen, flush=True)
    except sqlite3.OperationalError as error:
        print("busy" if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY else f"failed {error}", flush=True)
"""


def examination(path: Path, place: BootIdentity, limit: float, child: str = CHILD) -> Iterator[Finding]:
    """Yield the findings on the file at `path`. limit is seconds; raises the errors of opening the file.

    child is the program of the other process, see CHILD.
    """
    check_place(path)
    was_there = path.exists()
    create(path)
    connection = connect(path, limit)
    try:
        yield _file(path, was_there=was_there)
        yield _system(path)
        yield _room(path)
        yield _journal(connection)
        yield _damage(connection, path)
        yield _processes(connection, path, child)
    except sqlite3.Error as error:
        raise failure(error, path, limit, may_be_applied=False) from error
    finally:
        connection.close()
    yield from _clock(place)


def _file(path: Path, *, was_there: bool) -> Finding:
    # a new file stays: any client that asks for a lock creates the same, so removing it could remove a file in use
    text = "can be written" if was_there else "was made, as its first use would have; it stays"
    return Finding(Severity.OK, "file", f"{path} {text}")


def _system(path: Path) -> Finding:
    check, kind = "file.system", file_system_of(path.parent.resolve(), mounts())
    if kind is None:
        text = "the file system of the file is unknown"
        return Finding(Severity.NOTE, check, text, "see to it that no other machine can reach the file")
    if kind == "overlay":
        text = "the file is in a container's own layer: other containers do not see it, and it ends with this one"
        return Finding(Severity.NOTE, check, text, "put it on a volume that all processes share")
    return Finding(Severity.OK, check, f"the file is on a local file system ({kind})")


def _room(path: Path) -> Finding:
    found = os.statvfs(path.parent)
    room = found.f_bavail * found.f_frsize
    severity, text, remedy = Severity.OK, f"{room / (1 << 20):.0f} MiB are free", ""
    if room < ROOM_MIN or (found.f_files and not found.f_favail):
        severity, text, remedy = Severity.FAILURE, "the disk is full: no lock can be taken", "make room"
    elif room < ROOM_LOW:
        severity, text, remedy = Severity.WARNING, f"only {text}; on a full disk no lock can be taken", "make room"
    return Finding(severity, "file.room", text, remedy, {"room_bytes": float(room)})


def _journal(connection: sqlite3.Connection) -> Finding:
    mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    text = f"the journal mode is {mode} (SQLite {sqlite3.sqlite_version})"
    if mode == "wal":
        return Finding(Severity.OK, "file.journal", text)
    return Finding(
        Severity.WARNING, "file.journal", text, "stop all processes that use the file, so that it can be set to wal"
    )


def _damage(connection: sqlite3.Connection, path: Path) -> Finding:
    said = " ".join(str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]).split())
    if said == "ok":
        return Finding(Severity.OK, "file.damage", "the file is whole")
    remedy = f"stop all processes that use {path} and remove it, with its -wal and -shm"
    return Finding(Severity.FAILURE, "file.damage", f"the file is damaged: {said}", remedy)


# --- between processes -------------------------------------------------------------------------------------------


def _processes(connection: sqlite3.Connection, path: Path, program: str) -> Finding:
    check, remedy = "file.processes", "no lock is safe in this file: put it on a local disk"
    held, then, written = _with_child(connection, path, program)
    if held != "busy":
        text = f"a write lock of one process did not exclude another one: the other got {held!r}"
        return Finding(Severity.FAILURE, check, text, remedy)
    word, _, seen = then.partition(" ")
    if word != "free" or int(seen) < written:
        text = f"another process does not see what was written: it got {then!r}, not 'free {written}'"
        return Finding(Severity.FAILURE, check, text, remedy)
    return Finding(Severity.OK, check, "what one process locks or writes, another process sees")


def _with_child(connection: sqlite3.Connection, path: Path, program: str) -> tuple[str, str, int]:
    """Return the child's replies while we held the write lock and afterwards, and the number it should see then."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _answer(child, None)
        # hold the lock only until the child replies: other processes may be using the file
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("UPDATE meta SET granted = granted + 1")
            row = connection.execute("SELECT granted FROM meta").fetchone()
            held = _answer(child, 0)
        finally:
            connection.execute("COMMIT")
        return held, _answer(child, int(CHILD_LIMIT * 500)), int(row[0])
    finally:
        child.kill()
        child.communicate()


def _answer(child: subprocess.Popen[str], patience_ms: int | None) -> str:
    """Let the child try for `patience_ms` and return its reply; with None, only wait until it is ready.

    Raises StoreUnavailable if it does not reply.
    """
    if child.stdin is None or child.stdout is None:
        raise StoreUnavailable("the child has no pipes")
    if patience_ms is not None:
        child.stdin.write(f"{patience_ms}\n")
        child.stdin.flush()
    ready, _, _ = select.select([child.stdout], [], [], CHILD_LIMIT)
    answer = child.stdout.readline().strip() if ready else ""
    if not answer:
        raise StoreUnavailable("a child process, started to try the file's locks, did not answer")
    return answer


# --- time --------------------------------------------------------------------------------------------------------


def _clock(place: BootIdentity) -> Iterator[Finding]:
    yield _known(place.boot, "clock.boot", "the boot of this kernel", "a lock whose holder died with the machine")
    yield _known(place.namespace, "clock.namespace", "the time namespace", "a dead holder's lock")


def _known(what: str | None, check: str, name: str, price: str) -> Finding:
    if what is not None:
        return Finding(Severity.OK, check, f"{name} is known")
    text = f"{name} cannot be told: {price} is taken over only after it was watched for its whole ttl"
    remedy = "show this process the kernel's own /proc; a container may mount a boot id of its own over it"
    return Finding(Severity.WARNING, check, text, remedy)
