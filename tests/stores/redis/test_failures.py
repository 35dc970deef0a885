"""Errors of a Redis that takes no writes, is gone, is stopped, or is something else altogether."""

from __future__ import annotations

import shutil
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

import lockstead
from lockstead.errors import LeaseLost, LossReason, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Absent, Create, Extend, List, Read, Remove, Removed, Snapshot
from lockstead.stores import url
from lockstead.stores.redis.errors import RIGHTS, refusal, unconnected
from lockstead.stores.redis.resp import ServerError
from lockstead.stores.redis.store import RedisStore
from lockstead.testing.conformance.waiting import Changed
from lockstead.values import Name, Space
from tests.servers.redis import ClusterServer, RedisServer, SecureRedisServer, SentinelServer, certificate
from tests.stores.redis.usage import APT, LIMIT, made, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[Any]:
    with server.client() as client:
        yield client


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = opened(f"redis://{server.address}")
    yield store
    store.close()


def opened(text: str) -> RedisStore:
    store = url.open_store(text)
    assert isinstance(store, RedisStore)
    return store


def works(store: RedisStore) -> bool:
    try:
        granted = store.perform(Create(Name("probe"), {}), 2.0)
        return isinstance(granted, Snapshot) and isinstance(
            store.perform(Remove(Name("probe"), granted.incarnation), 2.0), Removed
        )
    except StoreError:
        return False


# --- states in which it takes no writes --------------------------------------------------------------------------


def test_a_server_that_cannot_save_can_still_be_read(tmp_path: Path) -> None:
    in_the_way = tmp_path / "redis" / "dump.rdb" / "full"
    with RedisServer(tmp_path / "redis") as server, server.client() as admin:
        store = opened(f"redis://{server.address}")
        first = made(store)
        admin.config_set("save", "3600 1")
        in_the_way.mkdir(parents=True)
        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        for command in (Create(Name("b"), {}), Extend(APT, {}, None), Remove(APT, first.incarnation)):
            with pytest.raises(StoreUnavailable, match="disk"):
                store.perform(command, LIMIT)  # type: ignore[arg-type]  # commands of several kinds
        assert isinstance(store.perform(Read(APT), LIMIT), Snapshot)
        assert isinstance(store.perform(Read(Name("b")), LIMIT), Absent)
        shutil.rmtree(in_the_way.parent)
        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "ok")
        assert isinstance(store.perform(Extend(APT, {}, first.incarnation), LIMIT), Snapshot)
        store.close()


def test_a_server_out_of_memory_still_allows_releases(store: RedisStore, admin: Any) -> None:
    first = made(store)
    admin.config_set("maxmemory", "1")
    for command in (Create(Name("b"), {}), Extend(APT, {"n": "1"}, first.incarnation)):
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            store.perform(command, LIMIT)  # type: ignore[arg-type]  # commands of several kinds
    assert isinstance(store.perform(Read(APT), LIMIT), Snapshot)
    assert isinstance(store.perform(Remove(APT, first.incarnation), LIMIT), Removed)
    admin.config_set("maxmemory", "0")
    assert works(store)


def test_a_replica_is_unavailable_from_the_start_or_later(store: RedisStore, admin: Any) -> None:
    made(store)
    admin.replicaof("127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="replica"):
        store.perform(Create(Name("b"), {}), LIMIT)
    fresh = opened(store.url)
    with pytest.raises(StoreUnavailable, match="replica"):
        fresh.perform(Read(APT), LIMIT)  # what a replica shows may be old
    admin.replicaof("NO", "ONE")
    assert works(store)
    assert works(fresh)
    fresh.close()


def test_too_few_replicas_are_told(store: RedisStore, admin: Any) -> None:
    admin.config_set("min-replicas-to-write", "1")
    with pytest.raises(StoreUnavailable, match="min-replicas"):
        store.perform(Create(APT, {}), LIMIT)
    admin.config_set("min-replicas-to-write", "0")
    assert works(store)


def test_a_server_that_is_kept_busy_by_a_script_is_unavailable(
    store: RedisStore, server: RedisServer, admin: Any
) -> None:
    admin.config_set("busy-reply-threshold", "10")
    works(store)
    with server.client() as other:
        looping = threading.Thread(target=lambda: _ignoring(lambda: other.eval("while true do end", 0)), daemon=True)
        looping.start()
        until(lambda: b"BUSY" in server.says("PING"))
        with pytest.raises(StoreUnavailable, match="script"):
            store.perform(Create(APT, {}), LIMIT)
        server.says("SCRIPT", "KILL")
        looping.join(LIMIT)
    until(lambda: works(store))


def _ignoring(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:
        pass


def test_a_server_without_a_free_connection_is_unavailable(server: RedisServer, admin: Any) -> None:
    admin.ping()
    admin.config_set("maxclients", "1")
    store = opened(f"redis://{server.address}")
    with pytest.raises(StoreUnavailable, match="maxclients"):
        store.perform(Create(APT, {}), LIMIT)
    admin.config_set("maxclients", "100")
    assert works(store)
    store.close()


@pytest.mark.parametrize(
    ("said", "kind", "word"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable, "start"),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable, "master"),
        ("CLUSTERDOWN Hash slot not served", StoreUnavailable, "Cluster"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable, "slot"),
        ("ERR Error running script (call to f_1): @user_script:3: -OOM not allowed", StoreUnavailable, "maxmemory"),
        ("ERR Error running script (call to f_1): @user_script:3: -READONLY You can't", StoreUnavailable, "replica"),
        ("ERR Error running script (call to f_1): @user_script:4: WRONGTYPE Operation", StoreRefused, "?prefix="),
        ("ERR Error running script (call to f_1): @user_script: 3: Write commands not allowed after non deterministic "
         "commands", StoreRefused, "5.0"),
        ("ERR unknown command 'EVALSHA'", StoreRefused, "5.0"),
        ("CROSSSLOT Keys in request don't hash to the same slot", StoreRefused, "slot"),
        ("DENIED Redis is running in protected mode", StoreRefused, "protected"),
        ("NOAUTH Authentication required.", StoreRefused, "REDIS_PASSWORD"),
        ("Authentication required.", StoreRefused, "REDIS_PASSWORD"),
        ("ERR something new", OutcomeUnknown, "something new"),
    ],
)  # fmt: skip
def test_what_a_server_answers_is_told_by_what_can_be_done(said: str, kind: type[StoreError], word: str) -> None:
    told = refusal(ServerError(said), "h:1")
    assert type(told) is kind
    assert word in str(told)
    assert "\n" not in str(told)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("NOAUTH Authentication required.", StoreRefused),
        ("WRONGPASS invalid username-password pair or user is disabled.", StoreRefused),
        ("NOPERM User default has no permissions to run the 'select' command", StoreRefused),
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
        ("ERR max number of clients reached", StoreUnavailable),
        ("ERR DB index is out of range", StoreRefused),
    ],
)
def test_a_login_error_without_a_code_is_reported(said: str, kind: type[StoreError]) -> None:
    from redis._parsers.base import BaseParser

    told = unconnected(BaseParser.parse_error(said), "h:1", is_secure=False)
    assert (type(told), str(told)) == (kind, str(refusal(ServerError(said), "h:1")))


# --- gone, and back ----------------------------------------------------------------------------------------------


def test_h12_h21_an_empty_restart_loses_the_lease_and_no_token(
    server: RedisServer,
) -> None:
    with lockstead.connect(f"redis://{server.address}") as client:
        lease = client.lock("apt", ttl=8).acquire()
        before = lease.token
        server.kill()
        server.start()
        until(lambda: not lease.is_held)
        with pytest.raises(LeaseLost) as lost:
            lease.check()
        assert lost.value.reason is LossReason.GONE
        with client.lock("apt", ttl=8).acquire(timeout=30) as again:
            assert again.token > before


def test_nobody_there_is_unavailable_and_there_again_is_enough(store: RedisStore, server: RedisServer) -> None:
    made(store)
    server.kill()
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        store.perform(Read(APT), LIMIT)
    with pytest.raises(StoreUnavailable, match="cannot connect to Redis"):
        store.perform(Create(APT, {}), LIMIT)
    server.start()
    assert works(store)


def test_a_stopped_server_is_an_unknown_outcome_within_the_limit(store: RedisStore, server: RedisServer) -> None:
    made(store)
    server.pause()
    try:
        began_at = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            store.perform(Extend(APT, {}, None), 0.5)
        # connecting to what stands still ends there as well, and certainly sent nothing
        with pytest.raises(StoreUnavailable):
            store.perform(Extend(APT, {}, None), 0.5)
        with pytest.raises(StoreError):
            store.perform(List(Space.LOCK), 0.5)
        assert time.monotonic() - began_at < 15
        with Changed(store):
            pass
        assert time.monotonic() - began_at < 15
    finally:
        server.resume()
    until(lambda: works(store))


def test_h03_a_waiter_outlives_an_outage(server: RedisServer) -> None:
    with (
        lockstead.connect(f"redis://{server.address}") as client,
        lockstead.connect(f"redis://{server.address}") as other,
    ):
        held = client.lock("apt", ttl=8).acquire()
        taken: list[bool] = []

        def wait() -> None:
            with other.lock("apt", ttl=8).acquire(timeout=60) as lease:
                taken.append(lease.is_held)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        time.sleep(0.3)
        server.kill()
        time.sleep(0.5)
        server.start()
        waiter.join(60)
        assert taken == [True]
        _ignoring(held.release)


# --- who one is --------------------------------------------------------------------------------------------------


def refused(text: str, environment: pytest.MonkeyPatch | None = None) -> str:
    store = opened(text)
    with pytest.raises(StoreRefused) as error:
        store.perform(Create(APT, {}), LIMIT)
    store.close()
    said = str(error.value)
    assert "\n" not in said
    assert "s3cret" not in said
    return said


def test_h22_passwords_are_asked_for_and_never_shown(
    server: RedisServer, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "REDIS_PASSWORD" in refused(f"redis://:s3cret@{server.address}")  # there is none
    admin.config_set("requirepass", "s3cret")
    assert "REDIS_PASSWORD" in refused(f"redis://{server.address}")
    assert "user and password" in refused(f"redis://:s3cret-wrong@{server.address}")
    store = opened(f"redis://:s3cret@{server.address}")
    assert works(store)
    assert store.url == f"redis://{server.address}"
    assert "s3cret" not in repr(store) + repr(store._access)
    monkeypatch.setenv("REDIS_PASSWORD", "s3cret")
    by_environment = opened(store.url)
    assert works(by_environment)
    for one in (store, by_environment):
        one.close()


@pytest.mark.parametrize("user", ["", "anna"])
def test_h22_a_server_that_repeats_the_login_in_its_error_shows_no_password(tmp_path: Path, user: str) -> None:
    with RedisServer(tmp_path, None, "--rename-command", "AUTH", "") as renamed:
        assert b"s3cret" in renamed.says("AUTH", "s3cret")
        store = opened(f"redis://{user}:s3cret@{renamed.address}")
        with pytest.raises(StoreRefused, match="commands were renamed") as error:
            store.perform(Create(APT, {}), LIMIT)
        store.close()
    assert "s3cret" not in "".join(traceback.format_exception(error.value))


def test_an_error_at_login_that_is_not_known_is_not_repeated() -> None:
    told = unconnected(ResponseError("ERR odd: AUTH s3cret"), "host:1", is_secure=False)
    assert isinstance(told, StoreUnavailable)
    assert "s3cret" not in str(told)


def test_a_user_without_the_rights_is_told_so(server: RedisServer, admin: Any) -> None:
    admin.execute_command("ACL", "SETUSER", "anna", "on", ">s3cret", "~other:*", "+@all")
    told = refused(f"redis://anna:s3cret@{server.address}")
    assert f"may not do that: grant it {RIGHTS}" in told
    page = (Path(__file__).parents[3] / "docs/access.md").read_text("utf-8")
    assert RIGHTS.replace("PREFIX", "lockstead") in page


def test_the_documented_rights_are_enough(server: RedisServer, admin: Any) -> None:
    rights = [word for word in RIGHTS.split() if word.startswith("+")]
    admin.execute_command("ACL", "SETUSER", "anna", "on", ">s3cret", "~lockstead:*", "resetchannels", "-@all", *rights)
    store = opened(f"redis://anna:s3cret@{server.address}")
    assert works(store)
    first = made(store)
    admin.zadd("lockstead:{apt}:waiters", {"lockstead:wake:x": 1})
    assert isinstance(store.perform(Remove(APT, first.incarnation), LIMIT), Removed)
    admin.execute_command("ACL", "SETUSER", "anna", "&lockstead:*")
    second = made(store)
    with Changed(store) as changes:
        until(lambda: admin.zcard("lockstead:{apt}:waiters") == 1)
        assert isinstance(store.perform(Remove(APT, second.incarnation), LIMIT), Removed)
        assert changes.called(LIMIT)
    store.perform(List(Space.LOCK), LIMIT)
    store.close()


def test_a_database_that_is_not_there_is_told(server: RedisServer) -> None:
    assert "database" in refused(f"redis://{server.address}/99")


# --- something else behind the port ------------------------------------------------------------------------------


@contextmanager
def something(says: bytes, *, at_once: bool = False) -> Iterator[int]:
    """Run a server that answers everything with the same, or says it unasked."""

    class Answering(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if at_once:
                self.request.sendall(says)
                self.request.recv(1000)
                return
            while self.request.recv(65536):
                if not says:
                    return
                self.request.sendall(says)

    class Threads(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Threads(("127.0.0.1", 0), Answering) as listening:
        serving = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        yield listening.server_address[1]
        listening.shutdown()
        serving.join()


def test_another_server_behind_the_port_is_told(tmp_path: Path) -> None:
    with something(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert "not Redis" in refused(f"redis://127.0.0.1:{port}")
    with something(b"SSH-2.0-OpenSSH_9\r\n", at_once=True) as port:
        assert "not Redis" in refused(f"redis://127.0.0.1:{port}")
    with something(b"") as port:
        store = opened(f"redis://127.0.0.1:{port}")
        with pytest.raises(StoreUnavailable, match="TLS"):
            store.perform(Create(APT, {}), LIMIT)
        store.close()


def test_tls_on_one_side_alone_is_told(server: RedisServer, tmp_path: Path) -> None:
    wants_tls = opened(f"rediss://{server.address}")
    with pytest.raises(StoreUnavailable, match="redis://"):
        wants_tls.perform(Create(APT, {}), 1.0)
    wants_tls.close()
    made_certificate, key = certificate(tmp_path)
    with SecureRedisServer(tmp_path / "tls", made_certificate, key) as secure:
        plain = opened(f"redis://{secure.address}")
        with pytest.raises((StoreUnavailable, StoreRefused), match="rediss://"):
            plain.perform(Create(APT, {}), LIMIT)
        plain.close()
        assert "ssl_ca_certs" in refused(f"rediss://{secure.address}")


def test_servers_sentinels_and_nodes_are_not_taken_for_one_another(server: RedisServer, tmp_path: Path) -> None:
    assert "Sentinel" in refused(f"redis+sentinel://{server.address}/locks")
    assert "write redis://" in refused(f"redis+cluster://{server.address}")
    with SentinelServer(tmp_path / "sentinel", server, 1) as sentinel:
        assert "redis+sentinel://" in refused(f"redis://{sentinel.address}")
        assert "knows no service" in refused(f"redis+sentinel://{sentinel.address}/other").replace(
            "know no", "knows no"
        )
        by_sentinel = opened(f"redis+sentinel://{sentinel.address}/locks")
        assert works(by_sentinel)
        by_sentinel.close()
    with ClusterServer(tmp_path / "node") as node:
        half = opened(f"redis+cluster://{node.address}")
        with pytest.raises(StoreUnavailable, match="Cluster"):
            half.perform(Create(APT, {}), LIMIT)
        half.close()
        assert node.says("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == b"+OK\r\n"
        until(lambda: b"cluster_state:ok" in node.says("CLUSTER", "INFO"))
        whole = opened(f"redis+cluster://{node.address}")
        assert works(whole)
        whole.close()


def test_an_address_that_swallows_everything_is_left_within_the_limit() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        store = opened(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        began_at = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.perform(Create(APT, {}), 0.3)
        assert time.monotonic() - began_at < 10
        store.close()
