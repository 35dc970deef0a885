"""Locks in a SQLite file: its clock, its counter, its file, and what can go wrong with them."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
    Conflict,
    Create,
    Extend,
    List,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.protocol.record import decode, is_ours
from lockstead.stores import url
from lockstead.stores.bootclock import BootIdentity
from lockstead.stores.mounts import mounts_in
from lockstead.stores.sqlite.file import SCHEMA_VERSION, check_file_system, failure, file_system_of
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.testing.conformance.pages import paged
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import Name, Space
from tests.runtime.faulty import until

APT = Name("apt")
HERE = BootIdentity("boot-1", "time:[1]")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    stores = []

    def opens(at: Path = path, **settings: Any) -> SqliteStore:
        stores.append(SqliteStore(at, **settings))
        return stores[-1]

    yield opens
    for store in stores:
        store.close()


def ask(store: SqliteStore, command: Command[Any], limit: float = 10.0) -> Any:
    return store.perform(command, limit)


def made(answer: object) -> Snapshot:
    assert isinstance(answer, Snapshot), answer
    return answer


def test_who_reads_makes_no_file_and_who_writes_does(opened: Callable[..., SqliteStore], path: Path) -> None:
    store = opened()
    assert store.missing == f"there is no file {path} yet"
    assert isinstance(ask(store, Read(APT)), Absent)
    assert ask(store, List(Space.LOCK)).entries == ()
    assert not path.exists()
    made(ask(store, Create(APT, {"v": "1"})))
    assert path.exists()
    assert store.missing is None
    # nor does who has it open still: it was taken away under its hands
    path.unlink()
    assert isinstance(ask(store, Read(APT)), Absent)
    assert not path.exists()
    made(ask(store, Create(APT, {"v": "1"})))


def test_a_missing_folder_or_closed_store_fails_readers(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "folder" / "locks.db")
    with pytest.raises(StoreRefused, match="there is no folder"):
        ask(store, Read(APT))
    store.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        ask(store, Read(APT))


# --- time --------------------------------------------------------------------------------------------------------


def test_h06_after_another_boot_every_holder_is_dead(opened: Callable[..., SqliteStore]) -> None:
    before, after = opened(here=lambda: HERE), opened(here=lambda: BootIdentity("boot-2", "time:[1]"))
    old = made(ask(before, Create(APT, {})))
    assert not old.dead
    seen = made(ask(after, Read(APT)))
    assert seen.dead
    assert (seen.updated_at, seen.store_now) == (None, None)
    assert dict(ask(after, List(Space.LOCK)).entries)[APT].dead
    new = made(ask(after, Replace(APT, {}, seen.incarnation, seen.revision)))
    assert not new.dead
    assert new.updated_at is not None


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (HERE, BootIdentity("boot-1", "time:[2]")),
        (HERE, BootIdentity("boot-1", None)),
        (BootIdentity("boot-1", None), HERE),
        (BootIdentity("boot-1", None), BootIdentity("boot-1", None)),
        (BootIdentity(None, "time:[1]"), HERE),
        (HERE, BootIdentity(None, "time:[1]")),
        (BootIdentity(None, None), BootIdentity(None, None)),
    ],
)
def test_h07_a_writer_whose_clock_may_be_another_one_is_observed(
    opened: Callable[..., SqliteStore], writer: BootIdentity, reader: BootIdentity
) -> None:
    ask(opened(here=lambda: writer), Create(APT, {}))
    seen = made(ask(opened(here=lambda: reader), Read(APT)))
    assert (seen.dead, seen.updated_at, seen.store_now) == (False, None, None)


def test_h20_a_write_that_was_stalled_does_not_turn_updated_at_back(opened: Callable[..., SqliteStore]) -> None:
    now = [100.0]
    store = opened(now=lambda: now[0], here=lambda: HERE)
    first = made(ask(store, Create(APT, {})))
    now[0] = 50.0
    for command in (Extend(APT, {}, first.incarnation), Replace(APT, {}, first.incarnation, "2")):
        assert made(ask(store, command)).updated_at == 100.0
    now[0] = 101.0
    assert made(ask(store, Extend(APT, {}, None))).updated_at == 101.0


def test_another_namespaces_instant_is_no_bound_for_ours(opened: Callable[..., SqliteStore]) -> None:
    ahead = opened(now=lambda: 1e6, here=lambda: BootIdentity("boot-1", "time:[2]"))
    store = opened(now=lambda: 100.0, here=lambda: HERE)
    ask(ahead, Create(APT, {}))
    renewed = made(ask(store, Extend(APT, {}, None)))
    assert (renewed.updated_at, renewed.store_now) == (100.0, 100.0)


def test_h07_the_wall_clock_decides_nothing(opened: Callable[..., SqliteStore]) -> None:
    """Hours off and jumping, it moves neither the times that are shown nor the growth of the tokens."""
    wall = iter([1e9, 1e9 - 18_000, 0.0, 1e9 + 18_000, 5.0, 6.0])
    store = opened(now=lambda: 100.0, wall=lambda: next(wall), here=lambda: HERE)
    tokens = []
    for _ in range(6):
        granted = made(ask(store, Create(APT, {})))
        assert (granted.updated_at, granted.store_now) == (100.0, 100.0)
        tokens.append(granted.token)
        ask(store, Remove(APT, granted.incarnation))
    assert tokens == [10**12, 10**12 + 1, 10**12 + 2, 10**12 + 18_000_000, 10**12 + 18_000_001, 10**12 + 18_000_002]


def test_this_machine_knows_its_boot_and_its_clock(opened: Callable[..., SqliteStore]) -> None:
    here = BootIdentity.here()
    if sys.platform == "linux" and Path("/proc/self/ns/time").exists():
        assert here.boot
        assert here.namespace
        assert made(ask(opened(), Create(APT, {}))).updated_at is not None
    assert BootIdentity.here() == here


# --- the file ----------------------------------------------------------------------------------------------------


def test_tokens_grow_over_the_loss_of_the_file(path: Path, opened: Callable[..., SqliteStore]) -> None:
    wall = [1000.0]
    store = opened(wall=lambda: wall[0])
    first = made(ask(store, Create(APT, {})))
    path.unlink()
    wall[0] += 1.0
    second = made(ask(store, Create(APT, {})))
    assert second.token is not None
    assert first.token is not None
    assert second.token > first.token


def test_h12_a_removed_file_is_noticed_before_the_next_command(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store, other = opened(), opened()
    held = made(ask(store, Create(APT, {})))
    path.unlink()
    assert isinstance(ask(other, Create(APT, {"identity": "next"})), Snapshot)
    assert isinstance(ask(store, Extend(APT, {}, held.incarnation)), Conflict)
    assert ask(store, Read(APT)).fields == {"identity": "next"}


def test_a_file_that_is_used_does_not_grow(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    for number in range(300):
        granted = made(ask(store, Create(Name(f"key-{number}"), {"purpose": "x" * 200})))
        ask(store, Create(Name("apt", Space.MEMBER, f"{granted.incarnation}/{number}"), {}))
        ask(store, Remove(Name(f"key-{number}"), granted.incarnation))
    for name, snapshot in ask(store, List(Space.MEMBER)).entries:
        ask(store, Remove(name, snapshot.incarnation))
    store.close()
    assert path.stat().st_size < 200_000
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM record").fetchone() == (0,)
    connection.close()


def test_nothing_is_left_beside_the_file_when_the_last_one_closes(
    path: Path, opened: Callable[..., SqliteStore]
) -> None:
    store, other = opened(), opened()
    ask(store, Create(APT, {}))
    ask(other, Read(APT))
    store.close()
    other.close()
    assert [found.name for found in path.parent.iterdir()] == ["locks.db"]


def test_odd_file_names_work(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=ro#é%41.db"
    store = SqliteStore(path)
    ask(store, Create(APT, {}))
    shown = store.url
    store.close()
    assert path.exists()
    again = url.open_store(shown)
    assert isinstance(again.perform(Read(APT), 1.0), Snapshot)
    again.close()


def test_a_handle_keeps_its_file_when_the_folder_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("locks.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ask(store, Create(APT, {}))
    store.close()
    assert (tmp_path / "locks.db").exists()


# --- refused -----------------------------------------------------------------------------------------------------


def refused(store: SqliteStore) -> str:
    with pytest.raises(StoreRefused) as told:
        ask(store, Create(APT, {}))
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "there is no folder" in refused(SqliteStore(tmp_path / "nosuch" / "locks.db"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "it is not a file" in refused(SqliteStore(tmp_path))


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("minutes of the meeting\n" * 100)
    assert "it is not a database" in refused(SqliteStore(path))
    assert path.read_text() == "minutes of the meeting\n" * 100


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE record (name TEXT)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "database of another program" in refused(SqliteStore(path))
    assert path.read_bytes() == before


def test_h30_a_newer_version_of_the_file_is_refused(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    ask(store, Create(APT, {}))
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert "upgrade lockstead" in refused(SqliteStore(path))


def test_a_file_with_two_names_is_refused(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    ask(store, Create(APT, {}))
    store.close()
    os.link(path, path.with_name("second.db"))
    assert "2 hard links" in refused(SqliteStore(path))


def test_h24_a_damaged_record_is_refused_by_name_and_never_free(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    held = made(ask(store, Create(APT, {"identity": "me"})))
    for damaged in ("", "{", "[]", '{"identity": 1}', "null"):
        connection = sqlite3.connect(path)
        connection.execute("UPDATE record SET fields = ?", (damaged,))
        connection.commit()
        connection.close()
        with pytest.raises(StoreRefused, match="the record of 'apt'"):
            ask(store, Extend(APT, {}, held.incarnation))
        # shown as one of ours that says nothing: neither free nor anybody's, and an operator can remove it
        for seen in (ask(store, Read(APT)), ask(store, List(Space.LOCK)).entries[0][1]):
            assert seen.incarnation == held.incarnation
            with pytest.raises(StoreRefused, match="the record of 'apt' is damaged"):
                decode(APT, seen.fields)
            assert is_ours(seen.fields)
        assert isinstance(ask(store, Create(APT, {})), Conflict)
    assert isinstance(ask(store, Remove(APT, held.incarnation)), Removed)


def test_names_that_are_no_text_end_no_listing_in_pages(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    names = {Name(f"key-{number}") for number in range(4)}
    for name in names:
        ask(store, Create(name, {}))
    connection = sqlite3.connect(path)
    for key in ("CAST(x'6b65792d30ff' AS TEXT)", "CAST(x'6b65792d31ff' AS TEXT)", "CAST(x'ff00' AS TEXT)", "x'6b'"):
        connection.execute(
            f"INSERT INTO record SELECT space, {key}, part, granted, revision, updated, boot, namespace, fields "
            "FROM record WHERE key = 'key-0'"
        )
    connection.commit()
    connection.close()
    for page in (1, 2, 3, 9):
        pages = list(paged(partial(ask, store), List(Space.LOCK, page=page)))
        assert {name for listing in pages for name, _ in listing.entries} == names


@pytest.mark.parametrize("column", ["fields", "granted", "boot"])
def test_h24_a_huge_row_is_not_loaded_and_can_be_removed(
    path: Path, opened: Callable[..., SqliteStore], column: str
) -> None:
    store = opened()
    ask(store, Create(APT, {"identity": "me"}))
    ask(store, Create(Name("other"), {"identity": "me"}))
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE record SET {column} = CAST(zeroblob(4000000) AS TEXT) WHERE key = 'apt'")
    connection.commit()
    connection.close()
    tracemalloc.start()
    try:
        shown = dict(ask(store, List(Space.LOCK)).entries)
        seen = ask(store, Read(APT))
        changes = Changed(store)
        changes.settle()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    ask(store, Remove(Name("other"), shown[Name("other")].incarnation))
    with Changed(store, Name("other")) as others:
        assert others.seen.wait(30), "a row that cannot be read keeps the changes of another from being notified"
    changes.close()
    assert isinstance(seen, Snapshot)
    assert shown[APT] == seen
    assert "damage" in seen.fields
    assert "damage" not in shown[Name("other")].fields
    assert isinstance(ask(store, Create(APT, {})), Conflict)
    assert isinstance(ask(store, Remove(APT, seen.incarnation)), Removed)


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:41 / /mnt/nfs\\040share rw,relatime - nfs4 server:/export rw,vers=4.2
41 40 0:42 / /mnt/nfs\\040share/local rw,relatime - tmpfs tmpfs rw
42 27 0:43 / /home/me/bucket rw,nosuid - fuse.gcsfuse bucket rw
43 27 0:44 / /srv rw - xfs /dev/vdb rw
44 27 0:45 / /srv rw - cifs //server/share rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "kind", "is_local"),
    [
        ("/", "ext4", True),
        ("/var/lib", "ext4", True),
        ("/proc/1", "proc", True),
        ("/mnt/nfs share", "nfs4", False),
        ("/mnt/nfs share/deep/er", "nfs4", False),
        ("/mnt/nfs share/local/x", "tmpfs", True),
        ("/mnt/nfs shares", "ext4", True),
        ("/home/me/bucket/x", "fuse.gcsfuse", False),
        ("/srv/locks", "cifs", False),
    ],
)
def test_a_file_system_that_other_kernels_see_is_refused(folder: str, kind: str, is_local: bool) -> None:
    found = file_system_of(Path(folder), mounts_in(MOUNTS))
    assert found == kind
    if is_local:
        check_file_system(Path(folder, "locks.db"), found)
    else:
        with pytest.raises(StoreRefused, match=f"shared between machines \\({kind}\\)"):
            check_file_system(Path(folder, "locks.db"), found)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SQLITE_BUSY", StoreUnavailable),
        ("SQLITE_BUSY_SNAPSHOT", StoreUnavailable),
        ("SQLITE_LOCKED", StoreUnavailable),
        ("SQLITE_IOERR", StoreUnavailable),
        ("SQLITE_IOERR_FSYNC", StoreUnavailable),
        ("SQLITE_IOERR_WRITE", StoreUnavailable),
        ("SQLITE_ERROR", StoreUnavailable),
        ("SQLITE_READONLY_DBMOVED", StoreUnavailable),
        ("SQLITE_FULL", StoreRefused),
        ("SQLITE_READONLY", StoreRefused),
        ("SQLITE_CANTOPEN", StoreRefused),
        ("SQLITE_PERM", StoreRefused),
        ("SQLITE_NOTADB", StoreRefused),
        ("SQLITE_CORRUPT", StoreRefused),
    ],
)
def test_what_an_error_means(code: str, kind: type[StoreError]) -> None:
    error = sqlite3.OperationalError("said by SQLite")
    error.sqlite_errorcode = getattr(sqlite3, code)
    before = failure(error, Path("/var/locks.db"), 1.0, may_be_applied=False)
    at_commit = failure(error, Path("/var/locks.db"), 1.0, may_be_applied=True)
    assert type(before) is kind
    # a commit that could not be written as a whole is none
    is_none = code in ("SQLITE_FULL", "SQLITE_IOERR_WRITE")
    assert type(at_commit) is (kind if is_none else OutcomeUnknown)
    assert "/var/locks.db" in str(before)
    assert "/var/locks.db" in str(at_commit)


def test_a_full_file_is_refused_and_nothing_is_changed(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    ask(store, Create(APT, {"identity": "me"}))
    link = store._pool._idle[0]  # the limit is a connection's own, and SQLite has no other way to be full
    link.connection.execute(f"PRAGMA max_page_count = {link.connection.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreRefused, match="the disk is full; make room"):
        ask(store, Extend(APT, {"backtrace": "x" * 100_000}, None))
    assert ask(store, Read(APT)).fields == {"identity": "me"}


# --- together ----------------------------------------------------------------------------------------------------


def test_a_file_that_stays_locked_is_unavailable_within_the_limit(
    path: Path, opened: Callable[..., SqliteStore]
) -> None:
    store = opened()
    held = made(ask(store, Create(APT, {})))
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    began_at = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        ask(store, Extend(APT, {}, held.incarnation), limit=0.2)
    assert 0.15 < time.monotonic() - began_at < 5.0
    assert isinstance(ask(store, Read(APT), limit=0.2), Snapshot), "who reads waits for no writer"
    blocker.execute("ROLLBACK")
    blocker.close()
    assert made(ask(store, Extend(APT, {}, held.incarnation))).revision == "2"


def test_threads_that_wait_for_their_turn_to_write_are_limited_too(
    path: Path, opened: Callable[..., SqliteStore]
) -> None:
    store = opened()
    ask(store, Create(APT, {}))
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    failures: list[str] = []

    def write() -> None:
        try:
            ask(store, Extend(APT, {}, None), limit=0.3)
        except StoreUnavailable as error:
            failures.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(4)]
    began_at = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    blocker.close()
    assert len(failures) == 4
    assert time.monotonic() - began_at < 10.0
    assert ask(store, Read(APT)).revision == "1"


def test_h01_a_writer_killed_midway_leaves_nothing_behind(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    ask(store, Create(APT, {"identity": "me"}))
    script = (
        "import sqlite3, sys, time\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('BEGIN IMMEDIATE'); c.execute('DELETE FROM record')\n"
        "print('inside', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert made(ask(store, Extend(APT, {"more": "1"}, None))).fields == {"identity": "me", "more": "1"}


PARENT = """
import os, sys, time
from lockstead.protocol.commands import *
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Name
store = SqliteStore(sys.argv[1])
APT = Name("apt")
subscription = store.subscribe(APT, lambda is_free: None)
made = store.perform(Create(APT, {}), 10.0)
child = os.fork()
if not child:
    # ends like any program, with everything that Python tears down: its copies must not touch the file
    store.after_fork()
    assert store.perform(Read(APT), 10.0).incarnation == made.incarnation
    store.perform(Create(Name("child"), {}), 10.0)
    store.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.path.exists(sys.argv[1] + "-wal"), "the child took the journal away"
assert store.perform(Extend(APT, {"by": "parent"}, made.incarnation), 10.0).revision == "2"
print("ready", flush=True)
sys.stdin.readline()
assert store.perform(Extend(APT, {}, made.incarnation), 10.0).revision == "4"
store.close()
"""


FORKS_WHILE_INSIDE = """
import os, sys, threading, time
from lockstead.protocol.commands import *
from lockstead.stores.sqlite import pool
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Name
begun, is_inside, true = threading.Event(), False, pool.PooledConnection.begin

def begin(*args, **options):
    global is_inside
    is_inside = True
    begun.set()
    time.sleep(0.3)
    try:
        return true(*args, **options)
    finally:
        is_inside = False

store = SqliteStore(sys.argv[1])
store.perform(Create(Name("apt"), {}), 10.0)
pool.PooledConnection.begin = begin
if sys.argv[2] == "watcher":
    subscription = store.subscribe(Name("apt"), lambda is_free: None)
else:
    threading.Thread(target=store.perform, args=(Read(Name("apt")), 10.0)).start()
begun.wait()
child = os.fork()
if not child:
    os._exit(is_inside or bool(pool._INSIDE) or pool._FORKING.locked())
assert os.waitpid(child, 0)[1] == 0, "the child was forked while a thread was inside SQLite"
store.close()
"""


@pytest.mark.parametrize("thread", ["watcher", "worker"])
def test_h13_a_fork_waits_until_no_other_thread_is_inside_sqlite(path: Path, thread: str) -> None:
    # a child that inherits a locked mutex of SQLite waits for it forever
    subprocess.run([sys.executable, "-c", FORKS_WHILE_INSIDE, str(path), thread], check=True, timeout=60)


def test_h13_a_forked_child_that_ends_leaves_the_parents_file_alone(
    path: Path, opened: Callable[..., SqliteStore]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PARENT, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        store = opened()
        assert made(ask(store, Extend(APT, {}, None))).fields == {"by": "parent"}
        assert isinstance(ask(store, Read(Name("child"))), Snapshot)
        parent.stdin.write("\n")
        parent.stdin.close()
        assert parent.wait(60) == 0


RACER = """
import sys
from lockstead.protocol.commands import *
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Name
store = SqliteStore(sys.argv[1])
counter, steps, tokens = sys.argv[2], 0, []
while steps < 50:
    made = store.perform(Create(Name("apt"), {}), 30.0)
    if not isinstance(made, Snapshot):
        continue
    value = int(open(counter).read())
    open(counter, "w").write(str(value + 1))
    tokens.append(made.token)
    assert isinstance(store.perform(Remove(Name("apt"), made.incarnation), 30.0), Removed)
    steps += 1
assert tokens == sorted(set(tokens))
store.close()
"""


def test_h11_processes_that_create_one_file_exclude_each_other(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    arguments = [sys.executable, "-W", "ignore::ResourceWarning", "-c", RACER, str(tmp_path / "locks.db"), str(counter)]
    racers = [subprocess.Popen(arguments) for _ in range(4)]
    assert [racer.wait(120) for racer in racers] == [0, 0, 0, 0]
    assert counter.read_text() == "200"


def test_a_waiter_sees_another_processes_release_within_milliseconds(
    path: Path, opened: Callable[..., SqliteStore]
) -> None:
    store = opened()
    ask(store, Create(APT, {}))
    script = (
        "import sys, time\n"
        "from lockstead.protocol.commands import *\n"
        "from lockstead.stores.sqlite.store import SqliteStore\n"
        "from lockstead.values import Name\n"
        "store = SqliteStore(sys.argv[1])\n"
        "seen = store.perform(Read(Name('apt')), 10.0)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "store.perform(Remove(Name('apt'), seen.incarnation), 10.0)\n"
        "store.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with Changed(store) as changes:
            changes.settle()
            other.stdin.write("\n")
            other.stdin.close()
            assert changes.seen.wait(10.0)
        assert other.wait(60) == 0
    assert isinstance(ask(store, Read(APT)), Absent)


def test_changes_of_other_records_are_not_notified(opened: Callable[..., SqliteStore]) -> None:
    store, other = opened(), opened()
    made = ask(store, Create(APT, {}))
    with Changed(store) as changes:
        changes.settle()
        ask(other, Create(Name("other"), {}))
        for _ in range(20):
            ask(other, Extend(Name("other"), {}, None))
            assert not changes.seen.wait(0.01)
        ask(other, Remove(APT, made.incarnation))
        assert changes.seen.wait(30)


def test_one_thread_reads_for_all_subscribers_and_ends_with_them(opened: Callable[..., SqliteStore]) -> None:
    store, other = opened(), opened()
    names = [Name(f"{number}") for number in range(100)]
    for name in names:
        ask(store, Create(name, {}))
    several = [Changed(store, name) for name in names for _ in range(2)]
    assert sum(thread.name == "lockstead-watch" for thread in threading.enumerate()) == 1
    for name in names:
        ask(other, Remove(name, ask(other, Read(name)).incarnation))
    assert all(one.seen.wait(30) for one in several)
    for one in several:
        one.close()
    until(lambda: not any(thread.name == "lockstead-watch" for thread in threading.enumerate()))
    with Changed(store, names[0]) as again:
        assert again.seen.wait(30), "it is absent, and the thread looks again"


@pytest.mark.parametrize("error", [StoreUnavailable("down"), ValueError("odd")])
def test_a_look_that_fails_is_repeated(opened: Callable[..., SqliteStore], error: Exception) -> None:
    store = opened()
    made = ask(store, Create(APT, {}))
    look, failures = store._changes._look, [error, error]

    def looks() -> list[Name]:
        if failures:
            raise failures.pop()
        return look()

    store._changes._look = looks  # type: ignore[method-assign]
    with Changed(store) as changes:
        until(lambda: not failures)
        changes.settle()
        ask(opened(), Remove(APT, made.incarnation))
        assert changes.seen.wait(30)


def test_a_file_that_was_replaced_is_looked_at_again(path: Path, opened: Callable[..., SqliteStore]) -> None:
    store = opened()
    ask(store, Create(APT, {}))
    with Changed(store) as changes:
        changes.settle()
        path.rename(path.with_name("moved.db"))
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).rename(path.with_name("moved.db" + end))
        assert changes.seen.wait(30), "there is no record in the new file"


def test_threads_that_end_leave_no_connection_open(opened: Callable[..., SqliteStore]) -> None:
    store = opened()

    def cycle(number: int) -> None:
        granted = made(ask(store, Create(Name(f"key-{number}"), {})))
        ask(store, Remove(Name(f"key-{number}"), granted.incarnation))

    for number in range(20):
        thread = threading.Thread(target=cycle, args=(number,))
        thread.start()
        thread.join()
    descriptors = [str(found.readlink()) for found in Path("/proc/self/fd").iterdir() if found.is_symlink()]
    assert sum(text.endswith("/locks.db") for text in descriptors) <= 2


AFTER_FORK = """
import _thread, os, threading
os.register_at_fork(after_in_parent=_thread.interrupt_main)
from lockstead.stores.sqlite import pool
try:
    if os.fork() == 0:
        os._exit(0)
    for _ in range(10):
        pass
except KeyboardInterrupt:
    pass
assert not pool._FORKING.locked()
"""


def test_h34_ctrl_c_during_a_fork_leaves_no_lock_held() -> None:
    assert subprocess.run([sys.executable, "-c", AFTER_FORK], timeout=60, check=False).returncode == 0
