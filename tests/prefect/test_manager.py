"""Prefect's own locks and ours do the same where they should, on any store, and without Prefect being there."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockstead
from prefect_lockstead.manager import LocksteadLockManager
from tests.servers.base import dies_with_us

A, B = "holder-a", "holder-b"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db?ttl=2s"


@pytest.fixture
def left() -> Callable[[], set[str]]:
    """Return what names the threads of ours that this test has started and that still run.

    Earlier tests of this process may have left some, which look after given-up acquisitions for minutes.
    """
    before = set(threading.enumerate())

    def ours() -> set[str]:
        # each time: a thread that was at work a moment ago may have kept a client from being collected
        gc.collect()
        return {one.name for one in set(threading.enumerate()) - before if one.name.startswith("lockstead")}

    return ours


@pytest.fixture
def manager(url: str, left: Callable[[], set[str]]) -> Iterator[LocksteadLockManager]:
    with LocksteadLockManager(url) as made:
        yield made
    # what was asked for in vain is looked for once more, a little later
    until(lambda: "lockstead-keeper" not in left())


def until(is_so: Callable[[], bool], limit: float = 30.0) -> float:
    """Return the seconds until it is so."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + limit
        time.sleep(0.01)
    return time.monotonic() - began


def test_it_imports_no_prefect_and_no_client_library() -> None:
    program = (
        "import sys, prefect_lockstead.manager\n"
        "assert not {'prefect', 'pydantic', 'redis', 'google.cloud.storage'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_one_holder_at_a_time_and_whoever_gave_it_back_is_none(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A)
    assert manager.is_locked("key")
    assert manager.is_lock_holder("key", A)
    assert not manager.is_lock_holder("key", B)
    assert not manager.acquire_lock("key", B, acquire_timeout=0)
    assert manager.acquire_lock("other", B, acquire_timeout=0)
    manager.release_lock("key", A)
    assert not manager.is_locked("key")
    assert not manager.is_lock_holder("key", A)
    assert manager.acquire_lock("key", B, acquire_timeout=0)
    manager.release_lock("key", B)
    manager.release_lock("other", B)


def test_the_async_methods_do_the_same_and_release_without_await(
    manager: LocksteadLockManager,
) -> None:
    async def cycle() -> None:
        assert await manager.aacquire_lock("key", A)
        assert manager.is_lock_holder("key", A)
        assert not await manager.aacquire_lock("key", B, acquire_timeout=0)
        assert not await manager.await_for_lock("key", timeout=0)
        waiting = asyncio.create_task(manager.aacquire_lock("key", B, acquire_timeout=20))
        await asyncio.sleep(0)
        manager.release_lock("key", A)
        assert await waiting
        manager.release_lock("key", B)
        assert await manager.await_for_lock("key", timeout=0)

    asyncio.run(cycle())
    assert not manager.is_locked("key")


def test_a_wait_that_is_cancelled_takes_no_lock(manager: LocksteadLockManager) -> None:
    async def cycle() -> None:
        assert await manager.aacquire_lock("key", A)
        waiting = asyncio.create_task(manager.aacquire_lock("key", B))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        manager.release_lock("key", A)
        assert await manager.aacquire_lock("key", "holder-c", acquire_timeout=5)
        manager.release_lock("key", "holder-c")

    asyncio.run(cycle())


def test_the_same_holder_holds_it_once_however_often_it_asks(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A)
    assert manager.acquire_lock("key", A)
    assert asyncio.run(manager.aacquire_lock("key", A))
    manager.release_lock("key", A)
    assert not manager.is_locked("key")


def test_a_second_release_does_nothing_even_if_held_by_another(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A)
    manager.release_lock("key", A)
    manager.release_lock("key", A)
    assert manager.acquire_lock("key", B)
    manager.release_lock("key", A)
    assert manager.is_lock_holder("key", B)
    manager.release_lock("key", B)


def test_what_was_never_ours_is_not_given_back(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", B)
    with pytest.raises(ValueError, match=r"No lock held by holder-a for transaction with key key.*'holder-b'"):
        manager.release_lock("key", A)
    assert manager.is_lock_holder("key", B)
    manager.release_lock("key", B)


def test_a_lock_is_renewed_past_its_ttl(manager: LocksteadLockManager, url: str) -> None:
    assert manager.acquire_lock("key", A)
    began = time.monotonic()
    token = seen(url).token
    until(lambda: time.monotonic() > began + 4.5)
    assert manager.is_lock_holder("key", A)
    assert seen(url).token == token
    manager.release_lock("key", A)


def seen(url: str) -> lockstead.LockInfo:
    holding = lockstead.Lock(f"{url}#key").inspect()
    assert holding is not None
    return holding


def test_with_a_hold_timeout_it_ends_then_and_another_gets_in(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A, hold_timeout=0.3)
    began = time.monotonic()
    # the very same thread, as in Prefect's own tests
    assert manager.acquire_lock("key", B, acquire_timeout=20)
    assert 0.1 < time.monotonic() - began < 5
    assert not manager.is_lock_holder("key", A)
    manager.release_lock("key", A)
    assert manager.is_lock_holder("key", B)
    manager.release_lock("key", B)


def test_asking_again_replaces_the_hold_timeout(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A, hold_timeout=0.3)
    assert manager.acquire_lock("key", A)
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 0.6)
    assert manager.is_lock_holder("key", A)
    assert manager.acquire_lock("key", A, hold_timeout=0.1)
    until(lambda: not manager.is_locked("key"))


def test_who_would_wait_for_himself_for_ever_is_told(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A)
    with pytest.raises(RuntimeError, match=r"'key' is already held by this thread or task.*would wait forever"):
        manager.acquire_lock("key", B)
    assert not manager.acquire_lock("key", B, acquire_timeout=0.2)
    manager.release_lock("key", A)


def test_a_wait_ends_when_the_lock_is_given_back(manager: LocksteadLockManager) -> None:
    assert manager.acquire_lock("key", A)
    assert not manager.wait_for_lock("key", timeout=0)
    assert not manager.wait_for_lock("key", timeout=0.2)
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(manager.acquire_lock("key", B)))
    thread.start()
    manager.release_lock("key", A)
    thread.join(20)
    assert got == [True]
    manager.release_lock("key", B)
    assert manager.wait_for_lock("key", timeout=0)


def test_copies_and_pickles_release_what_the_original_took(manager: LocksteadLockManager) -> None:
    copied, pickled = copy.deepcopy(manager), pickle.loads(pickle.dumps(manager))
    assert manager.acquire_lock("key", A)
    assert copied.is_lock_holder("key", A)
    assert pickled.acquire_lock("key", A, acquire_timeout=0)
    copied.release_lock("key", A)
    assert not manager.is_locked("key")
    assert pickled.acquire_lock("key", B, acquire_timeout=0)
    manager.release_lock("key", B)
    copied.close()
    pickled.close()


def test_a_copy_in_another_process_sees_and_releases_it(manager: LocksteadLockManager, tmp_path: Path) -> None:
    (tmp_path / "manager").write_bytes(pickle.dumps(manager))
    program = (
        "import pickle, sys\n"
        "manager = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert manager.is_lock_holder('key', 'holder-a')\n"
        "assert not manager.acquire_lock('key', 'holder-b', acquire_timeout=0)\n"
        "manager.release_lock('key', 'holder-a')\n"
        "assert manager.acquire_lock('key', 'holder-b', acquire_timeout=0)\n"
        "manager.release_lock('key', 'holder-b')\n"
    )
    assert manager.acquire_lock("key", A)
    subprocess.run([sys.executable, "-c", program, tmp_path / "manager"], check=True)
    assert not manager.is_lock_holder("key", A)
    manager.release_lock("key", A)


KILLED = """
import sys, time
from prefect_lockstead.manager import LocksteadLockManager
manager = LocksteadLockManager(sys.argv[1])
assert manager.acquire_lock("key", sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def killed(url: str) -> Callable[[str], None]:
    def kill(holder: str) -> None:
        words = [*dies_with_us(), sys.executable, "-c", KILLED, url, holder]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            process.kill()

    return kill


def test_h01_after_kill_9_the_next_gets_in_once_the_ttl_is_over(
    manager: LocksteadLockManager, killed: Callable[[str], None]
) -> None:
    killed(A)
    assert not manager.acquire_lock("key", B, acquire_timeout=0)
    began = time.monotonic()
    assert manager.acquire_lock("key", B)
    assert time.monotonic() - began < 2 + 2
    assert not manager.is_lock_holder("key", A)
    manager.release_lock("key", B)


def test_after_kill_9_the_same_holder_has_it_at_once(
    manager: LocksteadLockManager, killed: Callable[[str], None]
) -> None:
    killed(A)
    began = time.monotonic()
    assert manager.acquire_lock("key", A)
    assert time.monotonic() - began < 1.5
    manager.release_lock("key", A)
    assert not manager.is_locked("key")


def test_what_was_broken_is_held_no_more_and_may_be_given_back(manager: LocksteadLockManager, url: str) -> None:
    assert manager.acquire_lock("key", A)
    lockstead.Lock(f"{url}#key").break_lease(reason="by hand", now=True)
    assert not manager.is_lock_holder("key", A)
    with LocksteadLockManager(url) as other:
        assert asyncio.run(other.aacquire_lock("key", B, acquire_timeout=5))
        manager.release_lock("key", A)
        assert other.is_lock_holder("key", B)
        other.release_lock("key", B)


def test_any_key_and_any_holder_will_do(manager: LocksteadLockManager) -> None:
    for key in ("a/b?c#d%e", "line\nbreak", "x" * 2000, "schlüssel"):
        for holder in ("host:1:2", "line\nbreak", " "):
            assert manager.acquire_lock(key, holder, acquire_timeout=0)
            assert manager.is_lock_holder(key, holder)
            manager.release_lock(key, holder)
            assert not manager.is_locked(key)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("nosuch:x", "no store has the scheme 'nosuch'"),
        ("sqlite:///locks.db#apt", "the URL names a lock, not a store"),
    ],
)
def test_a_store_that_cannot_be_is_refused_at_once(store: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LocksteadLockManager(store)
    with pytest.raises(TypeError, match="store must be a URL, a LocksteadStore or the name of one, not int"):
        LocksteadLockManager(5)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match=r"ttl is 0.5 s; it must be at least 1 s"):
        LocksteadLockManager("memory:x", ttl=0.5)


def test_once_closed_it_says_so_and_leaves_nothing_open(url: str, tmp_path: Path, left: Callable[[], set[str]]) -> None:
    manager = LocksteadLockManager(url)
    assert manager.acquire_lock("key", A)
    assert manager.acquire_lock("timed", A, hold_timeout=600)
    manager.release_lock("key", A)
    manager.close()
    manager.close()
    for ask in (manager.is_locked, manager.wait_for_lock, lambda key: manager.acquire_lock(key, A)):
        with pytest.raises(lockstead.StoreRefused, match="the lock manager is closed: create another one"):
            ask("key")
    gc.collect()
    open_files = [str(found.readlink()) for found in Path("/proc/self/fd").iterdir() if found.is_symlink()]
    assert not [name for name in open_files if name.startswith(str(tmp_path))]
    until(lambda: not left())


def test_a_forked_child_sees_and_releases_its_parents_records(tmp_path: Path):
    with LocksteadLockManager(f"sqlite:///{tmp_path}/locks.db") as manager:
        assert manager.acquire_lock("report", "me")
        answer, said = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                held = manager.is_lock_holder("report", "me")
                manager.release_lock("report", "me")
                os.write(said, f"{held} {manager.is_locked('report')}".encode())
            finally:
                os._exit(0)
        os.close(said)
        with os.fdopen(answer) as told:
            assert told.read() == "True False"
        os.waitpid(child, 0)
        assert not manager.is_locked("report")


def test_managers_of_one_store_are_equal_and_others_are_not():
    one = LocksteadLockManager("sqlite:///locks.db", ttl="1m")
    assert one == pickle.loads(pickle.dumps(one)) == copy.copy(one)
    assert len({one, pickle.loads(pickle.dumps(one))}) == 1
    assert one != LocksteadLockManager("sqlite:///locks.db")
    assert one != LocksteadLockManager("sqlite:///others.db", ttl="1m")
    assert one != "sqlite:///locks.db"


def test_a_pickle_says_that_it_holds_a_password(caplog: pytest.LogCaptureFixture):
    for without in ("redis://host/0", "a-saved-store"):
        assert b"secret" not in pickle.dumps(LocksteadLockManager(without))
    assert caplog.text == ""
    for store in ("redis://u:secret@host/0", "postgresql://host/db?password=secret"):
        pickle.dumps(LocksteadLockManager(store))
        assert "pickled with a password or key of its store" in caplog.text
        assert "secret" not in caplog.text
        caplog.clear()
