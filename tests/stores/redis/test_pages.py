"""Listings in pages on Redis: a scan means nothing to another run of a server, nor after slots have moved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Create, List
from lockstead.stores.redis.listing import SCANS_MAX
from lockstead.stores.redis.route import slot_of
from lockstead.testing.conformance.pages import paged, require_shown
from lockstead.values import Name, Space
from tests.servers.redis import ClusterPlace, ClusterServer, RedisPlace
from tests.stores.redis.usage import LIMIT

NAMES = {Name(f"key-{number}") for number in range(60)}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RedisPlace]:
    place = RedisPlace(tmp_path)
    yield place
    place.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterPlace]:
    cluster = ClusterPlace(tmp_path)
    yield cluster
    cluster.stop()


def filled(store: Any) -> Any:
    for name in NAMES:
        store.perform(Create(name, {}), LIMIT)
    return lambda command: store.perform(command, LIMIT)


@pytest.mark.parametrize("at", [-4, -2, -1], ids=["another server", "another run", "other slots"])
def test_the_cursor_of_another_server_or_run_is_refused(place: RedisPlace, at: int) -> None:
    store = place.open("space")
    perform = filled(store)
    cursor = json.loads(perform(List(Space.LOCK, page=5)).next_cursor)
    assert perform(List(Space.LOCK, page=5, cursor=json.dumps(cursor))).entries
    cursor[at] = {-4: "127.0.0.1:1", -2: "0" * 40, -1: "12ab"}[at]
    with pytest.raises(StoreRefused, match="begin the listing again"):
        perform(List(Space.LOCK, page=5, cursor=json.dumps(cursor)))
    store.close()


def test_few_records_among_many_keys_of_others_are_found_in_pages_that_end(place: RedisPlace) -> None:
    store = place.open("space")
    perform = filled(store)
    with place.server.client() as admin:
        admin.mset({f"other-{number}": "" for number in range(5000)})
    pages = list(paged(perform, List(Space.LOCK, page=1)))
    require_shown(pages, NAMES)
    assert any(not page.entries for page in pages), "a page went on until it found something"
    assert len(pages) > 5000 / (2 * SCANS_MAX)
    store.close()


@pytest.mark.slow
def test_a_listing_during_which_slots_move_is_refused(cluster: ClusterPlace) -> None:
    store = cluster.open("pages")
    perform = filled(store)
    require_shown(list(paged(perform, List(Space.LOCK, page=7))), NAMES)
    for pages in (1, 2):
        cursor = None
        for _ in range(pages):
            cursor = perform(List(Space.LOCK, page=10, cursor=cursor)).next_cursor
        assert cursor is not None
        free = next(
            slot for slot in range(16384) if slot not in {slot_of(b"pages:{%s}:" % n.key.encode()) for n in NAMES}
        )
        owner = next(n for n, node in enumerate(cluster.nodes) if b"MOVED" not in node.says("EXISTS", _key_in(free)))
        _move(free, cluster.nodes[owner], cluster.nodes[(owner + 1) % 3], cluster.nodes[(owner + 2) % 3])
        with pytest.raises(StoreRefused, match="begin the listing again"):
            while cursor is not None:
                cursor = perform(List(Space.LOCK, page=10, cursor=cursor)).next_cursor
    require_shown(list(paged(perform, List(Space.LOCK, page=7))), NAMES)
    store.close()


def _move(slot: int, source: ClusterServer, target: ClusterServer, other: ClusterServer) -> None:
    """Move an empty slot as a resharding does: the target imports it, so that its claim is the newest."""
    ids = [node.says("CLUSTER", "MYID").split(b"\r\n")[1].decode() for node in (source, target)]
    steps = [(target, "IMPORTING", ids[0]), (source, "MIGRATING", ids[1])]
    for node, *words in [*steps, *((node, "NODE", ids[1]) for node in (target, source, other))]:
        assert node.says("CLUSTER", "SETSLOT", str(slot), *words) == b"+OK\r\n"
    # until it has heard of the new claim, a node may believe an old one again
    target.until(lambda: _claims(source) == _claims(target) == _claims(other), "the nodes do not agree on the slots")


def _claims(node: ClusterServer) -> set[tuple[bytes, ...]]:
    """Return the id, epoch and slots of every node, as a node knows them."""
    lines = node.says("CLUSTER", "NODES").splitlines()[1:]
    words = [line.split() for line in lines if line]
    return {(one[0], one[6], *(slots for slots in one[8:] if not slots.startswith(b"["))) for one in words}


def _key_in(slot: int) -> str:
    return next(f"x{number}" for number in range(1_000_000) if slot_of(f"x{number}".encode()) == slot)
