"""Waiting on a real etcd: in order, woken by the predecessor, and no place left of a waiter that has gone."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable

import pytest

from lockstead.errors import OutcomeUnknown, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Create, Read, Remove, Removed, Snapshot
from lockstead.script import drive
from lockstead.stores.bounds import Bounds
from lockstead.stores.etcd.encoding import Request, Response
from lockstead.stores.etcd.scripts import ATTEMPTS_MAX
from lockstead.stores.etcd.store import EtcdStore
from lockstead.stores.port import Store, SupportsFifoQueue
from lockstead.testing.conformance.base import is_a, shows
from lockstead.values import Name
from tests.servers.etcd import EtcdPlace, ask, keys_below
from tests.servers.proxy import Fault, Proxy

APT = Name("apt")
LIMIT = 20.0


def taking(waiter_id: str) -> Create:
    return Create(APT, {"v": "1", "identity": waiter_id}, 60.0, waiter_id, 60.0)


def until(condition: Callable[[], object], otherwise: str, seconds: float = 60.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, otherwise
        time.sleep(0.02)


def places(etcd: EtcdPlace, space: str) -> list[str]:
    """Who stands in the queue, in order."""
    standing = keys_below(etcd.server.port, f"{space}/queue/apt/")
    ordered = sorted(standing.items(), key=lambda pair: int(pair[1]["create_revision"]))
    return [key.rpartition("/")[2] for key, _item in ordered]


class Waiter:
    """Has a place in the queue, and notes what it is called with."""

    def __init__(self, store: Store, waiter_id: str, name: Name = APT) -> None:
        self._store = is_a(SupportsFifoQueue, store)  # type: ignore[type-abstract]
        self._name, self._waiter_id = name, waiter_id
        self.has_turn = threading.Event()
        self.calls: list[bool] = []
        self.subscription = self._store.enqueue(name, waiter_id, self._called)

    def _called(self, is_free: bool) -> None:
        self.calls.append(is_free)
        if is_free:
            self.has_turn.set()

    def leaves(self) -> None:
        self.subscription.close()
        self._store.leave(self._name, self._waiter_id, LIMIT)


def queued(etcd: EtcdPlace, space: str, stores: list[Store]) -> list[Waiter]:
    """One waiter a store, in this order."""
    waiters = []
    for number, store in enumerate(stores):
        waiters.append(Waiter(store, f"w{number:02}"))
        until(lambda: len(places(etcd, space)) == len(waiters), "no place was taken")
    return waiters


def test_fifo_waiters_are_woken_in_order_and_not_overtaken(etcd: EtcdPlace, space: str) -> None:
    stores = [etcd.open(space) for _ in range(6)]
    holder = shows(stores[0].perform(taking("holder"), LIMIT))
    waiters = queued(etcd, space, stores)
    assert places(etcd, space) == [f"w{number:02}" for number in range(6)]
    granted = holder
    for number, (store, waiter) in enumerate(zip(stores, waiters, strict=True)):
        is_a(Removed, store.perform(Remove(APT, granted.incarnation), LIMIT))
        for rival in range(number + 1, 6):
            answer = stores[rival].perform(taking(f"w{rival:02}"), LIMIT)
            assert isinstance(answer, Conflict)
            assert answer.is_queued
        newcomer = store.perform(taking("newcomer"), LIMIT)
        assert isinstance(newcomer, Conflict)
        assert newcomer.is_queued
        assert waiter.has_turn.wait(LIMIT)
        assert not any(later.has_turn.is_set() for later in waiters[number + 1 :])
        granted = shows(store.perform(taking(f"w{number:02}"), LIMIT))
    for store in stores:
        store.close()


def test_a_predecessor_that_leaves_the_queue_grants_no_turn(etcd: EtcdPlace, space: str) -> None:
    stores = [etcd.open(space) for _ in range(3)]
    held = shows(stores[0].perform(taking("holder"), LIMIT))
    first, second, third = queued(etcd, space, stores)
    second.leaves()
    until(lambda: places(etcd, space) == ["w00", "w02"], "the place stands")
    time.sleep(0.3)
    assert not third.has_turn.is_set()
    first.leaves()
    time.sleep(0.3)
    assert not third.has_turn.is_set()
    stores[0].perform(Remove(APT, held.incarnation), LIMIT)
    assert third.has_turn.wait(LIMIT)
    for store in stores:
        store.close()


def test_a_release_wakes_one_of_forty_and_asks_nothing_of_the_others(etcd: EtcdPlace, space: str, proxy: Proxy) -> None:
    stores = [etcd.open(space, ports=proxy.ports) for _ in range(40)]
    held = shows(stores[0].perform(taking("holder"), LIMIT))
    watches = proxy.count(lambda sent: sent.startswith(b"POST /v3/watch"))
    waiters = [Waiter(store, f"w{number:02}") for number, store in enumerate(stores)]
    until(lambda: len(places(etcd, space)) == 40, "not all have a place")
    until(lambda: watches.total >= 40, "not all watch")
    first = int(places(etcd, space)[0][1:])
    count = proxy.count(lambda sent: sent.startswith((b"POST /v3/kv/", b"POST /v3/watch")))
    stores[first].perform(Remove(APT, held.incarnation), LIMIT)
    assert waiters[first].has_turn.wait(LIMIT)
    granted = shows(stores[first].perform(taking(f"w{first:02}"), LIMIT))
    stores[first].perform(Remove(APT, granted.incarnation), LIMIT)
    second = int(places(etcd, space)[0][1:])
    assert waiters[second].has_turn.wait(LIMIT)
    # two releases and a grant; the second looked once when he became the first, and began to watch the record
    assert count.total <= 6
    assert sum(len(waiter.calls) for waiter in waiters) <= 3, "others were called"
    for store in stores:
        store.close()


def test_h16_a_waiter_keeps_its_place_when_a_server_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    etcd = EtcdPlace(tmp_path_factory.mktemp("killed"))
    try:
        first_store, second_store = etcd.open("s"), etcd.open("s")
        held = shows(first_store.perform(taking("holder"), LIMIT))
        first, second = queued(etcd, "s", [first_store, second_store])
        etcd.kill()
        time.sleep(0.3)
        etcd.start()
        until(lambda: places(etcd, "s") == ["w00", "w01"], "the places are gone")
        until(lambda: _removed(first_store, held), "the holder could not give it back")
        assert first.has_turn.wait(LIMIT)
        shows(first_store.perform(taking("w00"), LIMIT))
        assert not second.has_turn.is_set()
        first_store.close()
        second_store.close()
    finally:
        etcd.stop()


def _removed(store: Store, held: Snapshot) -> bool:
    try:
        store.perform(Remove(APT, held.incarnation), LIMIT)
    except OutcomeUnknown:
        return False
    return True


def test_a_watch_whose_revision_was_compacted_is_begun_anew(etcd: EtcdPlace, space: str, proxy: Proxy) -> None:
    store = etcd.open(space, ports=proxy.ports)
    held = shows(store.perform(taking("holder"), LIMIT))
    (waiter,) = queued(etcd, space, [store])
    until(lambda: proxy.open_connections >= 2, "nobody watches")
    with proxy.refusing():
        for _ in range(3):
            ask(etcd.server.port, "kv/put", {"key": b64encode(b"elsewhere").decode(), "value": ""})
        revision = ask(etcd.server.port, "kv/range", {"key": "YQ=="})["header"]["revision"]
        ask(etcd.server.port, "kv/compaction", {"revision": revision, "physical": True})
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert waiter.has_turn.wait(LIMIT)
    store.close()


def watching(far: Store, waiter_id: str, proxy: Proxy) -> Waiter:
    """A waiter that is in the queue and watches: the next transaction is another one's."""
    watches = proxy.count(lambda sent: b"POST /v3/watch" in sent)
    waiter = Waiter(far, waiter_id)
    until(lambda: watches.total, "nobody watches")
    return waiter


def test_h28_a_late_queue_place_is_removed_after_its_waiter_left(
    etcd: EtcdPlace, space: str, far: Store, store: Store, proxy: Proxy
) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    other = watching(far, "other", proxy)
    late = proxy.arm(Fault.REQUEST_LATE, lambda sent: b"POST /v3/kv/txn" in sent, seconds=3.0)
    waiter = Waiter(far, "late")
    late.wait()
    waiter.leaves()
    late.wait_arrived()
    other.leaves()
    until(lambda: far.perform(Read(APT), LIMIT), "the store does not answer")
    assert places(etcd, space) == [], "somebody who has gone stands in the queue"
    store.perform(Remove(APT, held.incarnation), LIMIT)
    shows(store.perform(taking("newcomer"), LIMIT))


def test_h28_an_unanswered_queue_place_goes_with_the_grant(
    etcd: EtcdPlace, space: str, far: Store, store: Store, proxy: Proxy
) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    other = watching(far, "other", proxy)
    lost = proxy.arm(Fault.CUT_AFTER, lambda sent: b"POST /v3/kv/txn" in sent)
    waiter = Waiter(far, "waiter")
    until(lambda: places(etcd, space) == ["other", "waiter"], "no place was taken")
    other.leaves()
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert waiter.has_turn.wait(LIMIT)
    assert lost.hits == 1, "no answer was lost"
    granted = shows(far.perform(taking("waiter"), LIMIT))
    assert places(etcd, space) == []
    guards = keys_below(etcd.server.port, f"{space}/session/")
    assert [item["mod_revision"] for item in guards.values()] == [granted.incarnation], "the guard was not bumped"
    # and the guard turns nobody away for good
    again = Waiter(far, "again")
    until(lambda: places(etcd, space) == ["again"], "nobody gets a place any more")
    again.leaves()


def test_a_place_of_a_process_that_died_is_gone_with_its_lease(etcd: EtcdPlace, space: str, store: Store) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    dead = etcd.open(space)
    waiter = Waiter(dead, "dead")
    until(lambda: places(etcd, space) == ["dead"], "no place was taken")
    is_a(EtcdStore, dead)._listener.close()  # it renews nothing more, and neither leaves nor closes
    store.perform(Remove(APT, held.incarnation), LIMIT)
    answer = store.perform(taking("newcomer"), LIMIT)
    assert isinstance(answer, Conflict)
    assert answer.is_queued
    until(lambda: isinstance(store.perform(taking("newcomer"), LIMIT), Snapshot), "a dead process stands there forever")
    waiter.subscription.close()
    dead.close()


def test_a_waiter_that_never_queued_here_is_not_remembered(
    etcd: EtcdPlace, space: str, store: Store, other: Store
) -> None:
    waiter = Waiter(other, "me")
    assert waiter.has_turn.wait(LIMIT)
    asking = is_a(EtcdStore, store)
    sent = []

    def exchange(request: Request) -> Response:
        if request.what == "Create":
            sent.append(request)
            if len(sent) == 3:  # after it has seen that the place is its own, which another store took
                shows(other.perform(taking(""), LIMIT))
        return asking._driver.exchange(Bounds(LIMIT), request)

    assert drive(asking._operations.script(taking("me")), exchange) == Conflict()
    assert len(sent) > 3
    assert not asking._operations.queue.places
    waiter.leaves()


def test_a_queue_that_has_changed_at_each_attempt_is_contention(etcd: EtcdPlace, space: str, store: Store) -> None:
    acquiring = is_a(EtcdStore, store)
    lease = ask(etcd.server.port, "lease/grant", {"TTL": "600"})["ID"]
    place = {"key": b64encode(f"{space}/queue/apt/theirs".encode()).decode()}
    attempts = []

    def exchange(request: Request) -> Response:
        if b"request_put" not in request.content:
            return acquiring._driver.exchange(Bounds(LIMIT), request)
        attempts.append(request)
        ask(etcd.server.port, "kv/put", {**place, "value": "", "lease": lease})
        try:
            return acquiring._driver.exchange(Bounds(LIMIT), request)
        finally:
            ask(etcd.server.port, "kv/deleterange", place)

    assert drive(acquiring._operations.script(taking("me")), exchange) == Conflict(is_queued=True)
    assert len(attempts) == ATTEMPTS_MAX
    ask(etcd.server.port, "lease/revoke", {"ID": lease})
    shows(store.perform(taking("me"), LIMIT))


def test_leases_revoked_right_after_the_grant_are_reported(etcd: EtcdPlace, store: Store) -> None:
    acquiring = is_a(EtcdStore, store)

    def exchange(request: Request) -> Response:
        response = acquiring._driver.exchange(Bounds(LIMIT), request)
        if request.what == "LeaseGrant":
            ask(etcd.server.port, "lease/revoke", {"ID": json.loads(response.body)["ID"]})
        return response

    with pytest.raises(StoreUnavailable, match="find what revokes leases"):
        drive(acquiring._operations.script(taking("me")), exchange)
    assert store.perform(Read(APT), LIMIT) == Absent()
    shows(store.perform(taking("me"), LIMIT))


def test_a_place_that_an_administrator_deleted_is_taken_anew(etcd: EtcdPlace, space: str, store: Store) -> None:
    held = shows(store.perform(taking("holder"), LIMIT))
    waiter = Waiter(store, "waiter")
    until(lambda: places(etcd, space) == ["waiter"], "no place was taken")
    before = keys_below(etcd.server.port, f"{space}/queue/")
    ask(etcd.server.port, "kv/deleterange", {"key": b64encode(f"{space}/queue/apt/waiter".encode()).decode()})
    until(lambda: places(etcd, space) == ["waiter"], "the place was not taken anew")
    assert keys_below(etcd.server.port, f"{space}/queue/") != before
    store.perform(Remove(APT, held.incarnation), LIMIT)
    assert waiter.has_turn.wait(LIMIT)
