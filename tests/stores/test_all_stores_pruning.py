"""What holds on every store with a server while somebody prunes it, without regard to age."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from lockstead import Client, LeaseLost
from lockstead.protocol.commands import Create, List
from lockstead.protocol.permits import turn_name
from lockstead.protocol.record import Record, encode
from lockstead.values import Name, Space
from tests.runtime.faulty import until
from tests.servers.bench import ENOUGH, LONG_TTL, SHORT_TTL, Bench, at, bench, in_background

__all__ = ["at", "bench"]


def prune(client: Client) -> Counter[str]:
    return Counter(client.prune(older_than=0, history_older_than=0, per_second=10_000).removed)


def there(client: Client, space: Space) -> list[Name]:
    listed = client._engine.store.perform(List(space), ENOUGH)
    return [name for name, _seen in listed.entries]


def test_h36_a_crowd_of_readers_and_writers_is_not_disturbed(bench: Bench) -> None:
    writing, reading, beside = threading.Lock(), Counter[int](), []
    is_over = threading.Event()

    def work(number: int, client: Client) -> None:
        lock = client.lock("apt", **LONG_TTL)
        for turn in range(4):
            if (number + turn) % 2:
                with lock.hold(timeout=ENOUGH) as lease:
                    if not writing.acquire(blocking=False) or any(reading.values()):
                        beside.append(f"writer {number}")
                    lease.renew()
                    writing.release()
            else:
                with lock.hold(timeout=ENOUGH, mode="shared") as lease:
                    reading[number] = 1
                    if writing.locked():
                        beside.append(f"reader {number}")
                    lease.check()
                    reading[number] = 0
            with client.semaphore("api", 2, **LONG_TTL).hold(timeout=ENOUGH) as permit:
                permit.check()

    def keep_pruning(client: Client) -> None:
        while not is_over.is_set():
            prune(client)

    clients = [bench.client() for _ in range(6)]
    pruning = [in_background(lambda client=client: keep_pruning(client)) for client in clients[4:]]
    try:
        crowd = [in_background(lambda n=n: work(n, clients[n])) for n in range(4)]
        for one in crowd:
            one.result()
    finally:
        is_over.set()
    for one in pruning:
        one.result()
    assert beside == []


def test_what_dead_clients_left_is_removed_and_the_news_of_a_dead_holder_stays(bench: Bench) -> None:
    dying, client = bench.client(), bench.client()
    lost = [
        dying.lock("read", mode="shared", **SHORT_TTL).acquire(ENOUGH),
        dying.lock("held", **SHORT_TTL).acquire(ENOUGH),
    ]
    dying.close()
    turn = encode(Record("w/1", 1.0))
    client._engine.store.perform(Create(turn_name("api"), turn, lifetime=1.0, min_retention=1.01), ENOUGH)

    def is_clean() -> bool:
        prune(client)
        names = [*there(client, Space.MEMBER), *there(client, Space.PERMIT), *there(client, Space.LOCK)]
        return [name for name in names if name != Name("held")] == []

    until(is_clean, ENOUGH)
    with pytest.raises(LeaseLost):
        lost[0].check()
    after = client.lock("held", **LONG_TTL).acquire(ENOUGH)
    assert after.previous_lease.ending.name in ("EXPIRED", "UNKNOWN")
    after.release()


def test_the_history_is_removed_and_the_tokens_go_on(bench: Bench) -> None:
    client = bench.client()
    lock = client.lock("apt", **LONG_TTL)
    tokens = []
    for _ in range(3):
        lease = lock.acquire(ENOUGH)
        if bench.has_tokens:
            tokens.append(lease.sequencer().token)
        lease.release()
        prune(client)
    assert tokens == sorted(set(tokens))
    lease = lock.acquire(ENOUGH)
    lock.break_lease(reason="test", now=True)
    assert [entry.reason for entry in client.history("apt")] == ["test"]
    assert client.prune(older_than=0).removed["history"] == 0
    prune(client)
    assert client.history() == []
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lock.acquire(ENOUGH).previous_lease.ending.name in ("REVOKED", "UNKNOWN")
