"""Disks that are full, over quota, broken or read-only: one clear line, nothing lost, and back to work afterwards."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstead
from tests.processes.shims import preloaded
from tests.processes.steps import deaths
from tests.runtime.faulty import quiet
from tests.runtime.processes import Child

WRITING = ("create", "extend", "replace", "remove", "found")


@pytest.mark.slow
@pytest.mark.parametrize("others", [(), ("--bystander",)], ids=["alone", "beside-another-process"])
@pytest.mark.parametrize("disk", ["full", "over quota", "broken once"])
def test_what_the_store_says_of_a_failing_disk_is_true(tmp_path: Path, disk: str, others: tuple[str, ...]) -> None:
    """From each system call on that changes a file: "nothing was changed" and "done" are so, after recovery too."""
    found = deaths(tmp_path, disk, *others, **preloaded("disk", tmp_path))
    assert [one for one in found if one.fault] == []
    assert {one.command for one in found} >= set(WRITING)
    said = Counter(one.answer for one in found)
    # in doubt only where the disk fails on the way from the log to what others see of it
    assert said["OutcomeUnknown"] <= len(WRITING)
    assert said["StoreRefused" if disk == "full" else "StoreUnavailable"] > len(WRITING)


# --- a disk that is really full -------------------------------------------------------------------------------------

FULL = """
import resource
from pathlib import Path
from lockstead.events import RenewalFailed, Renewed
from lockstead.stores.bootclock import boot_now

FOLDER = Path(os.environ["FOLDER"])
if os.environ["HOW"] == "tmpfs":
    os.system(f"mount -t tmpfs -o size=256k none {FOLDER}") == 0 or sys.exit("no mount")

def fill():
    if os.environ["HOW"] == "tmpfs":
        with open(FOLDER / "filler", "ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 512)
            except OSError:
                pass
    else:
        size = (FOLDER / "locks.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def make_room():
    (FOLDER / "filler").unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def tried(work):
    try:
        say("done", work())
    except lockstead.LocksteadError as error:
        say(type(error).__name__, error)

def until(condition):
    ends_at = time.monotonic() + 60
    while not condition() and time.monotonic() < ends_at:
        time.sleep(0.005)

events, told = [], []
client = lockstead.connect(URL, listener=events.append)
other = lockstead.connect(URL, listener=lambda event: None)
settings = dict(ttl=8, renew_every=0.8, request_timeout=0.75, abort_margin=1, backoff_max=0.2)
lease = client.lock("apt", **settings).acquire()
token = lease.sequencer().token
until(lambda: any(isinstance(event, Renewed) for event in events))

fill()
until(lambda: any(isinstance(event, RenewalFailed) for event in events))
make_room()
del events[:]
until(lambda: any(isinstance(event, Renewed) for event in events))
say(lease.is_held, other.lock("apt").inspect().holder == lease.holder)

lease.on_lost(lambda: told.append(boot_now()))
fill()
tried(lambda: other.lock("deb", **settings).try_acquire())
tried(lambda: other.lock("deb", **settings).acquire(timeout=1))
tried(lambda: lockstead.Lock(f"sqlite:///{FOLDER}/other.db#x").try_acquire())
until(lambda: told)
deadline = max(event.deadline for event in events if isinstance(event, Renewed))
say(lease.is_held, told[0] < deadline, lease.release(), other.lock("apt").inspect().holder == lease.holder)
until(lambda: boot_now() > deadline + 1)
tried(lambda: other.lock("apt", **settings).try_acquire())
make_room()
tried(lambda: other.lock("deb", **settings).try_acquire().release())
successor = other.lock("apt", **settings).acquire(timeout=60)
say(successor.previous_lease.ending.value, successor.previous_lease.holder == lease.holder)
say(successor.sequencer().token > token, successor.release(), other.list())
client.close()
other.close()
import sqlite3
say(sqlite3.connect(FOLDER / "locks.db").execute("PRAGMA integrity_check").fetchone()[0])
"""


@pytest.fixture(scope="session")
def own_mounts() -> list[str]:
    """Return a command that lets a process mount for itself alone; skips where this is not permitted."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
            mounting = [*words, "mount", "-t", "tmpfs", "none", folder]
            if shutil.which("unshare") and subprocess.run(mounting, capture_output=True, check=False).returncode == 0:
                return words
    pytest.skip("this process may not mount a file system of its own")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "last_words"),
    [
        ("tmpfs", "StoreRefused", "the disk is full; make room"),
        ("file size limit", "StoreUnavailable", "nothing was changed"),
    ],
    ids=["tmpfs", "file-size-limit"],
)
def test_a_disk_that_is_full(
    request: pytest.FixtureRequest, tmp_path: Path, how: str, kind: str, last_words: str
) -> None:
    """Every request fails at once with one line, the holder continues or is notified in time, and free space mends
    all."""
    under = request.getfixturevalue("own_mounts") if how == "tmpfs" else []
    url = f"sqlite:///{tmp_path}/locks.db"
    with Child(FULL, url, under=under, HOW=how, FOLDER=str(tmp_path)) as child:
        assert child.hear() == "True True", "a lease outlives a shortage that is over in time"
        for name in ("locks.db", "locks.db", "other.db"):
            heard = child.hear()
            assert heard.startswith(f"{kind} ")
            assert f"{tmp_path}/{name}" in heard
            assert heard.endswith(last_words)
        assert child.hear() == "False True False True", "a loss is told before the deadline"
        assert child.hear().startswith(kind)
        assert child.hear() == "done True"
        assert child.hear() == "EXPIRED True"
        assert child.hear() == "True True []"
        assert child.hear() == "ok"
        assert child.end() == 0


# --- read-only ------------------------------------------------------------------------------------------------------

STRANGER = """
def tried(work):
    try:
        say("done", work())
    except lockstead.LocksteadError as error:
        say(type(error).__name__, error)

# everything is imported before the rights are given up
with lockstead.Lock(f"sqlite:///{os.environ['OWN']}/own.db#x").hold():
    pass
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
lock = lockstead.Lock(URL + "#deb")
tried(lock.inspect)
tried(lock.try_acquire)
tried(lambda: lock.acquire(timeout=1))
tried(lockstead.Lock(URL.replace("locks.db", "new.db") + "#x").try_acquire)
"""

REFUSED = "this process must be able to write the file and its folder"


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that strangers reach, and may not write."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def close_off(folder: Path) -> None:
    """Take the right to write away; from root it cannot be taken, so there the stranger is another user."""
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_process_that_may_not_write_is_told_what_it_lacks(public: Path, tmp_path: Path, is_held: bool) -> None:
    """Beside a live holder, which it may see and does not disturb, and with a file that no process has open."""
    url = f"sqlite:///{public}/locks.db"
    with lockstead.connect(url, listener=quiet) as client:
        lease = client.lock("apt", ttl=60).acquire()
        lease.sequencer()
        if not is_held:
            lease.release()
            client.close()
        close_off(public)
        with Child(STRANGER, url, OWN=str(tmp_path)) as stranger:
            seen, *refusals = [stranger.hear() for _ in range(4)]
            assert stranger.end() == 0
        if is_held:
            assert seen == "done None"
            assert client.verify(lease.sequencer())
            public.chmod(0o755)
            assert lease.release()
        else:
            refusals.append(seen)
        for line in refusals:
            assert line.startswith(f"StoreRefused cannot keep locks in {public}/")
            assert line.endswith(REFUSED)


READ_ONLY = """
FOLDER = os.environ["FOLDER"]

def mount(words):
    os.system(f"mount {words} {FOLDER}") == 0 or sys.exit("no mount")

def tried(work):
    try:
        say("done", work())
    except lockstead.LocksteadError as error:
        say(type(error).__name__, error)

mount("-t tmpfs -o size=1m none")
client = lockstead.connect(URL)
holder = client.lock("apt", ttl=60).acquire().holder
client.close()
mount("-o remount,ro")
lock = lockstead.Lock(URL + "#apt")
tried(lock.inspect)
tried(lock.try_acquire)
tried(lambda: lock.acquire(timeout=1))
mount("-o remount,rw")
say(lock.inspect().holder == holder, lock.try_acquire())
"""


OPENED_READ_ONLY = """
FOLDER = os.environ["FOLDER"]

def mount(words):
    os.system(f"mount {words} {FOLDER}") == 0 or sys.exit("no mount")

mount("-t tmpfs -o size=1m none")
if os.fork() == 0:
    client = lockstead.connect(URL)
    lease = client.lock("apt", ttl=60).acquire()
    os._exit(0)  # as if killed: its journal is left, with which a file can be read without being written
os.wait()
mount("-o remount,ro")
lock = lockstead.Lock(URL + "#deb")
say(lock.inspect())
try:
    lock.try_acquire()
except lockstead.StoreRefused as error:
    say(error)
say(lock.inspect())
mount("-o remount,rw")
with lock.try_acquire() as lease:
    say(lease.is_held)
"""


def test_a_read_only_disk_is_refused_and_nothing_is_lost(own_mounts: list[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with Child(READ_ONLY, url, under=own_mounts, FOLDER=str(tmp_path)) as child:
        for _ in range(3):
            line = child.hear()
            assert line.startswith(f"StoreRefused cannot keep locks in {tmp_path}/locks.db")
            assert line.endswith(REFUSED)
        assert child.hear() == "True None"
        assert child.end() == 0


def test_a_file_opened_on_a_read_only_disk_works_once_writable(own_mounts: list[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with Child(OPENED_READ_ONLY, url, under=own_mounts, FOLDER=str(tmp_path)) as child:
        assert child.hear() == "None"
        assert child.hear().endswith(REFUSED)
        assert child.hear() == "None"
        assert child.hear() == "True"
        assert child.end() == 0
