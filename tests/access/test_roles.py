"""The three roles of docs/access.md: what each may do, with the recipes run as the page prints them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead.errors import StoreError, StoreRefused
from lockstead.protocol.commands import Command, Create, Extend, Read, Remove, Snapshot
from lockstead.stores import url as urls
from lockstead.stores.port import Store, SupportsFifoQueue, SupportsWatch
from lockstead.testing.conformance.base import created, is_a, listed, performing
from lockstead.testing.conformance.queueing import QueuePlace
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import TURN, Name, Space
from tests.servers.base import needed
from tests.servers.etcd import Etcd
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.redlock import PATIENT, RedlockPlace
from tests.servers.zookeeper import JARS, ZookeeperServer

PAGE = (Path(__file__).parents[2] / "docs/access.md").read_text("utf-8")
ROLES = ("contender", "operator", "reader")
ENTRY = Name("apt", Space.AUDIT, "00001700000000-forged")
LIMIT = 20.0


def recipe(title: str, number: int = 0) -> list[str]:
    """Return the lines of a code block below a heading of the page."""
    below = PAGE.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^```\w+\n(.*?)^```", below, re.DOTALL | re.MULTILINE)
    assert len(blocks) > number, f"the page has no recipe for {title}"
    return str(blocks[number]).splitlines()


class Roles:
    """A store, by the URL of each role."""

    def __init__(self, url_of: Callable[[str], str]) -> None:
        self._url_of = url_of

    def client(self, role: str) -> lockstead.Client:
        return lockstead.connect(self._url_of(role))

    def store(self, role: str) -> Store:
        return urls.open_store(self._url_of(role))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Roles]:
    server = PostgresServer().start()
    store = urls.open_store(server.url())
    store.perform(Read(Name("apt")), LIMIT)  # makes the tables
    store.close()
    server.tell(*(statement for statement in "\n".join(recipe("PostgreSQL")).split(";") if statement.strip()))
    for role in ROLES:
        server.tell(f"CREATE ROLE {role} LOGIN", f"GRANT lock_{role} TO {role}")
    yield Roles(lambda role: server.url(user=role))
    server.remove()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        for line in recipe("Redis"):
            assert server.says(*line.split()) == b"+OK\r\n"
        yield Roles(lambda role: f"redis://{role}:change-me@127.0.0.1:{server.port}/0")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    program = needed("etcdctl")
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        environment = os.environ | {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": server.address}
        for line in recipe("etcd"):
            words = line.split()
            assert words[0] == "etcdctl"
            subprocess.run([program, *words[1:]], env=environment, check=True, capture_output=True, timeout=60)
        for user in (*ROLES, "root"):
            server.ask("auth/user/add", {"name": user, "password": "change-me"})
        server.ask("auth/role/add", {"name": "root"})
        for user in (*ROLES, "root"):
            server.ask("auth/user/grant", {"user": user, "role": user})
        server.ask("auth/enable")
        yield Roles(lambda role: f"etcd://{role}:change-me@{server.address}/locks")


@pytest.fixture(scope="module")
def redlock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    place = RedlockPlace(tmp_path_factory.mktemp("redlock"))
    for server in place.servers:
        for line in recipe("Redlock"):
            assert server.says(*line.split()) == b"+OK\r\n"
    hosts = ",".join(f"127.0.0.1:{port}" for port in place.ports)
    yield Roles(lambda role: f"redlock://{role}:change-me@{hosts}/0?{PATIENT}")
    place.stop()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    directory = tmp_path_factory.mktemp("zookeeper")
    acl = directory / "lockstead.acl"
    acl.write_text("\n".join(recipe("ZooKeeper", 1)))
    classes = ":".join(f"{JARS}/{name}.jar" for name in ("zookeeper", "slf4j-simple", "commons-cli"))
    shell = [needed("java"), "-Xmx64m", "-cp", classes, "org.apache.zookeeper.ZooKeeperMain", "-server"]
    server = ZookeeperServer(directory).start()
    try:
        for line in recipe("ZooKeeper"):
            subprocess.run(
                [*shell, server.address, *shlex.split(line)], check=True, capture_output=True, text=True, timeout=60
            )
        yield Roles(lambda role: f"zk://{role}:change-me@{server.address}/lockstead?acl={acl}")
    finally:
        server.kill()


@pytest.fixture(params=["postgres", "redis", "redlock", "etcd", "zookeeper"])
def roles(request: pytest.FixtureRequest) -> Roles:
    found: Any = request.getfixturevalue(request.param)
    assert isinstance(found, Roles)
    return found


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(StoreRefused) as refused:
        act()
    assert "\n" not in str(refused.value)
    assert "change-me" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("role", ["contender", "operator"])
def test_who_contends_acquires_shares_waits_and_gives_back(roles: Roles, role: str) -> None:
    with roles.client(role) as client, roles.client(role) as other:
        lock = client.lock(f"held-by-{role}", ttl=60)
        lease = lock.acquire(timeout=10)
        member = other.lock(f"held-by-{role}", ttl=60).attach(lease.share())
        assert other.lock(f"held-by-{role}", ttl=60).try_acquire() is None
        member.release()
        assert lease.release()
        assert other.lock(f"held-by-{role}", ttl=60).acquire(timeout=10).release()


@pytest.mark.parametrize("role", ["contender", "operator"])
def test_who_contends_takes_permits_and_is_notified_of_others(roles: Roles, role: str) -> None:
    store, other = roles.store(role), roles.store(role)
    names = [Name(role, Space.PERMIT, part) for part in ("0", "1", TURN)]
    made = [created(performing(store, LIMIT), name) for name in names]
    assert set(listed(performing(other, LIMIT), Space.PERMIT, role)) == set(names)
    if isinstance(other, SupportsWatch):
        with Changed(other, names[0]) as slots, Changed(other, names[2]) as turn:
            slots.settle()
            turn.settle()
            store.perform(Remove(names[1], made[1].incarnation), LIMIT)
            assert slots.called(LIMIT)
            turn.seen.clear()
            store.perform(Remove(names[2], made[2].incarnation), LIMIT)
            assert turn.called(LIMIT)
    if isinstance(other, SupportsFifoQueue):
        with QueuePlace(other, "me/1", LIMIT, names[2]):
            pass
    for one in (store, other):
        one.close()


def test_a_reader_sees_everything_and_changes_nothing(roles: Roles) -> None:
    with roles.client("operator") as operator, roles.client("reader") as reader:
        lock = operator.lock("shown", ttl=60, owner="operator")
        with lock.hold(timeout=10):
            shown = reader.lock("shown").inspect()
            assert shown is not None
            assert shown.owner == "operator"
            assert "shown" in [one.key for one in reader.list()]
            refusal(lambda: reader.lock("shown").break_lease(reason="no", by="reader"))
            refusal(lambda: reader.lock("shown").break_lease(reason="no", by="reader", now=True))
            refusal(lambda: reader.lock("free", ttl=60).try_acquire())
        assert reader.history("shown") == []


def test_only_an_operators_break_writes_an_audit_entry(roles: Roles) -> None:
    with roles.client("contender") as contender, roles.client("operator") as operator:
        contender.lock("broken", ttl=60).acquire(timeout=10)
        assert operator.lock("broken").break_lease(reason="it hangs", by="me", now=True) is not None
        assert [entry.reason for entry in operator.history("broken")] == ["it hangs"]
        contender.lock("broken", ttl=60).acquire(timeout=10)
        contender.lock("broken").break_lease(reason="quietly", by="somebody else", now=True)
        assert [entry.reason for entry in operator.history("broken")] == ["it hangs"]


def test_a_contender_cannot_forge_or_remove_audit_entries(roles: Roles) -> None:
    contender, operator = roles.store("contender"), roles.store("operator")
    refusal(lambda: contender.perform(Create(ENTRY, {"v": "1", "by": "somebody else"}), LIMIT))
    made = is_a(Snapshot, operator.perform(Create(ENTRY, {"v": "1", "by": "me"}), LIMIT))
    forged: list[Command[Any]] = [Remove(ENTRY, made.incarnation), Extend(ENTRY, {"by": "else"}, made.incarnation)]
    for forging in forged:
        with pytest.raises(StoreError):
            contender.perform(forging, LIMIT)
    assert is_a(Snapshot, operator.perform(Read(ENTRY), LIMIT)).fields["by"] == "me"
    operator.perform(Remove(ENTRY, made.incarnation), LIMIT)
    for store in (contender, operator):
        store.close()


def test_an_operator_prunes_everything_a_contender_all_but_the_history_and_a_reader_nothing(roles: Roles) -> None:
    def left(role: str) -> None:
        """Leave the turn of a waiter that died, and an entry of the history."""
        turn = {"v": "1", "identity": "w/1", "ttl": "0.001"}
        name = Name(f"pruned-by-{role}", Space.PERMIT, TURN)
        assert is_a(Snapshot, store.perform(Create(name, turn, lifetime=0.001, min_retention=0.001), LIMIT))
        broken = store.perform(Create(Name(name.key, Space.AUDIT, "0-x"), {"v": "1", "at": "0"}), LIMIT)
        assert is_a(Snapshot, broken)

    asked: Any = {"older_than": 0, "history_older_than": 0, "per_second": 10_000}
    store = roles.store("operator")
    for role in ("reader", "contender", "operator"):
        left(role)
        with roles.client(role) as client:
            dry, result = client.prune(**asked, dry_run=True), client.prune(**asked)
            # PostgreSQL's policies hide a row from those who may not change it: it seems to have changed
            assert bool(result.refused or result.kept["changed"]) is (role != "operator")
            assert all("\n" not in line and "change-me" not in line for line in result.refused)
            assert (result.removed["history"] > 0) is (role == "operator")
            if dry.removed["turns"]:
                assert result.removed["turns"] == (0 if role == "reader" else dry.removed["turns"])
    store.close()
