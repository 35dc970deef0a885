"""Which file is opened: mounts, journals that were removed, triggers of other programs, and who may read it."""

from __future__ import annotations

import functools
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lockstead.errors import StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Create, Extend, Read, Remove, Removed, Snapshot
from lockstead.stores.bootclock import is_of_the_kernel
from lockstead.stores.mounts import mounts_in
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.testing.conformance.base import is_a
from lockstead.values import Name
from tests.bad_input.test_places import in_mounts_of_its_own

APT = Name("apt")
LIMIT = 10.0

PROC = "24 1 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw\n"
DOCKER = PROC + "31 24 0:22 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw\n"
LXC = PROC + "40 24 0:60 /.lxc-boot-id /proc/sys/kernel/random/boot_id ro,nosuid,nodev - tmpfs none rw,mode=755\n"
NSPAWN = DOCKER + "41 31 0:61 /proc-sys-kernel-random-boot-id /proc/sys/kernel/random/boot_id ro - tmpfs tmpfs rw\n"
SYSBOX = PROC + "42 24 0:62 /proc/sys /proc/sys rw,nosuid,nodev,noexec - fuse sysboxfs rw,user_id=0,allow_other\n"
UUID = PROC + "43 24 0:22 /sys/kernel/random/uuid /proc/sys/kernel/random/boot_id ro - proc proc rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "is_known"),
    [(PROC, True), (DOCKER, True), (LXC, False), (NSPAWN, False), (SYSBOX, False), (UUID, False), ("", False)],
    ids=["host", "docker", "lxc", "nspawn", "sysbox", "another file of proc", "no mounts"],
)
def test_h06_a_boot_id_that_is_not_the_kernels_own_says_nothing(mountinfo: str, is_known: bool) -> None:
    assert is_of_the_kernel(mounts_in(mountinfo)) is is_known


TRY = """
import sys, lockstead
lock = lockstead.Lock(sys.argv[1], owner="container", ttl=30)
try:
    print("acquired", lock.try_acquire() is not None)
except lockstead.LocksteadError as error:
    print(type(error).__name__, error)
"""


def test_h06_another_boot_id_does_not_expire_a_live_record(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "locks.db")
    fields = {"v": "1", "identity": "host/1", "owner": "host", "ttl": "30"}
    is_a(Snapshot, store.perform(Create(APT, fields), LIMIT))
    (tmp_path / "boot-id").write_text("7b2e4c1c-9f43-4d0e-8a35-0c8d2f1b6a11\n")
    over = f"mount --bind {tmp_path}/boot-id /proc/sys/kernel/random/boot_id"
    code, out, err = in_mounts_of_its_own(over, sys.executable, "-c", TRY, f"sqlite:///{tmp_path}/locks.db#apt")
    assert (code, out, err) == (0, "acquired False\n", "")
    store.close()


@pytest.mark.parametrize("is_journal", [False, True], ids=["file", "journal"])
def test_a_file_that_is_mounted_by_itself_is_refused(tmp_path: Path, is_journal: bool) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    store = SqliteStore(outside / "locks.db")
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    name = "locks.db-wal" if is_journal else "locks.db"
    over = f"touch {inside}/{name} && mount --bind {outside}/{name} {inside}/{name}"
    code, out, err = in_mounts_of_its_own(over, sys.executable, "-c", TRY, f"sqlite:///{inside}/locks.db#apt")
    assert (code, err) == (0, "")
    assert out.startswith(f"StoreRefused cannot keep locks in {inside}/locks.db: {inside}/{name} is mounted by itself")
    store.close()


# --- journals that somebody removed ----------------------------------------------------------------------------------


def journal(path: Path, *ends: str) -> list[Path]:
    return [path.with_name(path.name + end) for end in ends]


def in_another_process(path: Path, code: str) -> str:
    """Run a few lines with a `store` on the file, in another process; return what they print."""
    begin = f"""
        from lockstead.errors import StoreError
        from lockstead.protocol.commands import *
        from lockstead.stores.sqlite.store import SqliteStore
        from lockstead.values import Name
        store, APT = SqliteStore({str(path)!r}), Name("apt")
    """
    program = textwrap.dedent(begin) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


ASK = """
try:
    print(type(store.perform(Create(APT, {"v": "1"}), 0.3)).__name__)
except StoreError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=["wal", "shm", "both"])
def test_a_removed_journal_does_not_free_a_held_lock(tmp_path: Path, ends: tuple[str, ...]) -> None:
    path = tmp_path / "locks.db"
    store = SqliteStore(path)
    held = is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    for one in journal(path, *ends):
        one.unlink()
    said = in_another_process(path, ASK)
    if "-wal" in ends:
        assert said.startswith("StoreUnavailable")
        assert f"{path}-wal is missing" in said
    else:
        assert said in ("Conflict",) or said.startswith("StoreUnavailable")
    # who holds it notices, brings home what the old journal holds, and loses nothing
    renewed = is_a(Snapshot, store.perform(Extend(APT, {"n": "2"}, held.incarnation), LIMIT))
    assert renewed.fields["n"] == "2"
    assert in_another_process(path, ASK) == "Conflict"
    is_a(Removed, store.perform(Remove(APT, held.incarnation), LIMIT))
    store.close()
    assert in_another_process(path, ASK) == "Snapshot"


def test_a_journal_that_was_replaced_is_noticed_by_the_next_command(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    store = SqliteStore(path)
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    for one in journal(path, "-wal", "-shm"):
        one.rename(tmp_path / f"kept{one.suffix}")
    # a program that does not look begins a new one: the record is in the old one
    program = (
        "import sqlite3, sys; other = sqlite3.connect(sys.argv[1]); "
        "print(other.execute('SELECT count(*) FROM sqlite_master').fetchone(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert all(one.exists() for one in journal(path, "-wal", "-shm"))
        is_a(Absent, store.perform(Read(APT), LIMIT))
        other.communicate()
    store.close()


@pytest.mark.parametrize("turned", ["link", "link between", "folder", "folder link"])
def test_a_replaced_file_is_noticed_by_the_next_command(tmp_path: Path, turned: str) -> None:
    for name in ("links", "one", "two"):
        (tmp_path / name).mkdir()
    between, folder, path = tmp_path / "between.db", tmp_path / "current", tmp_path / "links" / "locks.db"
    between.symlink_to(tmp_path / "one" / "locks.db")
    folder.symlink_to(tmp_path / "one")
    path.symlink_to(
        {"link between": between, "folder link": folder / "locks.db"}.get(turned, tmp_path / "one/locks.db")
    )
    store = SqliteStore(path)
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    match turned:
        case "folder":
            (tmp_path / "one").rename(tmp_path / "old")
            (tmp_path / "two").rename(tmp_path / "one")
        case "folder link":
            folder.unlink()
            folder.symlink_to(tmp_path / "two")
        case _:
            link = path if turned == "link" else between
            link.unlink()
            link.symlink_to(tmp_path / "two" / "locks.db")
    is_a(Absent, store.perform(Read(APT), LIMIT))
    store.close()


@pytest.mark.parametrize("word", ["PRAGMA synchronous = NORMAL", "COMMIT"], ids=["opened", "made"])
def test_a_file_that_is_replaced_while_it_is_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A connection to the removed file would be taken for one to the file at the path, where others get the lock."""
    path, connect = tmp_path / "locks.db", sqlite3.connect

    class Replacing(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *rest)
            if sql == word:
                monkeypatch.undo()
                for one in (path, *journal(path, "-wal", "-shm")):
                    one.unlink(missing_ok=True)
                cycle(other, "yum")
            return cursor

    with closing(SqliteStore(path)) as store, closing(SqliteStore(path)) as other:
        monkeypatch.setattr(sqlite3, "connect", functools.partial(connect, factory=Replacing))
        with pytest.raises(StoreUnavailable, match="replaced while it was opened"):
            store.perform(Create(APT, {"v": "1"}), LIMIT)
        is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
        is_a(Snapshot, other.perform(Read(APT), LIMIT))


def test_a_restored_folder_is_noticed_by_the_next_command(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    store = SqliteStore(folder / "locks.db")
    is_a(Snapshot, store.perform(Create(Name("yum"), {"v": "1"}), LIMIT))
    subprocess.run(["tar", "--format=posix", "-cf", "backup.tar", "locks"], cwd=tmp_path, check=True)
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    subprocess.run(["tar", "-xpf", "backup.tar"], cwd=tmp_path, check=True)
    is_a(Absent, store.perform(Read(APT), LIMIT))
    store.close()


def test_a_closed_file_is_opened_without_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    for turn in range(3):
        store = SqliteStore(path)
        made = is_a(Snapshot, store.perform(Create(APT, {"n": str(turn)}), LIMIT))
        is_a(Removed, store.perform(Remove(APT, made.incarnation), LIMIT))
        store.close()
        assert not any(one.exists() for one in journal(path, "-wal", "-shm"))


# --- other programs, other users -------------------------------------------------------------------------------------

ENDLESS = "SELECT (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c)"


@pytest.mark.parametrize("is_open", [True, False], ids=["while it is open", "before it is opened"])
@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TRIGGER t BEFORE INSERT ON record BEGIN {ENDLESS}; END",
        "CREATE TRIGGER t AFTER INSERT ON record BEGIN UPDATE meta SET granted = 0; END",
        "CREATE TRIGGER t AFTER INSERT ON record BEGIN DELETE FROM record WHERE key = 'other'; END",
    ],
)
def test_a_trigger_of_another_program_never_runs(tmp_path: Path, statement: str, is_open: bool) -> None:
    path = tmp_path / "locks.db"
    store = SqliteStore(path)
    is_a(Snapshot, store.perform(Create(Name("other"), {"v": "1"}), LIMIT))
    if not is_open:
        store.close()
        store = SqliteStore(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(statement)
    with pytest.raises(StoreRefused, match="another program added a trigger, a view or a virtual table"):
        store.perform(Create(APT, {"v": "1"}), LIMIT)
    is_a(Snapshot, store.perform(Read(Name("other")), LIMIT))
    store.close()


@pytest.mark.parametrize("disguised", ["'create' || substr(sql, 7)", "'CREATE /**/' || substr(sql, 8)"])
def test_a_trigger_whose_text_was_changed_never_runs(tmp_path: Path, disguised: str) -> None:
    path = tmp_path / "locks.db"
    store = SqliteStore(path)
    is_a(Snapshot, store.perform(Create(Name("other"), {"v": "1"}), LIMIT))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TRIGGER t AFTER INSERT ON record BEGIN DELETE FROM record WHERE key = 'other'; END")
        other.execute("PRAGMA writable_schema = ON")
        other.execute(f"UPDATE sqlite_master SET sql = {disguised} WHERE name = 't'")
        version = other.execute("PRAGMA schema_version").fetchone()[0]
        other.execute(f"PRAGMA schema_version = {version + 1}")
    with closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO record VALUES ('lock', 'x', '', 9, 1, 0.0, '', '', '{}')")
        assert other.execute("SELECT count(*) FROM record").fetchone() == (1,), "SQLite does not run it"
    with pytest.raises(StoreRefused, match="another program added a trigger"):
        store.perform(Create(APT, {"v": "1"}), LIMIT)
    is_a(Snapshot, store.perform(Read(Name("other")), LIMIT))
    store.close()


def test_a_view_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    store = SqliteStore(path)
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("ALTER TABLE record RENAME TO hidden")
        other.execute(f"CREATE VIEW record AS SELECT *, ({ENDLESS}) FROM hidden")
    with pytest.raises(StoreRefused, match="another program added a trigger, a view or a virtual table"):
        store.perform(Read(APT), LIMIT)
    store.close()


@pytest.mark.parametrize("counter", [2**63 - 1, 2**53, -5, "x"])
def test_a_counter_that_another_program_set_is_refused(tmp_path: Path, counter: object) -> None:
    path = tmp_path / "locks.db"
    store = SqliteStore(path)
    held = is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE meta SET granted = ?", (counter,))
    with pytest.raises(StoreRefused, match=r"the counter of grants in .* was changed by another program"):
        store.perform(Create(Name("yum"), {"v": "1"}), LIMIT)
    # what is held can still be renewed and given back
    is_a(Snapshot, store.perform(Extend(APT, {}, held.incarnation), LIMIT))
    is_a(Removed, store.perform(Remove(APT, held.incarnation), LIMIT))
    store.close()


def test_a_new_file_and_its_journals_are_for_its_owner_only(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "locks.db")
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    assert modes == {"locks.db": 0o600, "locks.db-wal": 0o600, "locks.db-shm": 0o600}
    store.close()


def test_a_file_that_was_made_for_a_group_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    path.touch()
    path.chmod(0o660)
    store = SqliteStore(path)
    is_a(Snapshot, store.perform(Create(APT, {"v": "1"}), LIMIT))
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o660}
    store.close()


def test_a_busy_file_without_a_journal_is_waited_for_and_then_told(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    SqliteStore(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=r"was busy for 0\.(2|1\d+) s"):
            SqliteStore(path).perform(Create(APT, {"v": "1"}), 0.2)


def test_a_relative_path_in_a_removed_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    program = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); " + (
        "from lockstead.cli.main import main; sys.argv[1:] = ['list', 'sqlite:///locks.db']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "gone")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        "lockstead: cannot keep locks in locks.db: the working directory was removed; give an absolute path\n"
    )


def test_h34_what_a_signal_handler_raises_is_not_lost(tmp_path: Path) -> None:
    """A Python function that SQLite calls, as an authorizer, swallows what a handler raises in it."""
    program = """
        import itertools, random, signal, sys
        from contextlib import closing, suppress
        from lockstead.errors import StoreError
        from lockstead.protocol.commands import Create, Read
        from lockstead.stores.sqlite.store import SqliteStore
        from lockstead.values import Name

        class Hit(BaseException): pass
        keys, dice, raised, lost = itertools.count(), random.Random(7), 0, 0

        def handler(number, frame):
            global raised
            raised += 1
            raise Hit

        def use():
            with closing(SqliteStore(sys.argv[1])) as store, suppress(StoreError):
                store.perform(Create(Name(str(next(keys))), {"v": "1"}), 5.0)
                store.perform(Read(Name("apt")), 5.0)

        def use_until(rounds):  # on 3.13 a jump back may be outside of the `try` that it stands in
            while raised < rounds:
                use()

        use()
        signal.signal(signal.SIGALRM, handler)
        for round in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0001, 0.004))
                use_until(round + 1)
                lost += 1
            except Hit:
                pass
        print(raised, lost)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "locks.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["400", "0"]


def test_h34_an_interrupted_write_keeps_no_later_one_out(tmp_path: Path) -> None:
    """An exception at the first line of `__exit__` is one of a write in some hundreds, and keeps its turn."""
    program = """
        import random, signal, sys, threading
        from lockstead.protocol.commands import Create, Remove
        from lockstead.stores.sqlite.store import SqliteStore
        from lockstead.values import Name

        class Hit(BaseException): pass
        dice, store, apt = random.Random(7), SqliteStore(sys.argv[1]), Name("apt")

        def handler(number, frame):
            raise Hit

        def use(name):
            made = store.perform(Create(name, {"v": "1"}), 5.0)
            if hasattr(made, "incarnation"):
                store.perform(Remove(name, made.incarnation), 5.0)

        def use_for_ever():
            while True:
                use(apt)

        use(apt)
        signal.signal(signal.SIGALRM, handler)
        for round in range(1000):
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0001, 0.001))
                use_for_ever()
            except Hit:
                pass
            other = threading.Thread(target=lambda: print(use(Name("yum"))))
            other.start()
            other.join()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "locks.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("None\n" * 1000, "")


def cycle(store: SqliteStore, key: str) -> None:
    name = Name(key)
    made = store.perform(Create(name, {"v": "1"}), LIMIT)
    if not isinstance(made, Snapshot):  # an interrupted cycle left it
        made = is_a(Snapshot, store.perform(Read(name), LIMIT))
    is_a(Removed, store.perform(Remove(name, made.incarnation), LIMIT))
