"""What the store on Cassandra does beyond the contract: URLs, errors, rights, TLS, damaged rows, counted requests."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

import cassandra
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import ConstantReconnectionPolicy, ConstantSpeculativeExecutionPolicy, RetryPolicy

import lockstead
from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Conflict, Create, Extend, List, Read, Remove, Removed, Replace, Snapshot
from lockstead.stores import url
from lockstead.stores.cassandra import connection as cassandra_link
from lockstead.stores.cassandra.url import where_of
from lockstead.stores.examination import Severity
from lockstead.stores.port import Store, SupportsDiagnostics
from lockstead.values import Name, Space
from tests.access.test_roles import recipe
from tests.servers.cassandra import CassandraServer
from tests.servers.cassandra.place import EXECUTE, CassandraPlace, frames, session
from tests.servers.proxy import Fault, Proxy

T = TypeVar("T")
APT = Name("apt")
LIMIT = 20.0


def on_a_node(test: T) -> T:
    """Let a test run on the one node that a worker has for all of these."""
    return pytest.mark.cassandra(pytest.mark.xdist_group("cassandra node")(test))


def shows(answer: object) -> Snapshot:
    assert isinstance(answer, Snapshot), answer
    return answer


@contextmanager
def opened(text: str) -> Iterator[Store]:
    store = url.open_store(text)
    try:
        yield store
    finally:
        store.close()


def refusal(text: str, command: Any = None, kind: type[StoreError] = StoreRefused) -> str:
    with opened(text) as store, pytest.raises(StoreError) as told:
        store.perform(command or Read(APT), LIMIT)
    assert type(told.value) is kind, told.value
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.fixture
def space() -> str:
    return f"s{uuid4().hex[:11]}"


# --- URLs ------------------------------------------------------------------------------------------------------------


def test_a_url_has_nodes_keyspace_options_and_no_credentials() -> None:
    text = "cassandra://me:s%40crt@h1,h2:9043,[::1]/Locks?replication=dc1:3,dc2:2&consistency=local_serial&ca=/a%20b"
    where = where_of(text)
    assert where.hosts == (("h1", 9042), ("h2", 9043), ("::1", 9042))
    assert (where.user, where.password, where.keyspace) == ("me", "s@crt", "Locks")
    assert where.tls
    assert where.replication_cql == "{'class': 'NetworkTopologyStrategy', 'dc1': 3, 'dc2': 2}"
    assert "crt" not in where.url + repr(where)
    assert "me" not in where.url
    assert where_of(where.url) == where_of(text.replace("me:s%40crt@", ""))
    assert url.printable(text) == where.url


def test_credentials_come_from_the_environment_where_the_url_has_none() -> None:
    environ = {"CASSANDRA_USERNAME": "env", "CASSANDRA_PASSWORD": "secret"}
    assert where_of("cassandra://h1/k", environ).user == "env"
    assert where_of("cassandra://h1/k", environ).password == "secret"
    assert where_of("cassandra://me:other@h1/k", environ).user == "me"
    assert where_of("cassandra://me:other@h1/k", environ).password == "other"
    assert (where_of("cassandra://me@h1/k", environ).user, where_of("cassandra://me@h1/k", environ).password) == (
        "me",
        "secret",
    )


def test_a_url_without_a_keyspace_means_lockstead_and_one_copy() -> None:
    where = where_of("cassandra://h1")
    assert where.keyspace == "lockstead"
    assert where.replication_cql == "{'class': 'SimpleStrategy', 'replication_factor': 1}"


@pytest.mark.parametrize(
    "text",
    [
        "cassandra:h1/k",
        "cassandra:///k",
        "cassandra://h1:99999/k",
        "cassandra://h1/a/b",
        "cassandra://h1/1k",
        'cassandra://h1/k";DROP',
        "cassandra://h1/k?replication=0",
        "cassandra://h1/k?replication=dc1",
        "cassandra://h1/k?replication=dc1:3'}",
        "cassandra://h1/k?consistency=one",
        "cassandra://h1/k?tls=perhaps",
    ],
)
def test_what_is_no_url_of_a_cluster_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError) as told:
        url.open_store(text)
    assert "\n" not in str(told.value)


def test_a_client_is_a_function_that_makes_a_cluster() -> None:
    with pytest.raises(TypeError, match="function that makes a Cluster"):
        url.open_store("cassandra://h1/k", object())


# --- who answers -----------------------------------------------------------------------------------------------------


@contextmanager
def answering(said: bytes) -> Iterator[int]:
    """Listen as another server would: wait for a request, say something, hang up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            with one:
                one.settimeout(5.0)
                one.recv(100)
                one.sendall(said)
                one.shutdown(socket.SHUT_WR)
                one.recv(100)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10.0)


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b"\x15\x03\x03\x00\x02\x02P"]
)
def test_another_server_behind_the_port_is_named_as_such(said: bytes) -> None:
    with answering(said) as port:
        assert "is not Cassandra" in refusal(f"cassandra://127.0.0.1:{port}/k")


def test_a_server_that_is_too_old_is_told_with_the_version_it_takes() -> None:
    words = b"Invalid or unsupported protocol version: 4"
    body = struct.pack(">iH", 0x000A, len(words)) + words
    with answering(bytes((0x83, 0, 0, 0, 0)) + struct.pack(">i", len(body)) + body) as port:
        assert "Cassandra 2.2 or later" in refusal(f"cassandra://127.0.0.1:{port}/k")


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    assert "no node can be reached" in refusal("cassandra://127.0.0.1:1/k", kind=StoreUnavailable)


def test_a_server_that_says_nothing_holds_nobody_beyond_the_limit() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        opened(f"cassandra://127.0.0.1:{silent.getsockname()[1]}/k") as store,
    ):
        with pytest.raises(StoreUnavailable, match="not connected within the limit"):
            store.perform(Read(APT), 0.3)


def spoil(asking: Any, space: str, column: str) -> None:
    """Take a column of the lock's row away, as no statement of ours does."""
    at = "space = 'lock' AND key = 'apt' AND part = ''"
    asking.execute(f"UPDATE {space}.lockstead_record SET {column} = null WHERE {at} IF EXISTS")


# --- one node --------------------------------------------------------------------------------------------------------


@on_a_node
def test_a_name_that_is_longer_than_the_server_takes_is_refused(cassandra_place: CassandraPlace, space: str) -> None:
    text = cassandra_place.url(space)
    for name in (Name("a" * 70_000), Name("apt", Space.MEMBER, "a" * 70_000)):
        assert "longer than" in refusal(text, Create(name, {}))


HOSTILE = {
    "it is not said whether it is held": "held = null",
    "no count": "granted = null",
    "a count below zero": "granted = -7",
    "no incarnation": "incarnation = null",
    "no revision": "revision = null",
    "no fields": "fields = null",
    "nothing at all": "held = null, granted = null, incarnation = null, revision = null, fields = null",
    "a giant": "fields = {{'v': '1', 'identity': 'x', 'ttl': '60', 'purpose': '{giant}'}}",
    "many fields": "fields = {{'v': '1', 'identity': 'x', 'ttl': '60', {many}}}",
}


@on_a_node
@pytest.mark.parametrize("kind", HOSTILE)
def test_h24_an_unreadable_row_is_shown_and_can_be_removed(
    cassandra_place: CassandraPlace, space: str, kind: str
) -> None:
    many = ", ".join(f"'x{number}': '{'y' * 90}'" for number in range(700))
    with opened(cassandra_place.url(space)) as store, session(cassandra_place.server.port) as asking:
        with lockstead.Client(store) as client:
            yum = client.lock("yum", ttl=60).acquire(timeout=LIMIT)
            made = shows(store.perform(Create(APT, {"v": "1", "identity": "me", "ttl": "60"}), LIMIT))
            setting = HOSTILE[kind].format(giant="y" * 3_000_000, many=many)
            asking.execute(
                f"UPDATE \"{space}\".lockstead_record SET {setting} WHERE space='lock' AND key='apt' AND part=''"
            )
            apt = client.lock("apt", ttl=60)
            for ask in (apt.inspect, apt.try_acquire, lambda: apt.break_lease(reason="it is damaged")):
                with pytest.raises(StoreRefused, match="'apt' is damaged") as refused:
                    ask()
                assert "\n" not in str(refused.value)
            assert isinstance(store.perform(Create(APT, {}), LIMIT), Conflict)
            assert not isinstance(store.perform(Remove(APT, f"1-{uuid4()}"), LIMIT), Removed)
            if kind == "it is not said whether it is held":
                assert not isinstance(store.perform(Remove(APT, made.incarnation), LIMIT), Removed)
            shown = {one.key: one.decode_error for one in client.list()}
            assert set(shown) == {"apt", "yum"}
            assert shown["yum"] is None
            assert shown["apt"] is not None
            assert ("64 KiB" in shown["apt"]) == (kind in ("a giant", "many fields"))
            done = apt.break_lease(reason="it is damaged", now=True)
            assert done is not None
            assert done.removed
            assert apt.acquire(timeout=LIMIT).release()
            assert yum.release()


@on_a_node
def test_a_count_of_grants_after_which_there_is_none_is_refused(cassandra_place: CassandraPlace, space: str) -> None:
    with opened(cassandra_place.url(space)) as store, session(cassandra_place.server.port) as asking:
        made = shows(store.perform(Create(APT, {}), LIMIT))
        asking.execute(
            f'UPDATE "{space}".lockstead_record SET granted = {2**63 - 1} '
            "WHERE space='lock' AND key='apt' AND part=''"
        )
        seen = shows(store.perform(Read(APT), LIMIT))
        with pytest.raises(StoreRefused, match="the largest there is"):
            store.perform(Replace(APT, {}, seen.incarnation, seen.revision), LIMIT)
        assert isinstance(store.perform(Remove(APT, made.incarnation), LIMIT), Removed)
        with pytest.raises(StoreRefused, match="the largest there is"):
            store.perform(Create(APT, {}), LIMIT)


@on_a_node
def test_tokens_grow_despite_a_set_clock_or_a_lost_table(cassandra_place: CassandraPlace, space: str) -> None:
    from lockstead.stores.cassandra.store import CassandraStore

    now = [2_000.0]
    store = CassandraStore(where_of(cassandra_place.url(space)), wall=lambda: now[0])
    tokens = []
    for reading in (2_000.0, 1_000.0, 2_000.5):
        now[0] = reading
        made = shows(store.perform(Create(APT, {}), LIMIT))
        tokens.append(made.token)
        store.perform(Remove(APT, made.incarnation), LIMIT)
    assert tokens == [2_000_000, 2_000_001, 2_000_500]
    with session(cassandra_place.server.port) as asking:
        asking.execute(f"TRUNCATE {space}.lockstead_record", timeout=60.0)
    now[0] = 2_001.0
    assert shows(store.perform(Create(APT, {}), LIMIT)).token == 2_001_000
    store.close()


@on_a_node
def test_a_lock_that_is_free_leaves_its_row_and_a_member_leaves_none(
    cassandra_place: CassandraPlace, space: str
) -> None:
    member = Name("apt", Space.MEMBER, "1/a")
    with opened(cassandra_place.url(space)) as store, session(cassandra_place.server.port) as asking:
        for name in (APT, member):
            made = shows(store.perform(Create(name, {}), LIMIT))
            assert isinstance(store.perform(Remove(name, made.incarnation), LIMIT), Removed)
        rows = list(asking.execute(f"SELECT space, held FROM {space}.lockstead_record"))
        assert [(row.space, row.held) for row in rows] == [("lock", False)]


@on_a_node
def test_local_serial_keeps_the_same_contract(cassandra_place: CassandraPlace, space: str) -> None:
    with opened(cassandra_place.url(space) + "?consistency=local_serial") as store:
        made = shows(store.perform(Create(APT, {}), LIMIT))
        assert isinstance(store.perform(Create(APT, {}), LIMIT), Conflict)
        extended = shows(store.perform(Extend(APT, {"a": "1"}, made.incarnation), LIMIT))
        taken = shows(store.perform(Replace(APT, {}, extended.incarnation, extended.revision), LIMIT))
        assert isinstance(store.perform(Remove(APT, made.incarnation), LIMIT), Conflict)
        assert isinstance(store.perform(Remove(APT, taken.incarnation), LIMIT), Removed)


@on_a_node
def test_many_processes_that_find_no_table_make_one(cassandra_place: CassandraPlace, space: str) -> None:
    stores = [cassandra_place.open(space) for _ in range(6)]
    answers: list[object] = [None] * len(stores)

    def ask(number: int) -> None:
        try:
            answers[number] = stores[number].perform(Create(APT, {}), 60.0)
        except StoreError as error:
            answers[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90.0)
    won = [answer for answer in answers if isinstance(answer, Snapshot)]
    for store in stores:
        store.close()
    assert len(won) <= 1
    with opened(cassandra_place.url(space)) as store:
        seen = shows(store.perform(Read(APT), LIMIT))
        assert not won or seen.incarnation == won[0].incarnation


@on_a_node
def test_the_doctor_tells_of_one_copy_and_of_rows_that_vanish(cassandra_place: CassandraPlace, space: str) -> None:
    with opened(cassandra_place.url(space)) as store, session(cassandra_place.server.port) as asking:
        store.perform(Read(APT), LIMIT)
        assert isinstance(store, SupportsDiagnostics)
        asking.execute(f"ALTER TABLE {space}.lockstead_record WITH default_time_to_live = 60 AND gc_grace_seconds = 60")
        found = {finding.check: finding for finding in store.examine(Name, LIMIT)}
        assert found["keyspace.copies"].figures["copies"] == 1.0
        assert found["commit_log"].severity is Severity.OK
        assert found["table.lives"].severity is Severity.FAILURE
        assert found["table.grace"].severity is Severity.WARNING


# --- what is sent ----------------------------------------------------------------------------------------------------


class Repeating(RetryPolicy):  # type: ignore[misc]  # the driver has no types
    """A policy as a caller's own cluster may have it: everything is asked again."""

    asked = 0

    def _again(self, *_: object, **__: object) -> tuple[int, None]:
        Repeating.asked += 1
        return self.RETRY, None

    on_read_timeout = on_write_timeout = on_unavailable = on_request_error = _again


def is_statement(sent: bytes) -> bool:
    return any(opcode == EXECUTE for opcode, _ in frames(sent))


@on_a_node
def test_h25_each_command_sends_as_many_statements_as_the_page_says(
    cassandra_place: CassandraPlace, space: str
) -> None:
    with Proxy(cassandra_place.ports) as proxy, opened(cassandra_place.url(space, ports=proxy.ports)) as store:
        store.perform(Read(APT), LIMIT)
        sent: dict[str, int] = {}

        def ask(what: str, command: Any) -> Any:
            count, writes = proxy.count(is_statement), proxy.count(cassandra_place.is_write)
            answer = store.perform(command, LIMIT)
            sent[what] = count.total
            # what looks is asked with the consistency of Paxos, by which the place tells it from a write
            assert writes.total == (0 if isinstance(command, Read | List) else count.total - (what == "renew"))
            return answer

        made = ask("new", Create(APT, {}))
        ask("held", Create(APT, {}))
        ask("look", Read(APT))
        made = ask("renew", Extend(APT, {}, made.incarnation))
        made = ask("take over", Replace(APT, {}, made.incarnation, made.revision))
        ask("members", List(Space.MEMBER, "apt"))
        ask("release", Remove(APT, made.incarnation))
        ask("used", Create(APT, {}))
        once = dict.fromkeys(("new", "held", "look", "take over", "members", "release"), 1)
        assert sent == {**once, "renew": 2, "used": 2}


@on_a_node
@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.CUT_AFTER])
def test_h25_nothing_is_sent_twice_by_a_repeating_client(
    cassandra_place: CassandraPlace, space: str, fault: Fault
) -> None:
    Repeating.asked = 0

    def make() -> Cluster:
        profile = ExecutionProfile(
            retry_policy=Repeating(), speculative_execution_policy=ConstantSpeculativeExecutionPolicy(0.01, 5)
        )
        return Cluster(
            ["127.0.0.1"],
            port=proxy.ports[0],
            protocol_version=4,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(0.1),
            idle_heartbeat_interval=1,
            idle_heartbeat_timeout=1,
        )

    with Proxy(cassandra_place.ports) as proxy:
        store = url.open_store(cassandra_place.url(space, ports=proxy.ports), client=make)
        assert isinstance(store.perform(Read(APT), LIMIT), Absent)
        armed, writes = proxy.arm(fault, cassandra_place.is_write), proxy.count(cassandra_place.is_write)
        with pytest.raises(OutcomeUnknown):
            store.perform(Create(APT, {"identity": "me"}), 1.0)
        assert armed.hits == 1
        seen: list[Snapshot] = []

        def is_shown() -> bool:
            with suppress(StoreUnavailable):
                seen.append(shows(store.perform(Read(APT), 1.0)))
            return bool(seen)

        cassandra_place.server.until(is_shown, "the record is not shown")
        assert seen[-1].fields == {"identity": "me"}
        assert writes.total == 1
        assert Repeating.asked == 0
        store.close()


@on_a_node
def test_h02_a_late_write_meets_no_successor(cassandra_place: CassandraPlace, space: str) -> None:
    with Proxy(cassandra_place.ports) as proxy:
        with opened(cassandra_place.url(space, ports=proxy.ports)) as late, opened(cassandra_place.url(space)) as now:
            first = shows(late.perform(Create(APT, {"identity": "first"}), LIMIT))
            for command in (
                Extend(APT, {"late": "1"}, first.incarnation),
                Replace(APT, {"late": "1"}, first.incarnation, first.revision),
                Remove(APT, first.incarnation),
                Create(APT, {"late": "1"}),
            ):
                seen = shows(now.perform(Read(APT), LIMIT))
                assert seen.incarnation == first.incarnation
                if isinstance(command, Create):
                    now.perform(Remove(APT, first.incarnation), LIMIT)
                armed = proxy.arm(Fault.REQUEST_LATE, cassandra_place.is_write, seconds=2.0)
                with pytest.raises(OutcomeUnknown):
                    late.perform(command, 0.5)
                if not isinstance(command, Create):
                    now.perform(Remove(APT, first.incarnation), LIMIT)
                following = shows(now.perform(Create(APT, {"identity": "next"}), LIMIT))
                armed.wait_arrived()
                kept = shows(now.perform(Read(APT), LIMIT))
                assert (kept.incarnation, kept.revision) == (following.incarnation, following.revision)
                first = following


@on_a_node
def test_h13_a_forked_child_that_ends_spares_the_parent(cassandra_place: CassandraPlace, space: str) -> None:
    program = """
import os, sys, warnings, lockstead
warnings.simplefilter("ignore", DeprecationWarning)
client = lockstead.connect(sys.argv[1])
lease = client.lock("parent", ttl=60).acquire(30)
child = os.fork()
with client.lock("child" if child == 0 else "apt", ttl=60).acquire(30):
    pass
if child == 0:
    sys.exit(7)  # in good order: everything that registered itself for the end is run
_, status = os.waitpid(child, 0)
lease.check()
assert lease.release() is True
print(os.waitstatus_to_exitcode(status))
"""
    text = cassandra_place.url(space)
    done = subprocess.run(
        [sys.executable, "-c", program, text], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "7", "")


# --- one node that asks who one is -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    server = CassandraServer(tmp_path_factory.mktemp("strict"), is_strict=True)
    with server:
        server.until(lambda: _lets_in(server.port), "it has no superuser")
        yield server


def admin(port: int) -> Any:
    from cassandra.auth import PlainTextAuthProvider

    return session(port, auth_provider=PlainTextAuthProvider("cassandra", "cassandra"))


def _lets_in(port: int) -> bool:
    try:
        with admin(port):
            return True
    except Exception:
        return False


@on_a_node
class TestRightsAndTls:
    def test_a_wrong_password_and_none_are_refused_and_not_repeated(
        self, strict: CassandraServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for who in ("", "cassandra:hunter2@"):
            said = refusal(f"cassandra://{who}{strict.address}/k")
            assert "password is wrong or missing" in said
            assert "hunter2" not in said
        monkeypatch.setenv("CASSANDRA_USERNAME", "cassandra")
        monkeypatch.setenv("CASSANDRA_PASSWORD", "cassandra")
        with opened(f"cassandra://{strict.address}/k") as store:
            assert isinstance(store.perform(Read(APT), LIMIT), Absent)
            assert "cassandra:cassandra" not in store.url + repr(store)

    def test_a_role_that_cannot_create_is_told_what_to_run(self, strict: CassandraServer) -> None:
        with admin(strict.port) as asking:
            for role in ("nobody", "reader", "writer"):
                asking.execute(f"CREATE ROLE IF NOT EXISTS {role} WITH password = 'p' AND login = true")
            said = refusal(f"cassandra://nobody:p@{strict.address}/lockstead")
            for statement in said.partition("run: ")[2].split("; "):
                asking.execute(statement)
            for statement in (*recipe("Cassandra"), "GRANT lock_reader TO reader", "GRANT lock_contender TO writer"):
                asking.execute(statement)
        url = f"cassandra://{{}}:p@{strict.address}/lockstead"
        with lockstead.connect(url.format("writer")) as writer, lockstead.connect(url.format("reader")) as reader:
            lease = writer.lock("apt", ttl=60, owner="writer").acquire(timeout=LIMIT)
            shown = reader.lock("apt").inspect()
            assert shown is not None
            assert shown.owner == "writer"
            assert [one.key for one in reader.list()] == ["apt"]
            with pytest.raises(StoreRefused, match="SELECT and MODIFY"):
                reader.lock("apt").break_lease(reason="no", now=True)
            assert writer.lock("apt").break_lease(reason="it hangs", now=True) is not None
            assert [one.reason for one in reader.history("apt")] == ["it hangs"]
            lease.release()
        assert "SELECT and MODIFY" in refusal(url.format("nobody"))
        assert "SELECT and MODIFY" in refusal(url.format("reader"), Create(APT, {}))

    def test_tls_checks_the_servers_certificate(self, strict: CassandraServer) -> None:
        who = f"cassandra://cassandra:cassandra@{strict.address}/k"
        with opened(f"{who}?ca={strict.certificate}") as store:
            assert isinstance(store.perform(Read(APT), LIMIT), Absent)
        assert "TLS failed" in refusal(f"{who}?tls=true")

    def test_tls_to_a_port_without_it_is_refused(self, cassandra_place: CassandraPlace) -> None:
        assert "TLS failed" in refusal(cassandra_place.url("k") + "?tls=true")


# --- nodes that do not agree on the schema yet ------------------------------------------------------------------------


class Lagging:
    """A session whose statements meet, the first few times, nodes that have not heard of the keyspace."""

    def __init__(self, *, behind: int, never: bool = False) -> None:
        self.behind = behind
        self.never = never
        self.made: list[str] = []

    def prepare(self, _text: str) -> Any:
        self._meet()
        return SimpleNamespace()

    def execute(self, text: str, *_: object, **__: object) -> list[object]:
        if text.startswith("SELECT"):
            return ["it is there"]
        self.made.append(text)
        if text.startswith("CREATE TABLE"):
            self._meet()
        return []

    def _meet(self) -> None:
        if self.behind or self.never:
            self.behind -= 1
            raise cassandra.InvalidRequest("Keyspace 'locks' doesn't exist")


def test_nodes_that_have_not_heard_of_the_keyspace_yet_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_link, "AGREE_EVERY", 0.0)
    lagging = Lagging(behind=4)
    prepared = cassandra_link._prepared(lagging, None, where_of("cassandra://host/locks"))
    assert len(prepared) > 3
    assert all(text.startswith("CREATE TABLE") for text in lagging.made), "a keyspace that is there is not touched"


def test_nodes_that_never_agree_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_link, "AGREE_EVERY", 0.0)
    monkeypatch.setattr(cassandra_link, "STEP_LIMIT", 0.05)
    with pytest.raises(StoreUnavailable, match="do not agree on the schema yet"):
        cassandra_link._prepared(Lagging(behind=0, never=True), None, where_of("cassandra://host/locks"))
