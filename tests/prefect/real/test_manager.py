"""Prefect's own transactions run on our locks as on its own, and get on where its own would not."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.locking.filesystem import FileSystemLockManager
from prefect.locking.memory import MemoryLockManager
from prefect.locking.protocol import LockManager
from prefect.transactions import CommitMode, IsolationLevel, transaction

import lockstead
from prefect_lockstead.blocks import LocksteadStore
from prefect_lockstead.manager import LocksteadLockManager
from tests.prefect.real.serializable import store_of
from tests.servers.base import dies_with_us
from tests.servers.prefect import PrefectServer

A, B = "holder-a", "holder-b"
SERIALIZABLE = IsolationLevel.SERIALIZABLE


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db?ttl=2s"


@pytest.fixture
def ours(url: str) -> Iterator[LocksteadLockManager]:
    with LocksteadLockManager(url) as manager:
        yield manager
    gc.collect()


@pytest.fixture(params=["ours", "memory", "files"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return ours and Prefect's own, one after the other."""
    match request.param:
        case "ours":
            return request.getfixturevalue("ours")
        case "memory":
            return MemoryLockManager()
        case _:
            return FileSystemLockManager(tmp_path / "files")


# --- the protocol, side by side ---------------------------------------------------------------------------------------


def test_every_promise_of_the_protocol_is_kept_by_all_three(manager: Any) -> None:
    assert isinstance(manager, LockManager)
    assert not manager.is_locked("key")
    assert not manager.is_lock_holder("key", A)
    assert manager.wait_for_lock("key", timeout=0.1)
    assert manager.acquire_lock("key", A)
    assert manager.acquire_lock("key", A)  # by the same holder
    assert manager.is_locked("key")
    assert manager.is_lock_holder("key", A)
    assert not manager.is_lock_holder("key", B)
    assert not manager.acquire_lock("key", B, acquire_timeout=0.2)
    assert not manager.wait_for_lock("key", timeout=0.2)
    with pytest.raises(ValueError, match=f"No lock held by {B} for transaction with key key"):
        manager.release_lock("key", B)
    manager.release_lock("key", A)
    assert not manager.is_locked("key")
    assert manager.acquire_lock("key", A, hold_timeout=0.3)
    assert manager.acquire_lock("key", B, acquire_timeout=10)
    assert manager.is_lock_holder("key", B)
    manager.release_lock("key", B)
    assert manager.wait_for_lock("key")


def test_every_awaiting_promise_is_kept_by_all_three(manager: Any) -> None:
    async def cycle() -> None:
        assert await manager.await_for_lock("awaited", timeout=0.1)
        assert await manager.aacquire_lock("awaited", A)
        assert await manager.aacquire_lock("awaited", A)
        assert not await manager.aacquire_lock("awaited", B, acquire_timeout=0.2)
        assert not await manager.await_for_lock("awaited", timeout=0.2)
        manager.release_lock("awaited", A)
        assert await manager.aacquire_lock("awaited", B, acquire_timeout=5, hold_timeout=0.3)
        assert await manager.await_for_lock("awaited")
        assert not manager.is_lock_holder("awaited", B)

    asyncio.run(cycle())


# --- transactions ----------------------------------------------------------------------------------------------------


def test_serializable_transactions_of_one_key_run_one_by_one(manager: Any, tmp_path: Path) -> None:
    store = store_of("", tmp_path / "results", manager)
    seen: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait(20)
        with transaction(key="pair", store=store, isolation_level=SERIALIZABLE) as ours:
            seen.append("read" if ours.is_committed() else "computed")

    thread = threading.Thread(target=second)
    thread.start()
    with transaction(key="pair", store=store, isolation_level=SERIALIZABLE) as first:
        inside.set()
        assert store.is_locked("pair")
        assert not seen
        first.stage({"answer": 42})
        seen.append("staged")
    thread.join(20)
    assert seen == ["staged", "read"]
    assert store.read("pair").result == {"answer": 42}
    assert not store.is_locked("pair")


def test_one_that_rolls_back_gives_its_lock_back(ours: LocksteadLockManager, tmp_path: Path) -> None:
    store = store_of("", tmp_path / "results", ours)
    with (
        pytest.raises(RuntimeError, match="of its own"),
        transaction(key="failed", store=store, isolation_level=SERIALIZABLE),
    ):
        raise RuntimeError("of its own")
    assert not ours.is_locked("failed")


def test_an_eagerly_committed_child_may_be_committed_again(ours: LocksteadLockManager, tmp_path: Path) -> None:
    store = store_of("", tmp_path / "results", ours)
    with transaction(key="parent", store=store, isolation_level=SERIALIZABLE) as parent:
        eager = CommitMode.EAGER
        with transaction(key="child", store=store, isolation_level=SERIALIZABLE, commit_mode=eager) as child:
            child.stage(1)
        assert ours.acquire_lock("child", A)
        parent.stage(2)
    assert parent.is_committed()
    assert ours.is_lock_holder("child", A)
    ours.release_lock("child", A)


def test_a_transaction_that_lost_its_lock_is_not_committed(
    ours: LocksteadLockManager, url: str, tmp_path: Path
) -> None:
    store = store_of("", tmp_path / "results", ours)
    with transaction(key="lost", store=store, isolation_level=SERIALIZABLE) as lost:
        lockstead.Lock(f"{url}#lost").break_lease(reason="by hand", now=True)
        assert ours.acquire_lock("lost", B, acquire_timeout=10)
        lost.stage("of who is too late")
    assert not lost.is_committed()
    assert ours.is_lock_holder("lost", B)
    assert not store.exists("lost")
    ours.release_lock("lost", B)


def test_h01_a_transaction_after_kill_9_starts_after_the_ttl(url: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("serializable.py")
    words = [*dies_with_us(), sys.executable, str(program), url, str(tmp_path / "results")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "inside\n" in iter(process.stdout.readline, "")
        process.kill()
    store = store_of(url, tmp_path / "results")
    began = time.monotonic()
    with transaction(key="killed", store=store, isolation_level=SERIALIZABLE) as following:
        assert time.monotonic() - began < 2 + 3
        following.stage("done")
    assert following.is_committed()
    store.lock_manager.close()


# --- in flows --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("server")
def test_tasks_of_one_cache_key_are_computed_once(ours: LocksteadLockManager, tmp_path: Path) -> None:
    computed: list[int] = []
    policy = INPUTS.configure(
        key_storage=tmp_path / "keys", isolation_level=SERIALIZABLE, lock_manager=copy.deepcopy(ours)
    )

    @task(cache_policy=policy, persist_result=True)
    def compute(number: int) -> int:
        computed.append(number)
        return number + 1

    @flow
    def both() -> list[int]:
        return [found.result() for found in [compute.submit(41), compute.submit(41)]]

    assert both() == [42, 42]
    assert computed == [41]


def test_a_manager_of_a_saved_store_finds_it_by_name_and_travels(server: PrefectServer, url: str) -> None:
    assert server.is_ready()
    LocksteadStore(url=url.partition("?")[0], ttl="3s").save("records", overwrite=True)
    for store in ("records", LocksteadStore.load("records")):
        with LocksteadLockManager(store) as named, cloudpickle.loads(cloudpickle.dumps(named)) as travelled:
            assert travelled.acquire_lock("key", A)
            assert named.is_lock_holder("key", A)
            assert lockstead.Lock(f"{url}#key").inspect().ttl == 3
            named.release_lock("key", A)
            assert asyncio.run(named.aacquire_lock("key", B, acquire_timeout=0))
            travelled.release_lock("key", B)
    with LocksteadLockManager("nowhere") as lost, pytest.raises(ValueError, match="there is no block 'nowhere'"):
        lost.is_locked("key")


def test_a_pickle_of_a_block_with_a_password_says_so(caplog: pytest.LogCaptureFixture) -> None:
    cloudpickle.dumps(LocksteadLockManager(LocksteadStore(url="redis://host/0")))
    assert "pickled with a password" not in caplog.text
    cloudpickle.dumps(LocksteadLockManager(LocksteadStore(url="redis://host/0", password="hunter2")))
    assert "pickled with a password" in caplog.text
    assert "hunter2" not in caplog.text
