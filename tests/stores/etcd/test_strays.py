"""Foreign keys beside records and places of etcd block no waiter forever."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial

import pytest

import lockstead
from lockstead.cli.main import call
from lockstead.errors import StoreRefused
from lockstead.protocol.commands import Conflict, Create, Extend, List, Read, Remove, Removed, Snapshot
from lockstead.stores.etcd.batch import RANGED_MIN
from lockstead.stores.etcd.encoding import b64, end_of
from lockstead.stores.port import Store
from lockstead.testing.conformance.base import is_a, shows
from lockstead.testing.conformance.pages import paged
from lockstead.values import Name, Space
from tests.cli.valid import parsed
from tests.servers.etcd import EtcdPlace, ask, keys_below
from tests.stores.etcd.test_queue import APT, LIMIT, Waiter, taking, until


def put(etcd: EtcdPlace, key: str, value: str = "", lease: str = "0") -> None:
    ask(etcd.server.port, "kv/put", {"key": b64(key), "value": b64(value), "lease": lease})


@pytest.mark.parametrize("strays", [1, 150])
def test_a_stray_key_in_a_queue_blocks_nobody(etcd: EtcdPlace, store: Store, space: str, strays: int) -> None:
    for number in range(strays):
        put(etcd, f"{space}/queue/apt/evil{number}")
    first = shows(store.perform(taking("anna/1"), LIMIT))
    assert keys_below(etcd.server.port, f"{space}/queue/apt/") == {}
    # one that was there before somebody came to wait
    put(etcd, f"{space}/queue/apt/evil")
    waiter = Waiter(store, "ben/1")
    until(lambda: "ben%2F1" in str(keys_below(etcd.server.port, f"{space}/queue/apt/")), "nobody queues")
    is_a(Removed, store.perform(Remove(APT, first.incarnation), LIMIT))
    assert waiter.has_turn.wait(20.0)
    shows(store.perform(taking("ben/1"), LIMIT))


def test_who_waits_and_what_is_stray_is_shown_by_inspect_and_the_api(
    etcd: EtcdPlace, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{etcd.url(space)}#apt"
    put(etcd, f"{space}/queue/apt/evil%1b[2J", "x" * 500_000)
    lease = ask(etcd.server.port, "lease/grant", {"TTL": "600"})["ID"]
    put(etcd, f"{space}/queue/apt/theirs%2F1", "1e999", lease)
    with lockstead.connect(etcd.url(space)) as client:
        stray, theirs = client.lock("apt").contenders()
        assert (stray.is_stray, theirs.is_stray, theirs.owner, theirs.since) == (True, False, "theirs", None)
        assert stray.holder.startswith("evil")
        assert stray.holder.isprintable()
        assert asyncio.run(lockstead.AsyncLock(url).contenders()) == [stray, theirs]
    assert call(["inspect", url]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  stray +evil.*blocks no waiter$", said, re.MULTILINE), said
    assert re.search(r"^  waiting +theirs/1$", said, re.MULTILINE), said
    assert call(["inspect", "--json", url]) == 0
    waiting = parsed("inspect", capsys.readouterr().out[:-1])["waiting"]
    assert waiting[1] == {"owner": "theirs", "holder": "theirs/1", "since": None, "waited": None, "stray": False}
    assert waiting[0]["stray"]
    ask(etcd.server.port, "lease/revoke", {"ID": lease})


def test_a_place_on_a_lease_is_somebodys_and_is_respected(etcd: EtcdPlace, store: Store, space: str) -> None:
    lease = ask(etcd.server.port, "lease/grant", {"TTL": "600"})["ID"]
    put(etcd, f"{space}/queue/apt/theirs", lease=lease)
    assert store.perform(taking("anna/1"), LIMIT) == Conflict(is_queued=True)
    assert f"{space}/queue/apt/theirs" in keys_below(etcd.server.port, f"{space}/queue/apt/")
    ask(etcd.server.port, "lease/revoke", {"ID": lease})
    shows(store.perform(taking("anna/1"), LIMIT))


RECORD = {"v": "1", "identity": "evil/1", "owner": "evil", "ttl": "1"}
VALUES = {
    "a life beyond any lease": json.dumps({"fields": RECORD, "min_retention": 1e10, "lease": "alone"}),
    "a negative life": json.dumps({"fields": RECORD, "min_retention": -1, "lease": "alone"}),
    "a life that is not a number": '{"fields":{},"min_retention":' + "9" * 5000 + "}",
    "a deep one": '{"fields":' + "[" * 200_000,
    "a giant": json.dumps({"fields": {**RECORD, "x": "y" * 1_000_000}}),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("slot", ["a", "b", "z"])
def test_h24_a_record_that_would_never_expire_can_be_removed(
    etcd: EtcdPlace, store: Store, space: str, value: str, slot: str
) -> None:
    put(etcd, f"{space}/lock/apt:{slot}", VALUES[value])
    is_a(Conflict, store.perform(Create(APT, {"v": "1"}), LIMIT))
    seen = shows(store.perform(Read(APT), LIMIT))
    assert "damage" in seen.fields
    assert [name for name, _ in store.perform(List(Space.LOCK), LIMIT).entries] == [APT]
    with pytest.raises(StoreRefused, match="break it with now=True"):
        store.perform(Extend(APT, {"a": "1"}, seen.incarnation), LIMIT)
    is_a(Removed, store.perform(Remove(APT, seen.incarnation), LIMIT))
    shows(store.perform(taking("anna/1"), LIMIT))


def test_h24_a_record_without_a_lease_is_damaged_until_renewed(etcd: EtcdPlace, store: Store, space: str) -> None:
    put(etcd, f"{space}/lock/apt:a", json.dumps({"fields": RECORD, "min_retention": 3, "lease": "shared"}))
    seen = shows(store.perform(Read(APT), LIMIT))
    assert "no lease" in seen.fields["damage"]
    assert [seen.fields for _, seen in store.perform(List(Space.LOCK), LIMIT).entries] == [seen.fields]
    with lockstead.connect(etcd.url(space)) as client, pytest.raises(StoreRefused, match=r"no lease.*break it"):
        client.lock("apt").acquire(5)
    assert shows(store.perform(Extend(APT, {"a": "1"}, seen.incarnation), LIMIT)).fields == {**RECORD, "a": "1"}
    assert shows(store.perform(Read(APT), LIMIT)).fields == {**RECORD, "a": "1"}
    is_a(Removed, store.perform(Remove(APT, seen.incarnation), LIMIT))


def test_a_key_beside_a_record_of_ours_does_not_hide_it(etcd: EtcdPlace, store: Store, space: str) -> None:
    first = shows(store.perform(taking("anna/1"), LIMIT))
    put(etcd, f"{space}/lock/apt:A", "x")
    put(etcd, f"{space}/lock/apt:z", "x")
    assert shows(store.perform(Read(APT), LIMIT)).incarnation == first.incarnation
    (entry,) = store.perform(List(Space.LOCK), LIMIT).entries
    assert entry[1].incarnation == first.incarnation
    shows(store.perform(Create(Name("app"), {"v": "1"}, 60.0, "", 66.0), LIMIT))
    for page in (2, 3, 4):
        pages = paged(partial(store.perform, limit=LIMIT), List(Space.LOCK, page=page))
        shown = [entry for listing in pages for entry in listing.entries]
        assert [name.key for name, _ in shown] == ["app", "apt"], "a page ends between the keys of one name"
        assert shown[1][1].incarnation == first.incarnation
    renewed = store.perform(Extend(APT, {}, first.incarnation, lifetime=60.0), LIMIT)
    assert is_a(Snapshot, renewed).fields == first.fields


def test_h24_giants_beside_one_record_cost_nobody_else_anything(etcd: EtcdPlace, store: Store, space: str) -> None:
    names = [Name("apt"), *(Name(f"key-{number}") for number in range(RANGED_MIN + 1))]
    taken = {name: shows(store.perform(Create(name, {"v": "1"}, 60.0, "", 66.0), LIMIT)) for name in names}
    for number in range(26):
        put(etcd, f"{space}/lock/apt:zz{number}", "x" * 1_000_000)  # in base64 more than an answer may have
    try:
        for some in (names[:3], names):
            renewals = [Extend(name, {}, taken[name].incarnation, lifetime=60.0) for name in some]
            assert [type(answer) for answer in store.perform_many(renewals, LIMIT)] == [Snapshot] * len(some)
            reads = store.perform_many([Read(name) for name in some], LIMIT)
            assert [answer.incarnation for answer in reads] == [taken[name].incarnation for name in some]
        assert {name for name, _ in store.perform(List(Space.LOCK), LIMIT).entries} == set(names)
        client = lockstead.Client(store)
        assert {info.key for info in client.list()} == {name.key for name in names}
        is_a(Snapshot, store.perform(Extend(APT, {"a": "1"}, taken[APT].incarnation, lifetime=60.0), LIMIT))
        assert isinstance(store.perform(taking("anna/1"), LIMIT), Conflict)
        is_a(Removed, store.perform(Remove(APT, taken[APT].incarnation), LIMIT))
        assert keys_below(etcd.server.port, f"{space}/lock/apt:") == {}
        shows(store.perform(taking("anna/1"), LIMIT))
    finally:
        base = f"{space}/lock/apt:"
        ask(etcd.server.port, "kv/deleterange", {"key": b64(base), "range_end": b64(end_of(base))})


def test_h24_a_huge_foreign_key_is_shown_and_can_be_broken(etcd: EtcdPlace, store: Store, space: str) -> None:
    for number in range(6):
        put(etcd, f"{space}/lock/apt:zz{number}", "x" * 1_000_000)
    seen = shows(store.perform(Read(APT), LIMIT))
    assert "damage" in seen.fields
    is_a(Conflict, store.perform(Create(APT, {"v": "1"}), LIMIT))
    is_a(Removed, store.perform(Remove(APT, seen.incarnation, seen.revision), LIMIT))
    shows(store.perform(taking("anna/1"), LIMIT))


def test_pruning_removes_strays_of_all_queues_and_no_place(etcd: EtcdPlace, space: str) -> None:
    lease = ask(etcd.server.port, "lease/grant", {"TTL": "600"})["ID"]
    put(etcd, f"{space}/queue/apt/theirs%2F1", "", lease)
    for number in range(230):
        put(etcd, f"{space}/queue/key{number % 7}/evil{number}")
    with lockstead.connect(etcd.url(space)) as client:
        dry = client.prune(dry_run=True)
        assert (dry.removed["queues"], dry.names[0]) == (230, ("queues", "key0/evil0"))
        assert client.prune(at_most=100).removed["queues"] == 100
        assert asyncio.run(pruned_by_asyncio(etcd.url(space))) == 130
        assert client.prune().removed["queues"] == 0
    assert list(keys_below(etcd.server.port, f"{space}/queue/")) == [f"{space}/queue/apt/theirs%2F1"]


async def pruned_by_asyncio(url: str) -> int:
    async with await lockstead.connect_async(url) as client:
        return (await client.prune()).removed["queues"]
