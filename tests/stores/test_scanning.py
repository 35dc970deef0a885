"""`scan` and `list` read a store in pages, and show every lock, semaphore and group of readers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lockstead import AsyncClient, Client, OutcomeUnknown, StoreRefused
from lockstead.protocol.commands import Command, List, Listing
from lockstead.stores.bounds import AnswerTooLong
from lockstead.stores.memory import MemoryStore
from lockstead.values import Space


class Counting(MemoryStore):
    """Notes what is listed, and how many records each answer has."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[List, int]] = []

    def perform(self, command: Command[Any], limit: float) -> Any:
        answer = super().perform(command, limit)
        if isinstance(command, List):
            self.asked.append((command, len(answer.entries)))
        return answer


@pytest.fixture
def store() -> Counting:
    return Counting()


@pytest.fixture
def client(store: Counting) -> Client:
    """A client with 25 locks, two readers of one lock, and a semaphore with one permit held."""
    client = Client(store)
    for number in range(25):
        assert client.lock(f"key-{number:02}", purpose=str(number)).try_acquire()
    assert client.lock("shared", mode="shared").try_acquire()
    assert client.lock("shared", mode="shared").try_acquire()
    client.semaphore("pool", 3).acquire(timeout=0)
    store.asked.clear()
    return client


KEYS = {*(f"key-{number:02}" for number in range(25)), "shared", "pool"}


@pytest.mark.parametrize("page", [1, 4, 27, 10_000])
def test_a_scan_shows_what_a_listing_shows(client: Client, page: int) -> None:
    scanned = {info.key: info for info in client.scan(page)}
    assert set(scanned) == KEYS
    assert len(scanned["shared"].readers) == 2
    assert scanned["pool"].permits is not None
    assert len(scanned["pool"].permits.held) == 1
    listed = client.list()
    assert [info.key for info in listed] == sorted(KEYS)
    assert [replace(info, age=None) for info in listed if info.key.startswith("key-")] == [
        replace(scanned[f"key-{number:02}"], age=None) for number in range(25)
    ]


def test_a_scan_asks_for_a_page_when_it_is_wanted_and_never_for_all_permits(client: Client, store: Counting) -> None:
    scan = client.scan(10)
    next(scan)
    assert store.asked == [(List(Space.LOCK, page=10), 10)]
    list(scan)
    assert [count for command, count in store.asked if command.space is Space.LOCK] == [10, 10, 7]
    assert [command.key for command, _ in store.asked if command.space is not Space.LOCK] == ["shared", "pool"]


def test_an_awaiting_scan_shows_the_same(client: Client, store: Counting) -> None:
    async def scanned() -> set[str]:
        return {info.key async for info in AsyncClient(store).scan(page=4)}

    assert asyncio.run(scanned()) == KEYS


@pytest.mark.parametrize("page", [0, -1, 10_001])
def test_a_page_of_no_size_is_refused(client: Client, page: int) -> None:
    with pytest.raises(ValueError, match=f"page is a number of records from 1 to 10000, not {page}"):
        next(client.scan(page))


def test_a_page_is_a_number(client: Client) -> None:
    with pytest.raises(TypeError, match="page is a whole number of records, not str"):
        next(client.scan("9"))  # type: ignore[arg-type]  # the test


class Circling(MemoryStore):
    """Its listings go round in a circle, after a beginning of two pages."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def _list(self, command: List, now: float) -> Listing:
        page = int(command.cursor or 0) + 1
        return Listing((), str(page if page < 2 + self.length else 2))


@pytest.mark.parametrize("length", [1, 2, 3, 64])
def test_a_store_whose_cursors_go_round_ends_the_listing(length: int) -> None:
    client = Client(Circling(length))
    for reading in (lambda: list(client.scan()), client.list, client.history):
        with pytest.raises(StoreRefused, match="gave the same cursor twice"):
            reading()
    refused = client.prune(dry_run=True).refused
    assert refused
    assert all("gave the same cursor twice" in why for why in refused)


def test_a_closed_client_ends_the_scan(client: Client) -> None:
    scan = client.scan(10)
    next(scan)
    client.close()
    with pytest.raises(Exception, match="closed"):
        list(scan)


class Giants(Counting):
    """Its records are so large that only three fit into an answer."""

    def _list(self, command: List, now: float) -> Listing:
        listing = super()._list(command, now)
        if len(listing.entries) > 3:
            raise OutcomeUnknown("no clear answer") from AnswerTooLong("the answer is longer than any of this store")
        return listing


def test_records_too_large_for_one_answer_come_in_smaller_pages() -> None:
    store = Giants()
    client = Client(store)
    for number in range(10):
        assert client.lock(f"key-{number}").try_acquire()
    assert [info.key for info in client.list()] == [f"key-{number}" for number in range(10)]
    assert len(list(client.scan(20))) == 10
    for number in range(10):
        client.lock(f"key-{number}").break_lease(reason="test", now=True)
    assert [entry.key for entry in client.history()] == [f"key-{number}" for number in range(10)]
