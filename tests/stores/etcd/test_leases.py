"""The leases of records: rules [6] and [15] of the protocol, on a real etcd."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockstead
from lockstead.errors import OutcomeUnknown
from lockstead.events import LockEvent, Renewed
from lockstead.protocol.commands import Absent, Create, Extend, Read, Remove, Removed, Snapshot
from lockstead.renewal import PATIENCE, default_renew_every
from lockstead.stores.bootclock import boot_now
from lockstead.stores.etcd.encoding import Kv, Request, Response, Root
from lockstead.stores.etcd.extend import Extension
from lockstead.stores.etcd.leases import Hold, Lease, Leases
from lockstead.stores.etcd.scripts import Beat, lifetime
from lockstead.stores.port import Store, SupportsBatching
from lockstead.testing.conformance.base import is_a, shows
from lockstead.values import Name
from tests.servers.etcd import EtcdPlace, ask, keys_below, leases
from tests.servers.proxy import Fault, Proxy
from tests.stores.etcd.test_queue import until

APT, YUM, PIP = Name("apt"), Name("yum"), Name("pip")
LIMIT = 20.0


def taking(name: Name, min_retention: float = 60.0, ttl: float | None = None) -> Create:
    return Create(name, {"v": "1", "identity": name.key}, ttl or min_retention, "", min_retention)


def renewing(name: Name, made: Snapshot) -> Extend:
    return Extend(name, {}, made.incarnation, lifetime=60.0)


def is_gone(store: Store, name: Name) -> bool:
    return isinstance(store.perform(Read(name), LIMIT), Absent)


def lease_of(etcd: EtcdPlace, space: str, name: Name) -> str:
    (item,) = keys_below(etcd.server.port, f"{space}/lock/{name.key}:").values()
    return str(item.get("lease", "0"))


def is_transaction(sent: bytes) -> bool:
    return sent.startswith(b"POST /v3/kv/txn")


@contextlib.contextmanager
def renewed(store: Store, name: Name, made: Snapshot, every: float) -> Iterator[list[object]]:
    """Renew a record for as long as the block lasts; what came of each renewal."""
    stop, answers = threading.Event(), list[object]()

    def renew() -> None:
        while not stop.wait(every):
            answers.append(store.perform(renewing(name, made), LIMIT))

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


# --- rule 6: the deadline counts from what renewed the lease ----------------------------------------------------------


def test_rule_6_acquiring_does_not_renew_the_shared_lease(store: Store) -> None:
    first = shows(store.perform(taking(APT), LIMIT))
    time.sleep(0.05)
    asked_at = boot_now()
    second = shows(store.perform(taking(YUM), LIMIT))
    assert first.renewed_at is not None
    assert second.renewed_at == first.renewed_at < asked_at


def test_rule_6_an_old_lease_is_renewed_before_another_lock_uses_it(store: Store) -> None:
    first = shows(store.perform(taking(APT, 4.0), LIMIT))
    time.sleep(0.3)
    asked_at = boot_now()
    second = shows(store.perform(taking(YUM, 4.0), LIMIT))
    assert first.renewed_at is not None
    assert second.renewed_at is not None
    assert first.renewed_at < asked_at <= second.renewed_at


def test_rule_6_a_renewal_counts_from_the_send_of_the_keep_alive(store: Store) -> None:
    made = shows(store.perform(taking(APT), LIMIT))
    before = boot_now()
    extended = shows(store.perform(renewing(APT, made), LIMIT))
    assert extended.renewed_at is not None
    assert before <= extended.renewed_at <= boot_now()
    with_fields = shows(store.perform(Extend(APT, {"progress": "1"}, made.incarnation, lifetime=60.0), LIMIT))
    assert with_fields.renewed_at is not None
    assert with_fields.renewed_at >= extended.renewed_at


@pytest.mark.parametrize(
    ("min_retention", "granted", "expected"),
    [(303.0, 303, None), (303.0, 400, None), (302.5, 303, None), (303.0, 203, 203.0)],
)
def test_rule_6_a_shorter_server_lease_shortens_the_deadline(
    min_retention: float, granted: int, expected: float | None
) -> None:
    assert lifetime(min_retention, Beat("1", granted, 0.0, None)) == expected


class Stingy:
    """A proxy in front of an etcd that reports each lease as shorter than it is, with as many digits."""

    def __init__(self, behind: int, says: bytes, instead: bytes) -> None:
        self._behind, self._says, self._instead = behind, says, instead
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._behind))
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while told := source.recv(1 << 16):
                sink.sendall(told.replace(self._says, self._instead) if is_answer else told)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in [self._door, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def test_rule_6_a_lease_that_the_server_shortens_shortens_the_belief(etcd: EtcdPlace, space: str) -> None:
    stingy = Stingy(etcd.server.port, b'"TTL":"61"', b'"TTL":"41"')
    store = etcd.open(space, ports=[stingy.port])
    try:
        made = shows(store.perform(taking(APT, 61.0, ttl=60.0), LIMIT))
        assert made.lifetime == 41.0
        assert shows(store.perform(renewing(APT, made), LIMIT)).lifetime == 41.0
        assert shows(store.perform(Extend(APT, {"n": "1"}, made.incarnation, lifetime=60.0), LIMIT)).lifetime == 41.0
    finally:
        store.close()
        stingy.close()


def test_a_short_ttl_gets_a_whole_second_and_no_less_belief(etcd: EtcdPlace, space: str, store: Store) -> None:
    made = shows(store.perform(taking(APT, 1.2, ttl=1.1), LIMIT))
    assert made.lifetime is None
    lease = lease_of(etcd, space, APT)
    assert int(ask(etcd.server.port, "lease/timetolive", {"ID": lease})["grantedTTL"]) >= 2


# --- rule 15: a KeepAlive proves nothing about the record -------------------------------------------------------------


def test_rule_15_a_deleted_record_is_absent_though_its_lease_lives(etcd: EtcdPlace, space: str, store: Store) -> None:
    made = shows(store.perform(taking(APT), LIMIT))
    store.perform(taking(YUM), LIMIT)
    ask(etcd.server.port, "kv/deleterange", {"key": b64encode(f"{space}/lock/apt:a".encode()).decode()})
    is_a(Absent, store.perform(renewing(APT, made), LIMIT))


def test_rule_15_after_a_revoked_lease_the_next_lock_gets_another(etcd: EtcdPlace, space: str, store: Store) -> None:
    made = shows(store.perform(taking(APT), LIMIT))
    before = lease_of(etcd, space, APT)
    ask(etcd.server.port, "lease/revoke", {"ID": before})
    is_a(Absent, store.perform(renewing(APT, made), LIMIT))
    shows(store.perform(taking(APT), LIMIT))
    assert lease_of(etcd, space, APT) != before


def test_rule_15_a_record_moved_to_another_lease_is_not_ours(etcd: EtcdPlace, space: str, store: Store) -> None:
    made = shows(store.perform(taking(APT), LIMIT))
    (key, item) = next(iter(keys_below(etcd.server.port, f"{space}/lock/apt:").items()))
    foreign = ask(etcd.server.port, "lease/grant", {"TTL": "5"})["ID"]
    put = {"key": b64encode(key.encode()).decode(), "value": item["value"], "lease": foreign}
    ask(etcd.server.port, "kv/put", put)
    asked_at = boot_now()
    extended = shows(store.perform(renewing(APT, made), LIMIT))
    assert extended.incarnation == made.incarnation
    hangs_on = lease_of(etcd, space, APT)
    assert hangs_on != foreign
    assert int(ask(etcd.server.port, "lease/timetolive", {"ID": hangs_on})["grantedTTL"]) >= 60
    assert extended.renewed_at is not None
    assert extended.renewed_at >= asked_at
    # what somebody took off every lease comes back to one
    ask(etcd.server.port, "kv/put", {**put, "lease": "0"})
    shows(store.perform(renewing(APT, made), LIMIT))
    assert lease_of(etcd, space, APT) != "0"


def test_rule_15_a_replaced_leaders_keep_alive_is_repeated() -> None:
    known = Leases()
    known.granted(Lease("7", 60, 60, boot_now()))
    known.hangs(APT, "7", "5", boot_now())
    steps = Extension(Root.at("locks"), known, Extend(APT, {}, "5", lifetime=60.0)).script()

    def said(term: int, **body: Any) -> bytes:
        return json.dumps({**body, "header": {"revision": "9", "raft_term": str(term)}}).encode()

    def beaten(term: int, sent_at: float) -> Response:
        return Response(200, b'{"result":' + said(term, ID="7", TTL="60") + b"}\n", sent_at)

    item = {"key": b64encode(b"locks/lock/apt:a").decode(), "create_revision": "5", "mod_revision": "5", "lease": "7"}
    item["value"] = b64encode(Kv("", "", "", "", {"v": "1"}, 60.0, is_alone=False).value.encode()).decode()
    seen: list[Any] = [{"response_range": {"kvs": [item]}}, {"response_range": {}}, {"response_range": {}}]
    asked: list[str] = []

    def step(answer: Response | None) -> None:
        request: Request = next(steps) if answer is None else steps.send(answer)
        asked.append(request.what)

    step(None)
    step(beaten(2, 100.0))
    # the range was answered under a new leader, which counts the lease from its election: the first beat says nothing
    step(Response(200, said(3, responses=seen), 100.5))
    step(beaten(3, 101.0))
    with pytest.raises(StopIteration) as stop:
        steps.send(Response(200, said(3, responses=seen), 101.5))
    assert asked == ["LeaseKeepAlive", "Range", "LeaseKeepAlive", "Range"]
    assert shows(stop.value.value).renewed_at == 101.0


# --- rule 15: nothing lives on a shared lease unnoticed ---------------------------------------------------------------


def test_rule_15_an_unrenewed_record_ends_though_a_sibling_renews(etcd: EtcdPlace, space: str, store: Store) -> None:
    lost = shows(store.perform(taking(APT, 3.0), LIMIT))
    kept = shows(store.perform(taking(YUM, 3.0), LIMIT))
    assert lease_of(etcd, space, APT) == lease_of(etcd, space, YUM)
    with renewed(store, YUM, kept, 0.2) as answers:
        until(lambda: is_gone(store, APT), "the renewals of another lock keep it alive")
    assert shows(store.perform(Read(YUM), LIMIT)).incarnation == kept.incarnation != lost.incarnation
    assert all(isinstance(answer, Snapshot) for answer in answers)


def test_rule_15_an_unrenewed_record_ends_beside_other_cycles(store: Store) -> None:
    store.perform(taking(APT, 3.0), LIMIT)

    def cycle() -> bool:
        made = shows(store.perform(taking(YUM, 3.0), LIMIT))
        is_a(Removed, store.perform(Remove(YUM, made.incarnation), LIMIT))
        return is_gone(store, APT)

    until(cycle, "taking and giving back other locks keeps it alive")


def test_rule_15_an_unrenewed_record_ends_though_a_batch_renews(store: Store) -> None:
    store.perform(taking(APT, 3.0), LIMIT)
    made = {name: shows(store.perform(taking(name, 3.0), LIMIT)) for name in (YUM, PIP)}

    def renew() -> bool:
        answers = is_a(SupportsBatching, store).perform_many([renewing(name, one) for name, one in made.items()], LIMIT)
        assert all(isinstance(answer, Snapshot) for answer in answers), answers
        return is_gone(store, APT)

    until(renew, "batches that renew others keep it alive")


def test_rule_15_how_long_a_record_is_kept_beyond_its_last_renewal() -> None:
    known = Leases()
    known.granted(Lease("7", 100, 100, 0.0))
    known.hangs(APT, "7", "5", 0.0)
    known.hangs(YUM, "7", "6", 0.0)
    due = PATIENCE * default_renew_every(100)
    assert known.wanted([(YUM, "6")], due) == [Hold("7", is_good=True)]
    # from here on the lease is renewed no more: what hangs on it ends `min_retention` later at the latest
    assert known.wanted([(YUM, "6")], due + 0.1) == [Hold("7", is_good=False)]
    assert known.current(100, due) is None
    assert known.ours("7", due) == (True, False)


def test_a_record_may_be_late_by_its_own_renewal_interval() -> None:
    known = Leases()
    known.granted(Lease("7", 100, 100, 0.0))
    known.hangs(APT, "7", "5", 0.0)
    known.hangs(APT, "7", "5", 30.0)
    known.hangs(YUM, "7", "6", 60.0)
    assert known.current(100, 30.0 + 1.25 * 30.0) is not None
    assert known.current(100, 30.0 + 1.25 * 30.0 + 0.1) is None


@pytest.mark.parametrize("renew_every", [5.0, 20.0, 45.0])
def test_a_record_expires_by_its_owners_renewal_interval(renew_every: float) -> None:
    known = Leases()
    known.granted(Lease("7", 100, 100, 0.0))
    known.hangs(APT, "7", "5", 0.0, renew_every)
    assert known.current(100, PATIENCE * renew_every) is not None
    # what is renewed in time keeps its interval
    known.hangs(APT, "7", "5", renew_every)
    assert known.current(100, renew_every * (1 + PATIENCE)) is not None
    assert known.current(100, renew_every * (1 + PATIENCE) + 0.1) is None


def test_a_lock_with_rare_renewals_stays_on_its_lease(etcd: EtcdPlace, space: str) -> None:
    events: list[LockEvent] = []
    client = lockstead.connect(etcd.url(space), listener=events.append)
    rarely = {"ttl": 4, "renew_every": 1.5, "abort_margin": 0.5, "max_failures": 1}
    with client, client.lock(APT.key, **rarely).hold(timeout=10):
        before = lease_of(etcd, space, APT)
        until(lambda: sum(isinstance(event, Renewed) for event in events) >= 2, "it is not renewed")
        assert lease_of(etcd, space, APT) == before


def test_records_acquired_together_are_not_each_others_leftovers() -> None:
    known = Leases()
    known.granted(Lease("7", 100, 100, 0.0))
    known.hangs(APT, "7", "5", 0.0)
    known.hangs(YUM, "7", "6", 0.0)
    holds = known.wanted([(APT, "5"), (YUM, "6")], 50.0)
    assert [hold is not None and hold.is_good for hold in holds] == [True, True]


def test_h28_rule_15_a_lost_grant_is_not_renewed_by_other_locks(far: Store, proxy: Proxy) -> None:
    kept = shows(far.perform(taking(YUM, 4.0), LIMIT))
    proxy.arm(Fault.ANSWER_LOST, is_transaction)
    with pytest.raises(OutcomeUnknown):
        far.perform(taking(APT, 4.0), 1.0)
    until(lambda: not is_gone(far, APT), "the grant never landed")
    with renewed(far, YUM, kept, 0.2):
        until(lambda: is_gone(far, APT), "a record that this store does not know is kept alive by its lease")
    assert shows(far.perform(Read(YUM), LIMIT)).incarnation == kept.incarnation


def test_h28_rule_15_a_late_grant_is_on_an_unrenewed_lease(far: Store, proxy: Proxy) -> None:
    kept = shows(far.perform(taking(YUM, 4.0), LIMIT))
    proxy.arm(Fault.REQUEST_LATE, is_transaction, seconds=2.0)
    with pytest.raises(OutcomeUnknown):
        far.perform(taking(APT, 4.0), 1.0)
    assert is_gone(far, APT)
    with renewed(far, YUM, kept, 0.2):
        until(lambda: not is_gone(far, APT), "what was held back never arrived")
        until(lambda: is_gone(far, APT), "what arrived late is kept alive")
    assert shows(far.perform(Read(YUM), LIMIT)).incarnation == kept.incarnation


# --- rule 15: another process renews ----------------------------------------------------------------------------------


def test_rule_15_a_renewal_by_ticket_renews_only_that_record(store: Store, other: Store) -> None:
    handed_on = shows(store.perform(taking(APT, 3.0), LIMIT))
    store.perform(taking(YUM, 3.0), LIMIT)
    with renewed(other, APT, handed_on, 0.2) as answers:
        until(lambda: is_gone(other, YUM), "a process that renews one record keeps the locks of a dead one alive")
    assert all(isinstance(answer, Snapshot) for answer in answers)
    assert shows(other.perform(Read(APT), LIMIT)).incarnation == handed_on.incarnation
    until(lambda: is_gone(other, APT), "nobody renews it any more")


def test_rule_15_two_processes_can_renew_one_record(etcd: EtcdPlace, space: str, store: Store, other: Store) -> None:
    made = shows(store.perform(taking(APT), LIMIT))
    shows(other.perform(renewing(APT, made), LIMIT))
    shows(store.perform(renewing(APT, made), LIMIT))
    before = keys_below(etcd.server.port, f"{space}/")
    for _ in range(3):
        shows(other.perform(renewing(APT, made), LIMIT))
        shows(store.perform(renewing(APT, made), LIMIT))
    assert before
    assert keys_below(etcd.server.port, f"{space}/") == before
    # once its record is gone, a lease of its own goes too
    alone = lease_of(etcd, space, APT)
    is_a(Removed, store.perform(Remove(APT, made.incarnation), LIMIT))
    assert alone not in leases(etcd.server.port)


def test_a_release_ends_the_lease_of_another_process_renewal(
    etcd: EtcdPlace, space: str, store: Store, other: Store
) -> None:
    made = shows(store.perform(taking(APT), LIMIT))
    ours = lease_of(etcd, space, APT)
    shows(other.perform(renewing(APT, made), LIMIT))
    alone = lease_of(etcd, space, APT)
    assert alone != ours
    is_a(Removed, store.perform(Remove(APT, made.incarnation), LIMIT))
    assert not keys_below(etcd.server.port, f"{space}/")
    assert leases(etcd.server.port) & {ours, alone} == {ours}


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_a_thousand_cycles_are_two_thousand_writes_and_leave_nothing(etcd: EtcdPlace, space: str, proxy: Proxy) -> None:
    before, known = _applied(etcd), leases(etcd.server.port)
    revision = int(ask(etcd.server.port, "kv/range", {"key": "YQ=="})["header"]["revision"])
    store = etcd.open(space, ports=proxy.ports)
    writes = proxy.count(_asks(b"kv/")), proxy.count(_asks(b"kv/range"))
    for _ in range(1000):
        made = shows(store.perform(taking(APT, 60.0), LIMIT))
        is_a(Removed, store.perform(Remove(APT, made.incarnation), LIMIT))
    revisions = int(ask(etcd.server.port, "kv/range", {"key": "YQ=="})["header"]["revision"]) - revision
    assert writes[0].total - writes[1].total == 2000
    # what other tests left on this server may expire meanwhile
    assert 2000 <= revisions < 2020
    # the lease is one more proposal, and the server makes some of its own now and then
    assert 2000 <= _applied(etcd) - before < 2020
    assert len(leases(etcd.server.port) - known) == 1
    assert etcd.left(space) == []
    store.close()
    assert leases(etcd.server.port) <= known


def _applied(etcd: EtcdPlace) -> int:
    return int(ask(etcd.server.port, "maintenance/status")["raftAppliedIndex"])


def test_a_thousand_leases_need_one_keep_alive_and_one_range(
    etcd: EtcdPlace, space: str, far: Store, proxy: Proxy
) -> None:
    made = {}
    for number in range(1000):
        name = Name(f"key-{number}")
        made[name] = shows(far.perform(taking(name), LIMIT))
    counts = {path: proxy.count(_asks(path)) for path in (b"lease/keepalive", b"kv/range", b"")}
    answers = is_a(SupportsBatching, far).perform_many([renewing(name, one) for name, one in made.items()], LIMIT)
    assert [shows(answer).incarnation for answer in answers] == [one.incarnation for one in made.values()]
    assert {path: count.total for path, count in counts.items()} == {b"lease/keepalive": 1, b"kv/range": 1, b"": 2}
    proxy.calm()
    gone = far.perform(Remove(Name("key-7"), made[Name("key-7")].incarnation), LIMIT)
    is_a(Removed, gone)
    answers = is_a(SupportsBatching, far).perform_many([renewing(name, one) for name, one in made.items()], LIMIT)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, Absent)] == [7]


def test_a_thousand_leases_move_together_when_one_is_released(
    etcd: EtcdPlace, space: str, far: Store, proxy: Proxy
) -> None:
    made = {}
    for number in range(1000):
        name = Name(f"key-{number}")
        made[name] = shows(far.perform(taking(name, 30.0), LIMIT))
    many = is_a(SupportsBatching, far)  # type: ignore[type-abstract]
    far.perform(taking(APT, 30.0), LIMIT)  # and nobody renews it
    before = lease_of(etcd, space, APT)
    count = proxy.count(lambda sent: sent.startswith(b"POST"))

    def renew() -> bool:
        answers = many.perform_many([renewing(name, one) for name, one in made.items()], LIMIT)
        assert [shows(answer).incarnation for answer in answers] == [one.incarnation for one in made.values()]
        assert all(shows(answer).renewed_at is not None for answer in answers)
        return lease_of(etcd, space, Name("key-7")) != before

    rounds = 0
    while not renew():
        rounds += 1
        time.sleep(0.2)
    # two requests a round, and in the last one: a range, a grant, and the moves of sixty each; a slow machine renews
    # the new lease before each of them
    assert count.total <= 2 * rounds + 2 + 1 + 2 * 17
    assert {str(item["lease"]) for item in keys_below(etcd.server.port, f"{space}/lock/key-").values()} == {
        lease_of(etcd, space, Name("key-7"))
    }


def _asks(path: bytes) -> Callable[[bytes], bool]:
    pattern = re.compile(rb"POST /v3/" + re.escape(path))
    return lambda sent: bool(pattern.match(sent))


def test_the_keeper_renews_many_leases_without_any_write(etcd: EtcdPlace, space: str, proxy: Proxy) -> None:
    renewals: list[LockEvent] = []

    def listen(event: LockEvent) -> None:
        if isinstance(event, Renewed):
            renewals.append(event)

    with lockstead.connect(etcd.url(space, ports=proxy.ports), listener=listen) as client:
        held = [client.lock(f"key-{number}", ttl=8).acquire() for number in range(40)]
        writes = proxy.count(lambda sent: sent.startswith((b"POST /v3/lease/grant",)))
        beats = proxy.count(_asks(b"lease/keepalive"))
        before = keys_below(etcd.server.port, f"{space}/")
        until(lambda: len(renewals) >= 200, "nothing is renewed")
        assert len(before) == 40
        assert keys_below(etcd.server.port, f"{space}/") == before
        assert writes.total == 0
        assert beats.total < 40, "each lease is renewed by itself"
        assert all(lease.is_held for lease in held)
        for lease in held:
            lease.release()
