"""Locks on Cloud Storage: requests, counted at the server, and the results of failed ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

import lockstead
from gcs_emulator import GcsServer
from lockstead.errors import LeaseLost, OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import (
    Absent,
    Command,
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
from lockstead.stores.bounds import Bounds
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import BucketPath, Request
from lockstead.stores.gcs.store import GcsStore
from lockstead.values import Name, Space

APT = Name("apt")
Perform = Callable[[Command[Any], float], Any]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer(buckets=["bucket"]) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def store(server: GcsServer) -> Iterator[GcsStore]:
    opened = url.open_store("gs://bucket/locks")
    assert isinstance(opened, GcsStore)
    yield opened
    opened.close()


@pytest.fixture(params=["blocking", "awaiting"])
def perform(request: pytest.FixtureRequest, store: GcsStore) -> Iterator[Perform]:
    if request.param == "blocking":
        yield store.perform
        return
    with asyncio.Runner() as runner:
        yield lambda command, limit: runner.run(store.aperform(command, limit))


def made(answer: object) -> Snapshot:
    assert isinstance(answer, Snapshot), answer
    return answer


def test_h25_each_command_is_exactly_one_request_of_its_kind(server: GcsServer, perform: Perform) -> None:
    first = made(perform(Create(APT, {}), 10.0))
    second = made(perform(Extend(APT, {"n": "1"}, first.incarnation), 10.0))
    third = made(perform(Replace(APT, {}, first.incarnation, second.revision), 10.0))
    perform(Read(APT), 10.0)
    perform(List(Space.LOCK), 10.0)
    assert isinstance(perform(Create(APT, {}), 10.0), Conflict)
    assert isinstance(perform(Remove(APT, third.incarnation), 10.0), Removed)
    assert isinstance(perform(Read(APT), 10.0), Absent)
    kinds = [line.kind for line in server.requests]
    assert kinds == ["insert", "patch", "insert", "get", "list", "insert", "delete", "get"]


def test_an_uncontended_cycle_is_two_requests(server: GcsServer, perform: Perform) -> None:
    granted = made(perform(Create(APT, {"identity": "me"}), 10.0))
    perform(Remove(APT, granted.incarnation), 10.0)
    assert server.requests.counts() == {"insert": 1, "delete": 1}


def test_a_record_is_what_other_implementations_read(server: GcsServer, store: GcsStore) -> None:
    store.perform(Create(APT, {"identity": "me", "expires_at": "17"}), 10.0)
    client = storage.Client(project="p", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    blob = client.bucket("bucket").get_blob("locks/apt")
    assert (blob.metadata, blob.size, blob.cache_control) == ({"identity": "me", "expires_at": "17"}, 0, "no-store")
    client.close()


def test_h24_what_others_stored_is_shown_as_it_is(server: GcsServer, store: GcsStore) -> None:
    client = storage.Client(project="p", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    bucket = client.bucket("bucket")
    for name in ("locks/apt", "locks/a+b", "locks/deeper/apt", "locks/.lockstead/x", "elsewhere"):
        blob = bucket.blob(name)
        blob.metadata = {"identity": "gem", "expires_at": "1"}
        blob.upload_from_string("a body")
    client.close()
    seen = made(store.perform(Read(APT), 10.0))
    assert seen.fields == {"identity": "gem", "expires_at": "1"}
    assert dict(store.perform(List(Space.LOCK), 10.0).entries).keys() == {APT}
    assert isinstance(store.perform(Remove(APT, seen.incarnation, seen.revision), 10.0), Removed)


@pytest.mark.parametrize("action", ["lose_answer", "fail_after_commit"])
def test_h03_an_answer_that_is_lost_is_an_unknown_outcome(server: GcsServer, perform: Perform, action: str) -> None:
    server.faults.inject(action)
    with pytest.raises(OutcomeUnknown):
        perform(Create(APT, {"identity": "me"}), 10.0)
    assert server.requests.counts() == {"insert": 1}
    seen = made(perform(Read(APT), 10.0))
    assert seen.fields == {"identity": "me"}
    server.faults.inject(action, kind="patch")
    with pytest.raises(OutcomeUnknown):
        perform(Extend(APT, {}, seen.incarnation), 10.0)
    server.faults.inject(action, kind="delete")
    with pytest.raises(OutcomeUnknown):
        perform(Remove(APT, seen.incarnation), 10.0)
    assert isinstance(perform(Read(APT), 10.0), Absent)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_h25_a_refusal_that_may_hide_a_success_is_not_repeated(
    server: GcsServer, perform: Perform, status: int
) -> None:
    server.faults.inject("fail", status=status, times=None)
    for command in (Create(APT, {}), Read(APT), Extend(APT, {}, "1"), Remove(APT, "1"), List(Space.LOCK)):
        server.requests.clear()
        with pytest.raises(OutcomeUnknown, match=str(status)):
            perform(command, 10.0)
        assert len(server.requests) == 1


def test_a_request_that_was_dropped_is_an_unknown_outcome(server: GcsServer, perform: Perform) -> None:
    server.faults.inject("lose_request")
    with pytest.raises(OutcomeUnknown):
        perform(Create(APT, {}), 10.0)
    assert isinstance(perform(Read(APT), 10.0), Absent)
    assert server.requests.counts() == {"insert": 1, "get": 1}


def test_h09_h28_a_hanging_request_ends_and_may_commit_later(server: GcsServer, perform: Perform) -> None:
    stalled = server.faults.inject("stall", kind="insert")
    began_at = time.monotonic()
    with pytest.raises(OutcomeUnknown, match=r"no answer to Create within 0\.3 s"):
        perform(Create(APT, {"identity": "late"}), 0.3)
    assert 0.2 < time.monotonic() - began_at < 10.0
    assert isinstance(perform(Read(APT), 10.0), Absent)
    stalled.release()
    ends_at = time.monotonic() + 20.0
    while isinstance(seen := perform(Read(APT), 10.0), Absent):
        assert time.monotonic() < ends_at
    assert made(seen).fields == {"identity": "late"}


def test_a_server_that_is_not_there_is_unavailable_and_comes_back(server: GcsServer, perform: Perform) -> None:
    perform(Create(APT, {}), 10.0)
    server.pause("refuse")
    for command in (Read(APT), Create(APT, {}), Extend(APT, {}, "1")):
        with pytest.raises(StoreUnavailable, match="cannot connect to Cloud Storage"):
            perform(command, 10.0)
    server.resume()
    assert isinstance(perform(Read(APT), 10.0), Snapshot)


def test_connections_closed_by_the_server_are_not_reused(server: GcsServer, perform: Perform) -> None:
    """A request sent into a closed connection would be an unknown outcome, and repeating it a hidden repetition."""
    granted = made(perform(Create(APT, {}), 10.0))
    for _ in range(10):
        server.restart()
        granted = made(perform(Extend(APT, {}, granted.incarnation), 10.0))
    assert granted.revision == "11"


def test_a_bucket_that_does_not_exist_is_refused(server: GcsServer) -> None:
    store = url.open_store("gs://nosuch/locks")
    for command in (Create(APT, {}), Read(APT), Extend(APT, {}, None), Remove(APT, "1"), List(Space.LOCK)):
        with pytest.raises(StoreRefused, match="the bucket gs://nosuch does not exist; create it"):
            store.perform(command, 10.0)  # type: ignore[arg-type]
    store.close()


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    store = GcsStore(BucketPath("bucket", "locks"), Access("gopher://127.0.0.1"))
    with pytest.raises(StoreRefused, match="correct the client's endpoint"):
        store.perform(Read(APT), 10.0)
    store.close()


def test_environment_proxies_are_not_used_for_an_emulator(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    store = url.open_store("gs://bucket/locks")
    assert isinstance(store.perform(Read(APT), 10.0), Absent)
    store.close()


def test_a_client_of_the_callers_own_says_where(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = storage.Client(
        project="p",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": server.url},
    )
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    store = url.open_store("gs://bucket/locks", client)
    assert isinstance(store.perform(Read(APT), 10.0), Absent)
    assert server.requests.counts() == {"get": 1}
    store.close()
    client.close()


def test_h07_time_is_shown_as_the_server_says_it(server: GcsServer, store: GcsStore) -> None:
    server.faults.date_offset = 7200.0
    seen = made(store.perform(Create(APT, {}), 10.0))
    assert seen.store_now is not None
    assert seen.updated_at is not None
    assert 7190.0 < seen.store_now - seen.updated_at < 7210.0
    server.faults.hides_date = True
    assert made(store.perform(Read(APT), 10.0)).store_now is None


def test_a_companions_token_grows_over_its_deletion(server: GcsServer, store: GcsStore) -> None:
    companion = Name("apt", Space.COMPANION)
    tokens = []
    for turn in range(3):
        tokens.append(made(store.perform(Create(companion, {}), 10.0)).token)
        tokens.append(made(store.perform(Extend(companion, {"drawn_by": str(turn)}, None), 10.0)).token)
        seen = made(store.perform(Read(companion), 10.0))
        time.sleep(0.005)  # a real bucket takes a change a second, the counter one a millisecond
        store.perform(Remove(companion, seen.incarnation), 10.0)
    assert tokens == sorted(set(tokens))  # type: ignore[type-var]


def test_closing_ends_the_connections_of_every_loop(server: GcsServer) -> None:
    store = url.open_store("gs://bucket/locks")
    assert isinstance(store, GcsStore)

    async def use_and_close() -> None:
        await store.aperform(Read(APT), 10.0)
        await asyncio.to_thread(store.close)
        with pytest.raises(StoreUnavailable, match="is closed"):
            await store.aperform(Read(APT), 10.0)

    asyncio.run(use_and_close())

    other = url.open_store("gs://bucket/locks")
    assert isinstance(other, GcsStore)

    async def close_inside() -> None:
        await other.aperform(Read(APT), 10.0)
        other.close()

    asyncio.run(close_inside())


def test_who_asks_while_the_store_is_closed_leaves_no_connection_open(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("Read", "GET", "/storage/v1/b/bucket/o/locks%2Fapt")
    store = url.open_store("gs://bucket/locks")
    assert isinstance(store, GcsStore)
    pool, signed = store._driver._pool, store._access.signed

    def closed_meanwhile(*asked: Any) -> Any:
        store.close()
        return signed(*asked)

    monkeypatch.setattr(store._access, "signed", closed_meanwhile)
    store._driver.exchange(Bounds(10.0), request)
    assert pool.connections == []

    other = url.open_store("gs://bucket/locks")
    assert isinstance(other, GcsStore)

    async def ask() -> None:
        driver = await other._drivers.get()
        aio_signed = other._access.aio_signed

        async def closed_meanwhile(*asked: Any) -> Any:
            await asyncio.to_thread(other.close)
            return await aio_signed(*asked)

        monkeypatch.setattr(other._access, "aio_signed", closed_meanwhile)
        await driver.exchange(Bounds(10.0), request)
        assert driver._pool.connections == []

    asyncio.run(ask())


def test_progress_and_a_break_always_fit_into_a_record_that_is_full(server: GcsServer) -> None:
    labels = {f"label{number}": "ü" * 250 for number in range(10)}
    with lockstead.connect("gs://bucket/locks") as client:
        lock = client.lock("apt", ttl=60, purpose="p" * 400, labels=labels, lock_delay=1)
        lease = lock.acquire()
        lease.progress("ü" * 1_000)
        lease.renew()
        lease.sequencer()
        held = lock.inspect()
        assert held is not None
        assert (held.labels, held.progress) == (labels, "ü" * 498 + "…")
        assert lock.break_lease(reason="ü" * 9_000, by="ü" * 9_000) is not None
        assert lock.break_lease(reason="ü" * 9_000, by="ü" * 9_000, now=True) is not None
        assert [entry.reason for entry in client.history()] == ["ü" * 1_998 + "…"] * 2
        with pytest.raises(LeaseLost):
            lease.renew()
