"""The store on ZooKeeper: what its layout promises, how many requests it takes, and what becomes of lost ones."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

import lockstead
from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Conflict,
    Create,
    Extend,
    List,
    Listing,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores.zookeeper.answers import outcomes
from lockstead.stores.zookeeper.client import Handler, _PacketSocket
from lockstead.stores.zookeeper.encoding import decode_name, decode_record, encode_name, encode_record, in_order
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.stores.zookeeper.url import target_of
from lockstead.testing.conformance.base import OTHER_SLOT, SLOT, created, performing
from lockstead.testing.conformance.names import ODD_KEYS
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import TURN, Name, Space
from tests.servers.zookeeper import ZookeeperServer, asked, standing
from tests.stores.zookeeper.server import APT, LIMIT, opened, packets, server, space, store, taken, until

__all__ = ["server", "space", "store"]


# --- layout ---------------------------------------------------------------------------------------------------------


def test_rule_16_an_old_holders_late_write_misses_the_next_one(
    store: ZookeeperStore,
) -> None:
    old = taken(store, "old")
    assert isinstance(store.perform(Remove(APT, old.incarnation), LIMIT), Removed)
    new = taken(store, "new")
    assert new.revision == old.revision, "the versions are the same: only the mark tells the two apart"
    for late in (
        Remove(APT, old.incarnation),
        Remove(APT, old.incarnation, old.revision),
        Extend(APT, {"n": "1"}, old.incarnation),
        Extend(APT, {"n": "1"}, old.incarnation, old.revision),
        Replace(APT, {"n": "1"}, old.incarnation, old.revision),
    ):
        assert isinstance(store.perform(late, LIMIT), Conflict), late
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert (seen.incarnation, seen.revision, dict(seen.fields)) == (new.incarnation, new.revision, dict(new.fields))


def test_rule_16_an_overtaken_renewal_is_refused(store: ZookeeperStore) -> None:
    old = taken(store, "old")
    ends_at = time.monotonic() + LIMIT
    client = store._connection.ready(LIMIT)
    renewal = store._operations.script(Extend(APT, {"n": "1"}, old.incarnation))
    read = next(renewal)
    seen = outcomes(read.send(client), ends_at, writes=False)
    store.perform(Remove(APT, old.incarnation), LIMIT)
    new = taken(store, "new")
    assert new.revision == old.revision
    write = renewal.send(seen)
    again = renewal.send(outcomes(write.send(client), ends_at, writes=True))
    with pytest.raises(StopIteration) as ended:
        renewal.send(outcomes(again.send(client), ends_at, writes=False))
    assert isinstance(ended.value.value, Conflict)
    assert store.perform(Read(APT), LIMIT) == new


def test_a_release_leaves_nothing_behind(store: ZookeeperStore, server: ZookeeperServer, space: str) -> None:
    for turn in range(200):
        made = taken(store, f"holder-{turn}")
        store.perform(Remove(APT, made.incarnation), LIMIT)
    member = store.perform(Create(Name("apt", Space.MEMBER, "1/a"), {}), LIMIT)
    assert isinstance(member, Snapshot)
    store.perform(Remove(Name("apt", Space.MEMBER, "1/a"), member.incarnation), LIMIT)
    with asked(server.address) as client:
        assert standing(client, space.rpartition("/")[2].join(["/", ""])) == []


def test_a_released_permit_leaves_the_node_of_its_key_alone(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    for part in ("0", "0", "1", TURN):
        name = Name("apt", Space.PERMIT, part)
        made = store.perform(Create(name, {"v": "1"}, 60.0, "me/1"), LIMIT)
        assert isinstance(made, Snapshot)
        store.perform(Remove(name, made.incarnation), LIMIT)
    base = f"/{space.rpartition('/')[2]}"
    with asked(server.address) as client:
        assert standing(client, base) == ["permit/apt"]
        assert client.get_children(f"{base}/permit/apt") == []


def test_a_replaced_slot_is_notified_as_a_replaced_lock_is(store: ZookeeperStore) -> None:
    made = created(performing(store, LIMIT), OTHER_SLOT)
    with Changed(store, SLOT) as changes:
        changes.settle()
        store.perform(Replace(OTHER_SLOT, {"v": "1"}, made.incarnation, made.revision), LIMIT)
        assert changes.called(LIMIT)


def test_the_token_is_the_transaction_of_the_grant(store: ZookeeperStore, server: ZookeeperServer, space: str) -> None:
    made = taken(store)
    store.perform(Extend(APT, {"n": "1"}, made.incarnation), LIMIT)
    with asked(server.address) as client:
        data, stat = client.get(f"/{space.rpartition('/')[2]}/lock/apt")
        assert stat.czxid == made.token
        assert json.loads(data) == {
            "incarnation": made.incarnation,
            "fields": {"v": "1", "identity": "holder", "n": "1"},
        }
        assert client.get_children(f"/{space.rpartition('/')[2]}/lock/apt") == [made.incarnation]
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert seen.token == made.token


def test_h23_names_are_encoded_injectively_and_valid_in_paths() -> None:
    keys = [*ODD_KEYS, "\ud800", "a\x00b", "\x01", ""]
    for one in Space:
        parts = {Space.LOCK: [""], Space.PERMIT: ["0", "..", ",", "/"]}.get(one, ["", "1/a", "..", ",", "%2C"])
        names = [Name(key, one, part) for key in keys for part in parts]
        nodes = [encode_name(name) for name in names]
        assert len(set(nodes)) == len(names)
        assert [decode_name(one, node) for node in nodes] == names
        steps = [node.split("/") for node in nodes]
        assert {len(step) for step in steps} == {2 if one is Space.PERMIT else 1}
        assert all(node.isascii() and node.isprintable() for node in nodes)
        assert not {".", ".."} & {node for step in steps for node in step}


def test_a_node_of_another_program_is_nobodys_name() -> None:
    for node in ("a,b,c", "a b", "%zz", "é", "."):
        assert decode_name(Space.LOCK, node) is None, node
    assert decode_name(Space.MEMBER, "apt") is None


def test_queue_places_are_ordered_by_number_and_others_ignored() -> None:
    one, two, three = (f"{character * 32}-{number:010}" for character, number in (("f", 9), ("a", 10), ("0", 11)))
    assert in_order([three, "lock-0000000001", one, "x", two]) == [one, two, three]


NO_RECORDS = (
    *(b"", None, b"\xff", b"{}", b"[]", b"1", b"x" * 100, b"[" * 9999),
    b'{"incarnation": 1, "fields": {}}',
    b'{"incarnation": "../apt", "fields": {}}',
    b'{"incarnation": "' + b"a" * 32 + b'", "fields": {"a": 1}}',
)


@pytest.mark.parametrize("data", NO_RECORDS)
def test_h24_what_is_no_record_is_read_as_none(data: bytes | None) -> None:
    assert decode_record(data) is None
    assert decode_record(encode_record("a" * 32, {"n": "\ud800é"})) == ("a" * 32, {"n": "\ud800é"})


def test_h24_a_damaged_record_is_held_until_an_operator_removes_it(
    store: ZookeeperStore, server: ZookeeperServer, space: str
) -> None:
    made = taken(store)
    path = f"/{space.rpartition('/')[2]}/lock/apt"
    for damage in (b"something else", b""):
        with asked(server.address) as client:
            client.set(path, damage)
        for incarnation in (None, made.incarnation):
            with pytest.raises(StoreRefused, match=f"'apt' at {path}"):
                store.perform(Extend(APT, {}, incarnation), LIMIT)
        assert isinstance(store.perform(Create(APT, {}, 30.0, "next"), LIMIT), Conflict)
        with lockstead.Client(opened(space)) as client_of_ours, pytest.raises(StoreRefused, match="'apt'"):
            client_of_ours.lock("apt").try_acquire()
    shown = store.perform(Read(APT), LIMIT)
    listing = store.perform(List(Space.LOCK), LIMIT)
    assert isinstance(shown, Snapshot)
    assert isinstance(listing, Listing)
    assert [entry for _, entry in listing.entries] == [shown]
    assert isinstance(store.perform(Remove(APT, shown.incarnation + "0"), LIMIT), Conflict)
    assert isinstance(store.perform(Remove(APT, shown.incarnation), LIMIT), Removed)
    assert isinstance(store.perform(Remove(APT, shown.incarnation), LIMIT), Absent)
    again = taken(store)
    assert isinstance(store.perform(Remove(APT, shown.incarnation), LIMIT), Conflict)
    assert store.perform(Read(APT), LIMIT) == again


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_cycle_is_two_requests_and_a_renewal_is_three_packets(store: ZookeeperStore, server: ZookeeperServer) -> None:
    taken(store, "warm", Name("other"))
    turns = 100

    def counted(job: Any) -> int:
        before = packets(server)
        job()
        return packets(server) - before

    def cycles() -> None:
        for _ in range(turns):
            store.perform(Remove(APT, taken(store).incarnation), LIMIT)

    made = None
    pings = 20
    assert 2 * turns <= counted(cycles) <= 2 * turns + pings
    made = taken(store)
    renewals = [Extend(APT, {}, made.incarnation)] * turns
    assert 3 * turns <= counted(lambda: [store.perform(one, LIMIT) for one in renewals]) <= 3 * turns + pings


def test_a_batch_syncs_once_not_for_each_read(store: ZookeeperStore, server: ZookeeperServer) -> None:
    count, pings = 100, 20
    names = [Name(f"key-{number}") for number in range(count)]
    made = [taken(store, "holder", name) for name in names]
    before = packets(server)
    answers = store.perform_many(
        [Extend(name, {"said": "it"}, one.incarnation) for name, one in zip(names, made, strict=True)], LIMIT
    )
    spent = packets(server) - before
    assert [answer.fields["said"] for answer in answers] == ["it"] * count
    assert 2 * count + 1 <= spent <= 2 * count + 1 + pings


def test_h25_h28_a_request_without_an_answer_is_sent_only_once(store: ZookeeperStore, server: ZookeeperServer) -> None:
    taken(store, "warm", Name("other"))
    before = packets(server)
    server.pause()
    try:
        began_at = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            store.perform(Create(APT, {"identity": "late"}, 30.0, "late", 33.0), 0.3)
        assert time.monotonic() - began_at < 10.0
        with pytest.raises(StoreUnavailable):
            store.perform(Read(APT), 0.1)
    finally:
        server.resume()
    until(lambda: isinstance(store.perform(Read(APT), LIMIT), Snapshot))
    looked = packets(server) - before
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert (seen.fields["identity"], seen.revision) == ("late", "1")
    # the create, and a sync with every look; a repeated create would have been refused, and is not asked for either
    assert looked <= 20


def test_h28_requests_without_a_server_are_never_sent_later(server: ZookeeperServer, space: str) -> None:
    store = opened(space)
    try:
        taken(store, "warm", Name("other"))
        server.kill()
        until(lambda: _is_unavailable(store))
        for turn in range(5):
            with pytest.raises(StoreUnavailable):
                store.perform(Create(Name(f"key-{turn}"), {}), 0.05)
        with pytest.raises(StoreUnavailable):
            store.perform(Read(APT), 0.05)
        server.start()
        until(lambda: not _is_unavailable(store))
        listing = store.perform(List(Space.LOCK), LIMIT)
        assert isinstance(listing, Listing)
        assert [name.key for name, _ in listing.entries] == ["other"], "records outlive a killed server, and none came"
    finally:
        store.close()


def _is_unavailable(store: ZookeeperStore) -> bool:
    try:
        store.perform(Read(APT), 1.0)
    except StoreUnavailable:
        return True
    return False


def test_a_batch_of_a_store_without_a_server_says_so_for_each_command(server: ZookeeperServer, space: str) -> None:
    store = opened(space.replace(str(server.port), "1"))
    answers = store.perform_many([Read(APT), Create(APT, {})], 0.3)
    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
    store.close()


# --- a whole lock ---------------------------------------------------------------------------------------------------


def test_a_lease_survives_a_lost_session_and_a_killed_server(server: ZookeeperServer, space: str) -> None:
    store = opened(f"{space}?session=2")
    with lockstead.Client(store) as client, client.lock("apt", ttl=60).hold(timeout=30) as lease:
        expire(store, server)
        assert isinstance(store.perform(Read(APT), LIMIT), Snapshot)
        server.kill()
        server.start()
        until(lambda: not _is_unavailable(store))
        seen = store.perform(Read(APT), LIMIT)
        assert isinstance(seen, Snapshot)
        assert seen.token == lease.sequencer().token
        lease.check()
    assert isinstance(opened_once(space, Read(APT)), Absent)


def expire(store: ZookeeperStore, server: ZookeeperServer) -> None:
    """End the session of a store as its expiry does: another client with the same number and password closes it."""
    from kazoo.client import KazooClient

    inner = store._connection.ready(LIMIT)
    session = inner.client_id
    thief = KazooClient(hosts=server.address, client_id=session)
    thief.start(timeout=LIMIT)
    thief.stop()
    thief.close()
    until(lambda: inner.client_id is not None and inner.client_id[0] not in {None, session[0]} and inner.connected)


def opened_once(url: str, command: Any) -> Any:
    store = opened(url)
    try:
        return store.perform(command, LIMIT)
    finally:
        store.close()


# --- credentials ----------------------------------------------------------------------------------------------------


def test_h22_no_credential_is_logged_at_any_level(
    server: ZookeeperServer, space: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.NOTSET):
        logging.getLogger("lockstead.zookeeper").setLevel(1)
        try:
            store = opened(space.replace("zk://", "zk://me:hush%40hush@"))
            made = taken(store)
            assert store.url == space
            assert "hush" not in repr(store)
            store.perform(Remove(APT, made.incarnation), LIMIT)
            store.close()
        finally:
            logging.getLogger("lockstead.zookeeper").setLevel(logging.NOTSET)
    assert caplog.records, "the connection itself is logged"
    assert "hush" not in caplog.text


# --- the connection -------------------------------------------------------------------------------------------------


def test_packets_that_came_together_are_read_one_by_one_without_waiting() -> None:
    here, there = socket.socketpair()
    with here, there:
        connection, handler = _PacketSocket(here), Handler(target_of("zk://127.0.0.1/locks"))
        there.sendall(b"1234abcd")
        assert handler.select([connection], [], [], LIMIT)[0] == [connection]
        assert connection.recv(4) == b"1234"
        # the rest is no longer in the socket, so waiting for it would not end
        assert handler.select([connection], [], [], LIMIT)[0] == [connection]
        assert connection.recv(64) == b"abcd"
        assert not connection.pending()
        assert handler.select([connection], [], [], 0.0)[0] == []
        assert handler.select([], [connection], [], LIMIT)[1] == [connection]


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_h34_a_session_whose_start_failed_is_started_again(
    store: ZookeeperStore, monkeypatch: pytest.MonkeyPatch, failing: int, error: type[BaseException]
) -> None:
    before, started = set(threading.enumerate()), 0
    start = threading.Thread.start

    def fails_once(thread: threading.Thread) -> None:
        nonlocal started
        if thread.name == "lockstead-zookeeper":
            started += 1
            if started == failing + 1:
                raise error("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    with pytest.raises(StoreUnavailable if error is RuntimeError else error):
        store.perform(Read(APT), LIMIT)
    assert isinstance(store.perform(Read(APT), LIMIT), Absent)
    store.close()
    until(lambda: set(threading.enumerate()) <= before)


def test_listings_that_take_turns_read_the_names_again_and_show_all(store: ZookeeperStore) -> None:
    names = {Name(f"key-{number:02}") for number in range(20)}
    for name in names:
        store.perform(Create(name, {}), LIMIT)
    one, other = List(Space.LOCK, page=3), List(Space.LOCK, page=7)
    shown: dict[int | None, set[Name]] = {3: set(), 7: set()}
    listings = [one, other, one]
    while listings:
        command = listings.pop(0)
        listing = store.perform(command, LIMIT)
        shown[command.page] |= dict(listing.entries).keys()
        if listing.next_cursor is not None:
            listings.append(replace(command, cursor=listing.next_cursor))
    assert shown == {3: names, 7: names}
