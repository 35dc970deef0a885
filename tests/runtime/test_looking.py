"""Looking without touching: the listing of a store and the history of what was broken in it, on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from lockstead import AsyncClient, AuditEntry, Client, StoreRefused, connect, connect_async
from lockstead.protocol.commands import Create, Extend
from lockstead.values import Name, Space
from tests.runtime.faulty import quiet


@pytest.fixture
def client(shared_url: str) -> Iterator[Client]:
    with connect(shared_url, listener=quiet) as client:
        yield client


def break_one(client: Client, key: str, *, now: bool = False) -> tuple[str, int]:
    lease = client.lock(key, owner="nightly").acquire(timeout=10)
    token = lease.sequencer().token
    client.lock(key).break_lease(reason=f"{key} hangs", by="anna", now=now)
    lease.release()
    return lease.holder, token


def test_the_history_says_who_broke_whose_lease_when_why_and_how(client: Client) -> None:
    assert client.history() == []
    holder, token = break_one(client, "apt")
    (entry,) = client.lock("apt").history()
    assert (entry.key, entry.by, entry.reason, entry.what) == ("apt", "anna", "apt hangs", "revoked")
    assert (entry.holder, entry.owner, entry.token) == (holder, "nightly", token)
    assert entry.incarnation
    assert entry.at is not None
    assert entry.at.timezone_name == "UTC"
    assert abs(entry.at.diff().in_seconds()) < 300


def test_the_history_of_a_key_or_of_all_is_oldest_first(client: Client) -> None:
    for key, now in (("b", False), ("a", True), ("b", True), ("a/b", False)):
        break_one(client, key, now=now)
    assert [(one.key, one.what) for one in client.history()] == [
        ("b", "revoked"),
        ("a", "removed"),
        ("b", "removed"),
        ("a/b", "revoked"),
    ]
    assert [(one.key, one.what) for one in client.history("b")] == [("b", "revoked"), ("b", "removed")]
    assert [one.key for one in client.lock("a").history()] == ["a"]
    assert client.lock("never").history() == []


def test_wait_until_free_ends_at_the_release_without_acquiring(client: Client) -> None:
    lock = client.lock("apt", backoff_min=0.01, backoff_max=0.05)
    assert lock.wait_until_free(timeout=0) is True
    lease = lock.acquire(timeout=10)
    assert lock.wait_until_free(timeout=0) is False
    assert lock.wait_until_free(timeout=0.2) is False
    leaving = threading.Timer(0.2, lease.release)
    leaving.start()
    assert lock.wait_until_free() is True
    leaving.join()
    assert lock.inspect() is None


def test_a_wait_until_it_is_free_is_awaited_too(shared_url: str) -> None:
    async def awaiting() -> None:
        async with await connect_async(shared_url, listener=quiet) as client:
            lock = client.lock("apt", backoff_min=0.01, backoff_max=0.05)
            lease = await lock.acquire(timeout=10)
            assert await lock.wait_until_free(timeout=0) is False
            assert await lock.wait_until_free(timeout="200ms") is False
            waits = asyncio.create_task(lock.wait_until_free())
            await asyncio.sleep(0.1)
            assert not waits.done()
            await lease.release()
            assert await waits is True
            assert await lock.inspect() is None

    asyncio.run(awaiting())


def test_the_history_outlives_the_lock(client: Client) -> None:
    break_one(client, "apt", now=True)
    with client.lock("apt").hold(timeout=10):
        pass
    assert client.list() == []
    assert [one.reason for one in client.history()] == ["apt hangs"]


def test_the_history_is_awaited_on_the_other_side(shared_url: str, client: Client) -> None:
    break_one(client, "apt")

    async def look(other: AsyncClient) -> list[list[AuditEntry]]:
        async with other:
            return [await other.history(), await other.history("deb"), await other.lock("apt").history()]

    async def main() -> list[list[AuditEntry]]:
        return await look(await connect_async(shared_url, listener=quiet))

    entries = client.history()
    assert asyncio.run(main()) == [entries, [], entries]


def test_a_damaged_audit_entry_is_shown_as_far_as_it_can_be_read(client: Client) -> None:
    store = client._engine.store
    store.perform(Create(Name("apt", Space.AUDIT, "01700000000000-x"), {"v": "1", "token": "many", "at": "soon"}), 5)
    store.perform(Create(Name("apt", Space.AUDIT, "nonsense"), {"by": "anna", "at": "nan"}), 5)
    second, first = client.history("apt")
    assert (first.at_epoch, first.token, first.by) == (1_700_000_000.0, None, "")
    assert (second.at_epoch, second.at, second.by) == (None, None, "anna")


def test_a_listing_shows_unreadable_records_beside_the_others(client: Client) -> None:
    store = client._engine.store
    with client.lock("a").hold(timeout=10), client.lock("c").hold(timeout=10):
        store.perform(Create(Name("b"), {"v": "1", "identity": "x/1", "ttl": "soon"}), 5)
        store.perform(Create(Name("d"), {"v": "2", "identity": "y/1", "owner": "y"}), 5)
        shown = {one.key: one for one in client.list()}
    assert [shown[key].decode_error for key in "ac"] == [None, None]
    assert shown["b"].decode_error == "the record of 'b' is damaged: ttl is 'soon'; break it with now=True (--now)"
    assert shown["d"].decode_error is not None
    assert "upgrade" in shown["d"].decode_error
    assert (shown["b"].holder, shown["b"].ttl, shown["b"].is_expired) == ("x/1", None, False)
    assert shown["d"].owner == "y"
    for key in "bd":
        with pytest.raises(StoreRefused, match=f"'{key}'"):
            client.lock(key).inspect()


def test_looking_writes_nothing(client: Client) -> None:
    store = client._engine.store
    created = store.perform(Create(Name("apt"), {"v": "1", "identity": "x/1", "ttl": "300"}), 5)
    client.list()
    client.history()
    client.lock("apt").inspect()
    unchanged = store.perform(Extend(Name("apt"), {}, created.incarnation, created.revision), 5)
    assert unchanged.incarnation == created.incarnation
