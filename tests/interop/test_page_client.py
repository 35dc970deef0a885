"""The page says enough: a client written from it and lockstead keep each other out, and carry on after each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

import lockstead
from gcs_emulator import GcsServer
from lockstead.values import LeaseOutcome
from tests.interop.page_client import PageClient
from tests.interop.recordings import BUCKET

ROUNDS = 15


@pytest.fixture
def ahead() -> list[float]:
    """Seconds by which the server's clock is ahead of this machine's."""
    return [0.0]


@pytest.fixture
def server(ahead: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server whose time goes by, and can be moved on."""
    with GcsServer(buckets=[BUCKET], clock=lambda: time.time() + ahead[0]) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def page(server: GcsServer) -> Iterator[PageClient]:
    """A client as the page describes it."""
    opened = PageClient(server.url, BUCKET, "locks", "page", ttl=30)
    yield opened
    opened.close()


def test_no_increment_is_lost_beside_the_pages_client(server: GcsServer) -> None:
    counter = [0]
    failures: list[BaseException] = []

    def add() -> None:
        was = counter[0]
        time.sleep(0.005)
        counter[0] = was + 1

    def by_page(name: str) -> None:
        with closing(PageClient(server.url, BUCKET, "locks", name, ttl=120)) as client:
            for _ in range(ROUNDS):
                assert client.acquire("apt", within=120)
                add()
                assert client.is_held
                assert client.release("apt")

    def by_us(name: str) -> None:
        with lockstead.connect(f"gs://{BUCKET}/locks") as client:
            lock = client.lock("apt", ttl=120, owner=name, backoff_max=0.1)
            for _ in range(ROUNDS):
                with lock.hold(timeout=120):
                    add()

    def kept(work: object, name: str) -> None:
        try:
            work(name)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    crowd = [
        threading.Thread(target=kept, args=(work, f"{work.__name__}-{n}")) for work in (by_page, by_us) for n in "ab"
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(timeout=150)
    assert not failures
    assert counter[0] == 4 * ROUNDS


def test_what_a_client_of_the_page_left_is_shown_and_taken_over(
    client: lockstead.Client, page: PageClient, ahead: list[float]
) -> None:
    assert page.acquire("apt", within=10)
    lock = client.lock("apt", owner="ours")
    assert lock.try_acquire() is None
    shown = lock.inspect()
    assert shown is not None
    assert (shown.holder, shown.owner, shown.ttl, shown.is_foreign) == (page.identity, "page", 30.0, False)
    ahead[0] += 20
    assert page.renew("apt")
    ahead[0] += 25
    assert lock.try_acquire() is None
    ahead[0] += 10
    with lock.acquire(timeout=10) as lease:
        assert lease.previous_lease is not None
        assert (lease.previous_lease.ending, lease.previous_lease.holder) == (LeaseOutcome.EXPIRED, page.identity)
        assert not page.renew("apt")
        assert not page.release("apt")
        assert lease.is_held


def test_what_we_left_is_taken_over_by_a_client_of_the_page(
    client: lockstead.Client, page: PageClient, ahead: list[float]
) -> None:
    ticket = client.lock("apt", ttl=60, lock_delay=10).acquire(timeout=10).detach()
    ahead[0] += 60 * 1.01 + 10
    assert not page.acquire("apt", within=0.3)
    ahead[0] += 4
    assert page.acquire("apt", within=10)
    with pytest.raises(lockstead.LeaseLost):
        client.renew(ticket)
    assert client.release(ticket) is False
    assert page.renew("apt")


def test_breaking_reaches_a_client_of_the_page(client: lockstead.Client, page: PageClient) -> None:
    assert page.acquire("apt", within=10)
    assert client.lock("apt").break_lease(reason="a test", by="operator") is not None
    assert page.is_held
    assert not page.renew("apt")
    assert not page.is_held


def test_a_client_of_the_page_takes_at_once_what_was_ended(client: lockstead.Client, page: PageClient) -> None:
    client.lock("apt").acquire(timeout=10).detach()
    assert client.lock("apt").break_lease(reason="a test", by="operator", now=True) is not None
    assert page.acquire("apt", within=10)
