"""Checks of the file that holds the locks, connections to it, and the meaning of SQLite's errors.

Must not know commands or records.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.reading import RECORD_BYTES_MAX
from lockstead.stores.mounts import Mount, mount_of, mounts

APPLICATION_ID: Final = 0x4C6F636B
SCHEMA_VERSION: Final = 1
ROW_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
"""Maximum bytes of a row and of any value in it: enough for a record and its name."""
SQLITE_OLDEST: Final = (3, 35, 0)
"""The oldest supported version of SQLite."""

CHECKPOINT_PAGES: Final = 4000
"""Pages in the write-ahead log at which a commit runs a checkpoint. A checkpoint syncs twice, some milliseconds, so it
should be rare; but the first block of the log's index has room for 4,062 pages, and readers search every block.
"""

T = TypeVar("T")

Identity: TypeAlias = "tuple[int, int] | None"
"""Device and inode of a file; None if there is none."""

_NEW: Final = (0, 0, 0)
"""What `_identify` returns for an unused file."""

_SCHEMA: Final = (
    """CREATE TABLE record (
        space TEXT NOT NULL, key TEXT NOT NULL, part TEXT NOT NULL,
        granted INTEGER NOT NULL, revision INTEGER NOT NULL,
        updated REAL NOT NULL, boot TEXT NOT NULL, namespace TEXT NOT NULL,
        fields TEXT NOT NULL,
        PRIMARY KEY (space, key, part)
    ) WITHOUT ROWID""",
    # one counter for the whole file: only this outlives a record, so the file does not grow
    "CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), granted INTEGER NOT NULL)",
    "INSERT INTO meta VALUES (1, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_FOREIGN: Final = (
    "SELECT 1 FROM sqlite_master WHERE sql IS NOT NULL AND NOT (sql GLOB 'CREATE TABLE *' "
    "OR sql GLOB 'CREATE INDEX *' OR sql GLOB 'CREATE UNIQUE INDEX *') LIMIT 1"
)
_FOREIGN_RECORD: Final = (
    "SELECT 1 FROM sqlite_master WHERE lower(name) = 'record' AND NOT sql GLOB 'CREATE TABLE *' LIMIT 1"
)

# fmt: off
_SHARED_BETWEEN_KERNELS: Final = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "fuse.ceph",
    "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.grpcfuse", "fuse.mfs", "fuse.rclone",
    "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs", "fuse.vmhgfs-fuse", "fuse.juicefs", "fuse.blobfuse2",
))
# fmt: on
"""File system types, as in mountinfo, that several kernels may use at once."""


def create(path: Path) -> None:
    """Create the file, readable only by its owner, unless it exists. SQLite gives its journals the same mode."""
    with suppress(OSError):  # it exists, or SQLite will say why it cannot be created
        # O_EXCL: closing a file that exists would release this process's locks on it; it follows no links by itself
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect(path: Path, limit: float) -> sqlite3.Connection:
    """Open the file, and create the schema if it is new. The connection may be used from any thread, one at a time.

    limit is seconds. Raises StoreRefused or StoreUnavailable; no command was executed yet.
    """
    ends_at = time.monotonic() + limit
    _check_journal(path, limit, ends_at)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=limit, isolation_level=None, check_same_thread=False)
        _prepare(connection, path, ends_at)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise failure(error, path, limit, may_be_applied=False) from error
        raise
    return connection


def identities(paths: Iterable[str]) -> list[Identity]:
    """Return the identity (device, inode) of the file at each path; None where there is none."""
    found: list[Identity] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - part of every command, at half the price of Path.stat
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


def journals(path: str) -> tuple[str, str]:
    """Return the paths of the write-ahead log and its index. SQLite names them after the target of a symbolic link.

    Every process that has the file open has them open too, and SQLite removes them only with the last connection.
    """
    real = os.path.realpath(path)
    return f"{real}-wal", f"{real}-shm"


def _check_journal(path: Path, limit: float, ends_at: float) -> None:
    """Raise StoreUnavailable if other connections have the file open although its write-ahead log was removed.

    The other connections continue with the deleted log, while a new connection would start another one. If no
    connection is open, the log is usually missing; then an exclusive lock can be acquired.
    """
    log = Path(journals(str(path))[0])

    def check() -> None:
        if not log.exists() and path.stat().st_size > 0:
            _lock_whole(path)

    try:
        _while_busy(check, ends_at)
    except sqlite3.Error as error:
        if _is(error, sqlite3.SQLITE_BUSY):
            raise StoreUnavailable(
                f"{path} was busy for {limit:.3g} s, and {log} is missing; if somebody removed it while processes "
                "had the file open, stop them: then the file can be used again"
            ) from error
    except OSError:
        pass  # opening it will report what is wrong


def _lock_whole(path: Path) -> None:
    """Lock the whole file for an instant. Raises OperationalError with SQLITE_BUSY if somebody else has it open."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    # not by contextlib.closing: an interrupt at its first line would leave the file locked until the next collection
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        connection.close()


def _while_busy(work: Callable[[], T], ends_at: float) -> T:
    """Repeat work until SQLite's locks let it pass; raise its error SQLITE_BUSY at `ends_at` (monotonic clock)."""
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() >= ends_at:
                raise
        time.sleep(0.005)


def check_foreign(connection: sqlite3.Connection, path: Path, *, writes: bool) -> None:
    """Raise StoreRefused for a schema with a view that would run on a read of a record, or a trigger on a write.

    An authorizer could deny it, but that is a Python function called by SQLite: an exception that a signal handler
    raises there is lost. Schema text not written by SQLite (`PRAGMA writable_schema`) begins differently and is refused
    too.
    """
    if connection.execute(_FOREIGN if writes else _FOREIGN_RECORD).fetchone() is not None:
        raise StoreRefused(
            f"cannot keep locks in {path}: another program added a trigger, a view or a virtual table to it; "
            "stop all processes that use the file and remove it"
        )


def check_place(path: Path) -> None:
    """Raise StoreRefused, with a one-line message on what to do, if a file of locks cannot be at this path."""
    if sqlite3.sqlite_version_info < SQLITE_OLDEST:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old for locks; use a Python with 3.35 or later")
    folder = path.parent
    try:
        if not folder.is_dir():
            raise StoreRefused(f"cannot keep locks in {path}: there is no folder {folder}; create it")
        found = path.stat()
    except FileNotFoundError:
        found = None
    except OSError as error:
        # a parent folder that this process may not search
        raise StoreRefused(
            f"cannot keep locks in {path}: {error.strerror}; this process must be able to write the file and its folder"
        ) from error
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise StoreRefused(f"cannot keep locks in {path}: it is not a file")
    # SQLite names the journal after the file: two names would mean two inconsistent journals
    if found is not None and found.st_nlink > 1:
        raise StoreRefused(f"cannot keep locks in {path}: the file has {found.st_nlink} hard links; leave one")
    mounted = mounts()
    check_mounted(path.resolve(), mounted)
    check_file_system(path, file_system_of(folder.resolve(), mounted))


def check_file_system(path: Path, kind: str | None) -> None:
    """Raise StoreRefused for a file system shared between kernels. kind is as in mountinfo; None if unknown."""
    if kind in _SHARED_BETWEEN_KERNELS:
        raise StoreRefused(
            f"cannot keep locks in {path}: it is on a file system shared between machines ({kind}), where neither "
            "SQLite's locks nor the boot clock hold; use a local disk, or another store"
        )


def file_system_of(folder: Path, mounted: list[Mount]) -> str | None:
    """Return the type of the file system of an absolute folder without symbolic links; None if unknown."""
    mount = mount_of(folder, mounted)
    return None if mount is None else mount.kind


def check_mounted(path: Path, mounted: list[Mount]) -> None:
    """Raise StoreRefused if an absolute path without symbolic links, or one of its journals, is a mount point."""
    points = {mount.point for mount in mounted}
    for name in (str(path), *journals(str(path))):
        if Path(name) in points:
            raise StoreRefused(
                f"cannot keep locks in {path}: {name} is mounted by itself, so the journals beside the file are not "
                "those of the processes outside; mount the whole folder"
            )


def is_unreadable(error: sqlite3.Error) -> bool:
    """Return whether a row could not be read because of its content: it is too large, or not text."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_TOOBIG or "decode to UTF-8" in str(error)


def _prepare(connection: sqlite3.Connection, path: Path, ends_at: float) -> None:
    # applies to reads and writes, before anything is copied
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_BYTES_MAX)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    found = _identify(connection)
    _check_version(path, found)
    _use_wal(connection, path, ends_at)
    if found == _NEW:
        connection.execute("BEGIN IMMEDIATE")
        found = _identify(connection)  # another process may have been first
        if found == _NEW:
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
        _check_version(path, found)


def _identify(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return application id, schema version and number of tables, read atomically."""
    row = connection.execute(
        "SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id() a, pragma_user_version() v"
    ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])


def _check_version(path: Path, found: tuple[int, int, int]) -> None:
    application, version, _ = found
    if application != APPLICATION_ID and found != _NEW:
        raise StoreRefused(f"cannot keep locks in {path}: it is a database of another program; name another file")
    if version > SCHEMA_VERSION:
        raise StoreRefused(
            f"the locks in {path} are of version {version}, newer than this one reads ({SCHEMA_VERSION}); "
            "upgrade lockstead"
        )


def _use_wal(connection: sqlite3.Connection, path: Path, ends_at: float) -> None:
    # the busy timeout does not apply to this statement
    mode = _while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], ends_at)
    if mode != "wal":
        raise StoreRefused(f"cannot keep locks in {path}: its file system allows no write-ahead log; use a local disk")


def is_read_only(error: BaseException | None) -> bool:
    """Return whether this is SQLite's error for a read-only database."""
    return isinstance(error, sqlite3.Error) and _is(error, sqlite3.SQLITE_READONLY)


def _is(error: sqlite3.Error, code: int) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == code


def failure(error: sqlite3.Error, path: Path, limit: float, *, may_be_applied: bool) -> StoreError:
    """Return the StoreError for an error of SQLite. may_be_applied: the error came from the commit itself.

    A failed write is not reported as unknown even then: a commit takes effect when its last page is completely in the
    log, and nothing is written after that page. So if a write failed (full disk, quota), there is no commit.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    could_not_write = code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE
    if may_be_applied and not could_not_write:
        return OutcomeUnknown(f"the change of {path} failed while it was committed: {error}")
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return StoreUnavailable(f"{path} was removed or moved; nothing was changed")
    if code == sqlite3.SQLITE_IOERR_WRITE:
        return StoreUnavailable(
            f"{path} could not be written ({error}: a quota, a limit of file sizes, a failing disk?); "
            "nothing was changed"
        )
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return StoreRefused(f"cannot keep locks in {path}: it is not a database; name another file")
        case sqlite3.SQLITE_CORRUPT:
            return StoreRefused(
                f"the locks in {path} are damaged ({error}); stop all processes that use the file and remove it"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return StoreRefused(
                f"cannot keep locks in {path}: {error}; this process must be able to write the file and its folder"
            )
        case sqlite3.SQLITE_FULL:
            return StoreRefused(f"cannot keep locks in {path}: the disk is full; make room")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"{path} was locked by another process for {limit:.3g} s; nothing was changed")
        case _:
            return StoreUnavailable(f"{path} could not be used: {error}; nothing was changed")
