"""Ten thousand leases in one process: one keeper renews them all in time, with a bounded number of threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import pytest

from lockstead import Lease
from lockstead.events import Acquired, LockEvent, Released, Renewed
from lockstead.protocol.commands import Command, Extend, List
from lockstead.runtime.keeper import WORKERS_MAX
from lockstead.stores.memory import MemoryStore
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.values import Space
from tests.runtime.faulty import SetClock, client_with, until

LEASES = 10_000
TTL = 300.0
RENEW_EVERY = TTL / 8


class Counting:
    """A store that counts what it renews, and how many threads of its keeper there are at most."""

    def __init__(self, inner: MemoryStore | SqliteStore) -> None:
        self.inner = inner
        self.extends: Counter[str] = Counter()
        self.threads: Sized = ()
        self.threads_most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def perform(self, command: Command[Any], limit: float) -> Any:
        if isinstance(command, Extend):
            self.extends[command.name.key] += 1
            self.threads_most = max(self.threads_most, len(self.threads))
        return self.inner.perform(command, limit)


def memory(clock: SetClock, _: Path) -> MemoryStore:
    return MemoryStore(clock=clock.now)


def sqlite(clock: SetClock, folder: Path) -> SqliteStore:
    return SqliteStore(folder / "locks.db", now=clock.now)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", [memory, sqlite])
def test_h08_one_keeper_renews_ten_thousand_leases_in_time(
    make: Callable[[SetClock, Path], MemoryStore | SqliteStore], tmp_path: Path
) -> None:
    clock, renewed, told = SetClock(), list[LockEvent](), set[type[LockEvent]]()

    def hear(event: LockEvent) -> None:
        told.add(type(event))
        if isinstance(event, Renewed):
            renewed.append(event)

    store = Counting(make(clock, tmp_path))
    before = threading.active_count()
    client = client_with(store, clock, hear)
    with client:
        leases = [client.lock(f"key-{number}", ttl=TTL).acquire(0) for number in range(LEASES)]
        assert threading.active_count() <= before + 1  # the timing thread
        store.threads = client._engine.keeper._workers._threads
        for turn in range(1, 4):
            pass_by(client._engine.keeper, clock, RENEW_EVERY)
            until(lambda turn=turn: len(renewed) >= turn * LEASES, 120)
            assert set(store.extends.values()) == {turn}, "somebody was renewed twice, or not at all"
            assert all(lease.time_left > TTL * 0.98 for lease in leases)
        assert 0 < store.threads_most <= WORKERS_MAX
        assert all(lease.release() for lease in leases)
        assert store.inner.perform(List(Space.LOCK), 30.0).entries == ()
        assert len(client._engine.keeper) == 0
    assert told == {Acquired, Renewed, Released}


def pass_by(keeper: Any, clock: SetClock, seconds: float) -> None:
    with keeper._lock:
        clock.at += seconds
        keeper._changed.ring()


def test_h08_leases_due_at_once_on_a_slow_store_are_all_renewed() -> None:
    """A bucket's round trip for each of a thousand leases, all due in the same instant."""
    clock, gate = SetClock(), threading.Event()
    waiting = threading.Semaphore(0)

    class Slow(Counting):
        def perform(self, command: Command[Any], limit: float) -> Any:
            if isinstance(command, Extend):
                waiting.release()
                assert gate.wait(60)
            return super().perform(command, limit)

    store = Slow(MemoryStore(clock=clock.now))
    client = client_with(store, clock)
    with client:
        leases: list[Lease] = [client.lock(f"key-{number}", ttl=TTL).acquire(0) for number in range(1000)]
        before = threading.active_count()
        pass_by(client._engine.keeper, clock, RENEW_EVERY)
        for _ in range(WORKERS_MAX):
            assert waiting.acquire(timeout=60)
        assert threading.active_count() <= before + WORKERS_MAX
        gate.set()
        until(lambda: all(lease.time_left > TTL * 0.98 for lease in leases), 60)
        assert set(store.extends.values()) == {1}
