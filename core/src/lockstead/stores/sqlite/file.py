"""Decides which file may hold locks, how a connection to it is made ready, and what an error of SQLite means.

Must not know commands or records.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Final

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable

APPLICATION_ID: Final = 0x4C6F636B
SCHEMA_VERSION: Final = 1
SQLITE_OLDEST: Final = (3, 35, 0)
"""The oldest that is promised to work."""

CHECKPOINT_PAGES: Final = 4000
"""Pages in the write-ahead log at which whoever commits brings them home. That syncs twice, some milliseconds, so it
should be rare; but the log's index has room for 4,062 pages in its first block, and readers search every block.
"""

_NEW: Final = (0, 0, 0)
"""What `_identify` gives of a file that nobody has used."""

_SCHEMA: Final = (
    """CREATE TABLE record (
        space TEXT NOT NULL, key TEXT NOT NULL, part TEXT NOT NULL,
        granted INTEGER NOT NULL, revision INTEGER NOT NULL,
        updated REAL NOT NULL, boot TEXT NOT NULL, namespace TEXT NOT NULL,
        fields TEXT NOT NULL,
        PRIMARY KEY (space, key, part)
    ) WITHOUT ROWID""",
    # one counter for the whole file: it is the only thing that outlives a record, so the file does not grow
    "CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), granted INTEGER NOT NULL)",
    "INSERT INTO meta VALUES (1, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

# fmt: off
_SHARED_BETWEEN_KERNELS: Final = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "fuse.ceph",
    "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.grpcfuse", "fuse.mfs", "fuse.rclone",
    "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs", "fuse.vmhgfs-fuse", "fuse.juicefs", "fuse.blobfuse2",
))
# fmt: on
"""File system types, as mountinfo names them, that several kernels may see at once."""


def connect(path: Path, limit: float) -> sqlite3.Connection:
    """Open the file, and make it a store if it is new. May be used from any thread, one at a time.

    limit is seconds. Raises StoreRefused or StoreUnavailable: nothing was asked of the store yet.
    """
    check_place(path)
    try:
        connection = sqlite3.connect(path, timeout=limit, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise failure(error, path, limit, may_be_applied=False) from error
    try:
        _prepare(connection, path, time.monotonic() + limit)
    except sqlite3.Error as error:
        connection.close()
        raise failure(error, path, limit, may_be_applied=False) from error
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str) -> tuple[int, int] | None:
    """Tell which file stands under a path; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - part of every command, at half the price of Path.stat
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_place(path: Path) -> None:
    """Refuse, with one line that says what to do, a place where a file of locks cannot be."""
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
        # a folder above it that this process may not look into
        raise StoreRefused(
            f"cannot keep locks in {path}: {error.strerror}; this process must be able to write the file and its folder"
        ) from error
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise StoreRefused(f"cannot keep locks in {path}: it is not a file")
    # SQLite names the journal after the file: through two names there would be two journals, and two truths
    if found is not None and found.st_nlink > 1:
        raise StoreRefused(f"cannot keep locks in {path}: the file has {found.st_nlink} hard links; leave one")
    check_file_system(path, file_system(folder))


def check_file_system(path: Path, kind: str | None) -> None:
    """Refuse a file system that several kernels may see at once. kind is as mountinfo names it; None: not known."""
    if kind in _SHARED_BETWEEN_KERNELS:
        raise StoreRefused(
            f"cannot keep locks in {path}: it is on a file system shared between machines ({kind}), where neither "
            "SQLite's locks nor the boot clock hold; use a local disk, or another store"
        )


def file_system(folder: Path) -> str | None:
    try:
        text = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    return file_system_of(folder.resolve(), text)


def file_system_of(folder: Path, mountinfo: str) -> str | None:
    """Give the type of the file system that an absolute folder is on. Source: proc(5), mountinfo."""
    best, kind = -1, None
    for line in mountinfo.splitlines():
        place, _, source = line.partition(" - ")
        columns = place.split(" ")
        if len(columns) < 5 or not source:
            continue
        point = Path(_plain(columns[4]))
        if (point == folder or point in folder.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), source.split(" ")[0]
    return kind


def _plain(escaped: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        escaped = escaped.replace(code, character)
    return escaped


def _prepare(connection: sqlite3.Connection, path: Path, ends_at: float) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    found = _identify(connection)
    if found != _NEW:
        _check_schema(path, found)
    _use_wal(connection, path, ends_at)
    if found == _NEW:
        connection.execute("BEGIN IMMEDIATE")
        found = _identify(connection)  # another process may have been first
        if found == _NEW:
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
        if found != _NEW:
            _check_schema(path, found)


def _identify(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Give application, version and number of tables, all three of one instant."""
    row = connection.execute(
        "SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id() a, pragma_user_version() v"
    ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])


def _check_schema(path: Path, found: tuple[int, int, int]) -> None:
    application, version, _ = found
    if application != APPLICATION_ID:
        raise StoreRefused(f"cannot keep locks in {path}: it is a database of another program; name another file")
    if version > SCHEMA_VERSION:
        raise StoreRefused(
            f"the locks in {path} are of version {version}, newer than this one reads ({SCHEMA_VERSION}); "
            "upgrade lockstead"
        )


def _use_wal(connection: sqlite3.Connection, path: Path, ends_at: float) -> None:
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            # this one statement does not wait for its lock; nothing was asked of the store yet
            if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() >= ends_at:
                raise
            time.sleep(0.005)
    if mode != "wal":
        raise StoreRefused(f"cannot keep locks in {path}: its file system allows no write-ahead log; use a local disk")


def is_read_only(error: BaseException | None) -> bool:
    """Tell whether this is SQLite's word that it may not write."""
    return isinstance(error, sqlite3.Error) and _is(error, sqlite3.SQLITE_READONLY)


def _is(error: sqlite3.Error, code: int) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == code


def failure(error: sqlite3.Error, path: Path, limit: float, *, may_be_applied: bool) -> StoreError:
    """Say what an error means for the caller. may_be_applied: it came from the commit itself.

    A write that failed is told as such even then. A commit counts from the moment its last page stands whole in the
    log, and nothing is written after that one: so where a write failed, on a full disk or over a quota, there is none.
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
            return StoreRefused(f"the locks in {path} are damaged ({error}); stop all who use the file and remove it")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_AUTH:
            return StoreRefused(
                f"cannot keep locks in {path}: {error}; this process must be able to write the file and its folder"
            )
        case sqlite3.SQLITE_FULL:
            return StoreRefused(f"cannot keep locks in {path}: the disk is full; make room")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"{path} was locked by another process for {limit:.3g} s; nothing was changed")
        case _:
            return StoreUnavailable(f"{path} could not be used: {error}; nothing was changed")
