"""What the store on Redis promises beyond the contract of a store: keys that go, requests counted, who is woken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

import lockstead
from lockstead.errors import StoreRefused
from lockstead.events import Renewed
from lockstead.protocol.commands import (
    Absent,
    Conflict,
    Create,
    Extend,
    List,
    Read,
    Remove,
    Removed,
    Replace,
    Snapshot,
)
from lockstead.stores import url
from lockstead.stores.redis.driver import IDLE_CHECKED
from lockstead.stores.redis.encoding import Keys
from lockstead.stores.redis.route import slot_of
from lockstead.stores.redis.store import RedisStore
from lockstead.testing.conformance.base import APT_TURN, SLOT, created, performing, shows
from lockstead.testing.conformance.names import ODD_KEYS
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import KEY_BYTES_MAX, TURN, Name, Space
from tests.servers.redis import RedisPlace
from tests.stores.redis.usage import APT, LIMIT, made, until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisPlace]:
    place = RedisPlace(tmp_path_factory.mktemp("redis"))
    yield place
    place.stop()


@pytest.fixture
def admin(place: RedisPlace) -> Iterator[Any]:
    with place.server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def space() -> str:
    return f"s{uuid4().hex[:10]}"


@pytest.fixture
def store(place: RedisPlace, admin: Any, space: str) -> Iterator[RedisStore]:
    store = place.open(space)
    assert isinstance(store, RedisStore)
    yield store
    store.close()


@pytest.fixture
def twin(store: RedisStore) -> Iterator[RedisStore]:
    twin = url.open_store(store.url)
    assert isinstance(twin, RedisStore)
    yield twin
    twin.close()


# --- keys --------------------------------------------------------------------------------------------------------


def test_no_key_is_ever_without_a_time_to_live(store: RedisStore, admin: Any, space: str) -> None:
    def all_go() -> None:
        keys = list(admin.scan_iter())
        assert {key: admin.pttl(key) for key in keys if admin.pttl(key) <= 0} == {}

    names = [APT, Name("apt", Space.COMPANION), Name("apt", Space.MEMBER, "1/a"), Name("apt", Space.AUDIT, "1-a")]
    for name in [*names, SLOT, APT_TURN]:
        for min_retention in (0.0, 31.0):
            first = store.perform(Create(name, {"a": "1"}, 30.0, "me", min_retention), LIMIT)
            assert isinstance(first, Snapshot)
            all_go()
            second = store.perform(Extend(name, {"b": "2"}, first.incarnation), LIMIT)
            assert isinstance(second, Snapshot)
            all_go()
            third = store.perform(
                Replace(name, {}, first.incarnation, second.revision, 30.0, "me", min_retention), LIMIT
            )
            assert isinstance(third, Snapshot)
            all_go()
            if name.space.is_lock:
                with Changed(store, name):
                    until(partial(admin.exists, store._keys.waiters(name)))
            all_go()
            assert isinstance(store.perform(Remove(name, third.incarnation), LIMIT), Removed)
            all_go()


def test_a_permit_is_in_the_index_of_its_key_for_as_long_as_it_is_kept(
    store: RedisStore, admin: Any, space: str
) -> None:
    def kept_until(name: Name) -> float:
        return float(admin.zscore(f"{space}:{{apt}}:index-permit", name.part) or 0)

    for name in (SLOT, APT_TURN):
        first = shows(store.perform(Create(name, {}, 30.0, "", 31.0), LIMIT))
        created_until = kept_until(name)
        assert created_until > time.time() * 1000
        ends_at = time.monotonic() + LIMIT
        while kept_until(name) == created_until:
            assert time.monotonic() < ends_at, "a renewal keeps the record for longer, and not its place in the index"
            store.perform(Extend(name, {}, None), LIMIT)
        seen = shows(store.perform(Read(name), LIMIT))
        second = shows(store.perform(Replace(name, {}, first.incarnation, seen.revision, 30.0, "", 3100.0), LIMIT))
        assert kept_until(name) > created_until + 3_000_000
        assert {one for one, _ in store.perform(List(Space.PERMIT, "apt"), LIMIT).entries} == {name}
        assert isinstance(store.perform(Remove(name, second.incarnation), LIMIT), Removed)
        assert kept_until(name) == 0


def test_a_record_is_kept_for_its_ttl_and_a_while_longer(store: RedisStore, admin: Any, space: str) -> None:
    made(store)
    assert admin.pttl(f"{space}:{{apt}}:lock") > 7 * 86_400_000 + 30_000
    renewed = store.perform(Extend(APT, {}, None), LIMIT)
    assert isinstance(renewed, Snapshot)
    assert admin.pttl(f"{space}:{{apt}}:lock") > 7 * 86_400_000 + 30_000


def test_all_keys_of_one_lock_are_in_one_slot_whatever_it_is_called() -> None:
    for prefix in ("lockstead", "a{b}c", "%7B"):
        keys = Keys(prefix)
        for key in (*ODD_KEYS, "}", "{}", "}{", "a}b{c"):
            name = Name(key)
            member = Name(key, Space.MEMBER, "1/}x{")
            index = keys.index(member)
            assert index is not None
            slot, turn = Name(key, Space.PERMIT, "2"), Name(key, Space.PERMIT, TURN)
            ours = [keys.record(name), keys.token(name), keys.waiters(name), keys.record(member), index]
            ours += [of(one) for one in (slot, turn) for of in (keys.record, keys.token, keys.waiters)]
            assert len({slot_of(one) for one in ours}) == 1
            assert len(set(ours)) == len(ours)
            for one in (name, member, slot, turn):
                assert keys.name(keys.record(one)) == one


def test_a_prefix_is_text_and_no_pattern(place: RedisPlace, admin: Any) -> None:
    stores = [
        url.open_store(f"redis://127.0.0.1:{place.ports[0]}?prefix={prefix}") for prefix in ("a*", "ab", "[a]", "a")
    ]
    for number, store in enumerate(stores):
        assert isinstance(store.perform(Create(Name(f"key-{number}"), {}), LIMIT), Snapshot)
    for number, store in enumerate(stores):
        assert [name.key for name, _ in store.perform(List(Space.LOCK), LIMIT).entries] == [f"key-{number}"]
        store.close()


def test_databases_are_apart(place: RedisPlace, store: RedisStore, space: str) -> None:
    made(store)
    with_other = url.open_store(f"redis://127.0.0.1:{place.ports[0]}/1?prefix={space}")
    assert isinstance(with_other.perform(Read(APT), LIMIT), Absent)
    with_other.close()


@pytest.mark.parametrize("value", [b"", b"text", b"1 2 3", b"ab 1 1 1 1\n[]", b'ab 1 1 1 1\n{"a":1}', b"ab 1 1 1 1\n{"])
def test_h24_what_is_not_ours_is_refused_and_never_free(
    store: RedisStore, admin: Any, space: str, value: bytes
) -> None:
    admin.set(f"{space}:{{apt}}:lock", value)
    assert isinstance(store.perform(Create(APT, {}), LIMIT), Conflict)
    with pytest.raises(StoreRefused, match=r"apt.*break it with now=True"):
        store.perform(Extend(APT, {"a": "1"}, None), LIMIT)
    assert admin.get(f"{space}:{{apt}}:lock") == value
    assert_shown_and_removed(store, admin)


HEADS = [b"9" * 65, b"ab " + b"9" * 16, b"ab 1 " + b"9" * 17, b"ab 1 1 " + b"9" * 25, b"ab 1 1 1 " + b"9" * 17]


@pytest.mark.parametrize("head", HEADS, ids=range(len(HEADS)))
def test_h24_a_head_with_numbers_beyond_those_of_redis_is_damaged(
    store: RedisStore, admin: Any, space: str, head: bytes
) -> None:
    filled = b" ".join([*head.split(b" "), b"1", b"1", b"1", b"1"][:5])
    admin.set(f"{space}:{{apt}}:lock", filled + b'\n{"v":"1","identity":"x/1","ttl":"300"}')
    assert_shown_and_removed(store, admin)


def test_h24_a_giant_record_is_not_sent(store: RedisStore, admin: Any, space: str) -> None:
    admin.set(f"{space}:{{apt}}:lock", b"ab 1 1 1 1\n" + b"x" * 5_000_000)
    before = admin.info("stats")["total_net_output_bytes"]
    seen = assert_shown_and_removed(store, admin)
    assert "larger than" in seen.fields["damage"]
    assert admin.info("stats")["total_net_output_bytes"] - before < 100_000


def test_h24_records_too_large_together_hide_none_from_a_listing(store: RedisStore, admin: Any, space: str) -> None:
    made(store, Name("ours"))
    fields = b'{"v":"1","identity":"x/1","ttl":"300","purpose":"%s"}'
    sizes = {**dict.fromkeys(range(520), 65_000), **dict.fromkeys(range(520, 10_520), 1_000)}
    for first in range(0, len(sizes), 1000):
        with admin.pipeline(transaction=False) as pipe:
            for number in range(first, min(first + 1000, len(sizes))):
                pipe.set(f"{space}:{{k{number}}}:lock", b"ab 1 1 1 1\n" + fields % (b"x" * (sizes[number] - 80)))
            pipe.execute()
    for number in range(10):
        admin.set(f"{space}:{{{'k' * 4_000_000}{number}}}:lock", b"ab 1 1 1 1\n" + fields % b"x")
    shown = dict(store.perform(List(Space.LOCK), LIMIT).entries)
    assert len(shown) == 1 + len(sizes)
    assert shown[Name("ours")].fields.get("damage") is None
    unread = [name for name, seen in shown.items() if "was not read" in seen.fields.get("damage", "")]
    assert 0 < len(unread) < 520
    assert all(sizes[int(name.key[1:])] == 65_000 for name in unread)
    assert isinstance(store.perform(Remove(unread[0], shown[unread[0]].incarnation), LIMIT), Removed)


def test_h24_overlong_names_hide_no_record_from_a_listing(store: RedisStore, admin: Any, space: str) -> None:
    odd = Name("%{}" * (KEY_BYTES_MAX // 3))
    made(store, Name("ours"))
    made(store, odd)
    with admin.pipeline(transaction=False) as pipe:
        for number in range(6000):
            pipe.set(f"{space}:{{{'k' * 6000}{number}}}:lock", b"")
            pipe.set(f"{space}:{{k{number}}}:lock-{'k' * 6000}", b"")
        pipe.execute()
    before = admin.info("stats")["total_net_output_bytes"]
    assert {name for name, _ in store.perform(List(Space.LOCK), LIMIT).entries} == {Name("ours"), odd}
    assert admin.info("stats")["total_net_output_bytes"] - before < 100_000


def assert_shown_and_removed(store: RedisStore, admin: Any) -> Snapshot:
    """See that a listing shows it beside others, and that only what was shown is removed."""
    made(store, Name("other"))
    seen = store.perform(Read(APT), LIMIT)
    assert isinstance(seen, Snapshot)
    assert "damage" in seen.fields
    assert {name.key for name, _ in store.perform(List(Space.LOCK), LIMIT).entries} == {"apt", "other"}
    assert isinstance(store.perform(Remove(APT, "damaged-0"), LIMIT), Conflict)
    assert isinstance(store.perform(Remove(APT, seen.incarnation), LIMIT), Removed)
    assert isinstance(store.perform(Read(APT), LIMIT), Absent)
    return seen


@pytest.mark.parametrize("kind", ["hash", "list"])
def test_h24_another_kind_of_key_is_shown_as_damaged(store: RedisStore, admin: Any, space: str, kind: str) -> None:
    key = f"{space}:{{apt}}:lock"
    admin.hset(key, "a", "1") if kind == "hash" else admin.rpush(key, "a")
    assert_shown_and_removed(store, admin)


def test_a_queue_full_of_foreign_entries_costs_a_release_little(store: RedisStore, admin: Any, space: str) -> None:
    first = made(store)
    waiters = f"{space}:{{apt}}:waiters"
    admin.zadd(waiters, {f"{space}:wake:dead{number}": number + 1 for number in range(3000)})
    admin.zadd(waiters, {"another:channel": 0})
    with admin.pubsub() as heard:
        heard.subscribe("another:channel")
        assert heard.get_message(timeout=5)["type"] == "subscribe"
        store.perform(Remove(APT, first.incarnation), LIMIT)
        assert heard.get_message(timeout=0.2) is None
    assert admin.zcard(waiters) == 2001


def test_waiters_that_are_no_list_fail_no_release(store: RedisStore, admin: Any, space: str) -> None:
    first = made(store)
    admin.set(f"{space}:{{apt}}:waiters", "x")
    assert isinstance(store.perform(Remove(APT, first.incarnation), LIMIT), Removed)


@pytest.mark.parametrize("counter", [str(2**53), str(2**53 - 1), "9" * 30, "1e308", "inf"])
def test_an_exhausted_token_counter_is_refused(store: RedisStore, admin: Any, space: str, counter: str) -> None:
    admin.set(f"{space}:{{apt}}:token", counter)
    with pytest.raises(StoreRefused, match=r"tokens of 'apt' in Redis is beyond 2\^53") as refused:
        store.perform(Create(APT, {}), LIMIT)
    assert "\n" not in str(refused.value)
    assert isinstance(store.perform(Read(APT), LIMIT), Absent)
    admin.set(f"{space}:{{apt}}:token", str(2**53 - 3))
    tokens = []
    for _ in range(2):
        granted = made(store)
        tokens.append(granted.token)
        store.perform(Remove(APT, granted.incarnation), LIMIT)
    assert tokens == [2**53 - 2, 2**53 - 1]
    with pytest.raises(StoreRefused):
        store.perform(Create(APT, {}), LIMIT)


# --- time and tokens ---------------------------------------------------------------------------------------------


def test_tokens_grow_where_the_counter_is_ahead_of_the_clock(store: RedisStore, admin: Any, space: str) -> None:
    ahead = int(time.time() * 1e6) + 3_600_000_000
    admin.set(f"{space}:{{apt}}:token", ahead)
    first = made(store)
    assert first.token == ahead + 1
    store.perform(Remove(APT, first.incarnation), LIMIT)
    assert made(store).token == ahead + 2


def test_h21_tokens_grow_by_the_clock_where_the_counter_is_forgotten(store: RedisStore, admin: Any) -> None:
    first = made(store)
    admin.flushall()
    second = made(store)
    assert first.token is not None
    assert second.token is not None
    assert second.token > first.token
    assert second.incarnation != first.incarnation


def test_h31_a_clock_set_back_writes_no_earlier_stamp(store: RedisStore, admin: Any, space: str) -> None:
    first = made(store)
    key = f"{space}:{{apt}}:lock"
    head, fields = admin.get(key).split(b"\n", 1)
    inc, rev, updated, life, token = head.split(b" ")
    # what a server wrote whose clock was an hour ahead
    ahead = int(updated) + 3_600_000_000
    admin.set(key, b"%b %b %d %b %d\n%b" % (inc, rev, ahead, life, int(token) + 3_600_000_000, fields), px=60_000)
    for answer in (
        store.perform(Read(APT), LIMIT),
        store.perform(Extend(APT, {}, first.incarnation), LIMIT),
        store.perform(Replace(APT, {}, first.incarnation, "2"), LIMIT),
    ):
        assert isinstance(answer, Snapshot)
        assert answer.updated_at == ahead / 1e6
        assert answer.store_now is not None
        assert answer.store_now == pytest.approx(first.updated_at, abs=60)
    assert answer.token == int(token) + 3_600_000_001


# --- what is forgotten -------------------------------------------------------------------------------------------


def test_h32_the_next_holder_learns_of_a_vanished_record(
    place: RedisPlace, store: RedisStore, admin: Any, space: str
) -> None:
    address = f"redis://127.0.0.1:{place.ports[0]}?prefix={space}"
    with lockstead.connect(address) as client:
        died = client.lock("apt", ttl=1, owner="died").acquire()
    assert died.lost_reason is None
    # the week goes by, or the server wants for memory
    admin.delete(f"{space}:{{apt}}:lock")
    with lockstead.connect(address) as client:
        lock = client.lock("apt", ttl=30)
        first = lock.acquire(timeout=0)
        assert first.previous_lease.ending is lockstead.LeaseOutcome.UNKNOWN
        first.release(unused=True)
        for ending in (lockstead.LeaseOutcome.UNKNOWN, lockstead.LeaseOutcome.CLEAN, lockstead.LeaseOutcome.CLEAN):
            with lock.hold(timeout=0) as lease:
                assert lease.previous_lease.ending is ending


@pytest.mark.parametrize("name", [APT, SLOT], ids=["lock", "permit"])
def test_the_counter_says_for_a_year_that_a_record_was_not_removed(store: RedisStore, admin: Any, name: Name) -> None:
    counter, days = store._keys.token(name), 86_400_000
    first = created(performing(store, LIMIT), name)
    assert admin.pttl(counter) > 365 * days
    assert isinstance(store.perform(Remove(name, "0", None), LIMIT), Conflict)
    assert admin.pttl(counter) > 365 * days
    assert isinstance(store.perform(Remove(name, first.incarnation), LIMIT), Removed)
    assert 29 * days < admin.pttl(counter) < 31 * days
    # an earlier version counted without this word
    admin.set(counter, admin.get(counter).decode().strip())
    assert store.perform(Create(name, {"a": "1"}, forgotten={"b": "2"}), LIMIT).fields == {"a": "1"}
    admin.delete(store._keys.record(name))
    made_anew = store.perform(Create(name, {"a": "1"}, forgotten={"b": "2"}), LIMIT)
    assert made_anew.fields == {"a": "1", "b": "2"}
    assert store.perform(Read(name), LIMIT).fields == made_anew.fields


# --- requests ----------------------------------------------------------------------------------------------------


def scripts_called(admin: Any) -> int:
    stats = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_a_cycle_is_two_requests_and_a_renewal_is_one(store: RedisStore, admin: Any) -> None:
    renewals: list[object] = []

    def listen(event: object) -> None:
        if isinstance(event, Renewed):
            renewals.append(event)

    with lockstead.Client(store, listener=listen) as client:
        lock = client.lock("apt", ttl=8)
        with lock.hold() as lease:
            lease.renew()  # from here on the server knows every script
        renewals.clear()
        admin.config_resetstat()
        lease = lock.acquire()
        assert scripts_called(admin) == 1
        until(lambda: bool(renewals))
        assert scripts_called(admin) == 1 + len(renewals)
        assert lease.release()
        assert scripts_called(admin) == 2 + len(renewals)


@pytest.mark.parametrize("knows_no_script", [False, True], ids=["", "after a restart"])
def test_a_batch_is_sent_once_and_again_after_noscript(store: RedisStore, admin: Any, knows_no_script: bool) -> None:
    made(store)
    store.perform(Extend(APT, {}, None), LIMIT)
    grants = [made(store, Name(f"key-{number}")) for number in range(100)]
    if knows_no_script:
        admin.script_flush()
    reads = admin.info("stats")["total_reads_processed"]
    renewals = [Extend(Name(f"key-{n}"), {}, grant.incarnation) for n, grant in enumerate(grants)]
    answers = store.perform_many(renewals, LIMIT)
    assert all(isinstance(answer, Snapshot) for answer in answers)
    # one read takes 16 KiB of what was sent
    assert admin.info("stats")["total_reads_processed"] - reads < 10


def test_scripts_survive_a_server_that_forgets_them(store: RedisStore, admin: Any) -> None:
    first = made(store)
    admin.script_flush()
    assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)
    admin.script_flush()
    answers = store.perform_many([Read(APT), Create(Name("b"), {}), Remove(APT, first.incarnation)], LIMIT)
    assert [type(answer) for answer in answers] == [Snapshot, Snapshot, Removed]


def test_a_connection_that_the_server_closed_is_not_used_again(store: RedisStore, admin: Any) -> None:
    first = made(store)
    for connection in admin.client_list():
        if connection["id"] != str(admin.client_id()):
            admin.client_kill_filter(_id=connection["id"])
    time.sleep(0.05)
    assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)


def test_an_awaiting_connection_that_has_idled_is_used_again(store: RedisStore, admin: Any) -> None:
    async def reads(count: int) -> None:
        for _ in range(count):
            assert isinstance(await store.aperform(Read(APT), LIMIT), Absent)
            await asyncio.sleep(2 * IDLE_CHECKED)

    before = admin.info("stats")["total_connections_received"]
    asyncio.run(reads(5))
    assert admin.info("stats")["total_connections_received"] == before + 1
