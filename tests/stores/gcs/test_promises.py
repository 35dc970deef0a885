"""What a lock on Cloud Storage costs and survives, counted at the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import quote

import httpx
import pytest

import lockstead
from gcs_emulator import GcsServer

LOCK_OBJECT = "locks/apt"


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition; fail, saying for what, if it does not come."""
    ends_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends_at:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(buckets=["b"]) as running:
        yield running


@pytest.fixture
def client(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[lockstead.Client]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with lockstead.connect("gs://b/locks") as opened:
        yield opened


def test_an_uncontended_cycle_is_one_insert_and_one_delete(server: GcsServer, client: lockstead.Client) -> None:
    with client.lock("apt").hold():
        pass
    assert server.requests.counts() == {"insert": 1, "delete": 1}


def test_a_renewal_is_one_patch(server: GcsServer, client: lockstead.Client) -> None:
    with client.lock("apt", ttl=2).hold():
        until(lambda: server.requests.count("patch") >= 3, "three renewals")
    counts = server.requests.counts()
    assert set(counts) == {"insert", "patch", "delete"}
    assert counts["insert"] == counts["delete"] == 1


def test_waiting_never_writes(server: GcsServer, client: lockstead.Client) -> None:
    ticket = client.lock("apt", ttl=60).acquire().detach()
    waiter = client.lock("apt", ttl=60, backoff_max=0.2)
    refused = waiter.try_acquire()
    server.requests.clear()
    with pytest.raises(lockstead.NotAcquired):
        waiter.acquire(timeout=2)
    counts = server.requests.counts()
    assert refused is None
    assert counts.pop("insert", 0) <= 1, "the one try before the waiting begins"
    assert set(counts) == {"get"}
    assert client.release(ticket)


@pytest.mark.parametrize("kind", ["insert", "patch", "delete"])
def test_h03_h04_h05_a_lost_answer_costs_no_ttl_and_no_lease(
    server: GcsServer, client: lockstead.Client, kind: str
) -> None:
    fault = server.faults.inject("lose_answer", kind=kind, name=LOCK_OBJECT, times=1)
    lock = client.lock("apt", ttl=30, renew_every=0.5, request_timeout=0.4, max_failures=3)
    began = time.monotonic()
    with lock.hold(timeout=10) as lease:
        until(lambda: server.requests.count("patch", LOCK_OBJECT) >= 2, "two renewals")
        lease.check()
    assert fault.hits == 1
    assert time.monotonic() - began < 25, "it waited for its own record to expire"
    assert lock.inspect() is None


def test_h25_nothing_is_repeated_behind_our_back(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("apt", ttl=30)
    lease = lock.acquire()
    server.requests.clear()
    server.faults.inject("fail", kind="get", name=LOCK_OBJECT, status=503, times=1)
    with pytest.raises(lockstead.OutcomeUnknown):
        lock.inspect()
    assert server.requests.counts() == {"get": 1}
    lease.release()


def tried(lock: lockstead.Lock) -> lockstead.Lease | None:
    """Try until the store has answered: one try has a second, which a busy machine may well need."""
    while True:
        with suppress(lockstead.StoreUnavailable, lockstead.OutcomeUnknown):
            return lock.try_acquire()


def test_two_requests_at_the_same_instant_give_one_winner(server: GcsServer, client: lockstead.Client) -> None:
    start = threading.Barrier(16)
    won: list[lockstead.Lease] = []

    def one() -> None:
        start.wait()
        lease = tried(client.lock("apt", ttl=60))
        if lease is not None:
            won.append(lease)

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert won[0].release()


def test_tokens_grow_over_releases_and_over_the_loss_of_the_companion(
    server: GcsServer, client: lockstead.Client
) -> None:
    lock, tokens = client.lock("apt"), []
    for _ in range(3):
        with lock.hold() as lease:
            tokens.append(lease.sequencer().token)
    companion = quote("locks/.lockstead/companion/apt", safe="")
    httpx.delete(f"{server.url}/storage/v1/b/b/o/{companion}").raise_for_status()
    with lock.hold() as lease:
        tokens.append(lease.sequencer().token)
    assert tokens == sorted(set(tokens))


def test_verify_knows_the_lease_that_holds_now_and_no_other(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("apt")
    with lock.hold() as lease:
        first = lease.sequencer()
        assert client.verify(first)
        assert client.verify(str(first))
    assert not client.verify(first)
    with lock.hold() as lease:
        lease.sequencer()
        assert not client.verify(first)


def test_a_try_waits_for_a_slow_store_but_timeout_0_does_not(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("apt", ttl=60)
    server.faults.inject("stall_answer", kind="insert", name=LOCK_OBJECT, times=1, seconds=1.5)
    lease = lock.try_acquire()
    assert lease is not None
    assert lease.release()
    hang = server.faults.inject("hang", kind="insert", name=LOCK_OBJECT, times=1)
    with pytest.raises(lockstead.OutcomeUnknown):
        lock.acquire(timeout=0)
    assert hang.hits == 1


def test_a_read_only_bucket_is_an_error_not_contention(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("apt", ttl=60, backoff_max=0.2)
    server.faults.inject("fail", kind="insert", times=None, status=503)
    with pytest.raises(lockstead.OutcomeUnknown, match="503"):
        lock.try_acquire()
    assert server.requests.count("insert") == 4
    with pytest.raises(lockstead.OutcomeUnknown, match="503"):
        lock.acquire(timeout=1)
    server.faults.clear()
    with lock.hold(timeout=20):
        pass


def test_a_try_after_a_release_succeeds_despite_the_rate_limit(server: GcsServer, client: lockstead.Client) -> None:
    lock = client.lock("apt", ttl=60)
    server.faults.one_mutation_per_second = True
    with lock.hold(timeout=20):
        pass
    lease = lock.try_acquire()
    assert lease is not None
    lease.release()
