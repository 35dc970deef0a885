"""Errors of an unusable ZooKeeper: one line that names what is wrong and what to do, of the right class."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, UnimplementedError
from kazoo.security import make_digest_acl

import lockstead
from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Create, Read, Snapshot
from lockstead.stores import url as store_urls
from lockstead.stores.bounds import Bounds
from lockstead.stores.zookeeper.answers import failure
from lockstead.stores.zookeeper.probe import _reply
from lockstead.stores.zookeeper.store import ZookeeperStore
from lockstead.stores.zookeeper.url import target_of
from tests.servers.base import free_port
from tests.servers.redis import certificate
from tests.servers.zookeeper import Ensemble, ZookeeperServer, asked
from tests.stores.zookeeper.server import APT, LIMIT, opened, server, space, taken, until

__all__ = ["server", "space"]


def said(url: str, limit: float = 1.0) -> StoreError:
    """Return the error of a store's first read."""
    store = opened(url)
    try:
        with pytest.raises(StoreError) as caught:
            store.perform(Read(APT), limit)
        assert "\n" not in str(caught.value)
        return caught.value
    finally:
        store.close()


@contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """A server of another kind: it sends one reply to any request; None: no reply."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            held.append(one)
            if answer is not None:
                try:
                    one.recv(4096)
                    one.sendall(answer)
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT)
        for one in [listener, *held]:
            one.close()


def test_a_port_without_a_server_is_unavailable_and_names_the_server() -> None:
    port = free_port()
    error = said(f"zk://127.0.0.1:{port}/locks")
    assert isinstance(error, StoreUnavailable)
    assert f"127.0.0.1:{port}" in str(error)
    assert "refused" in str(error)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b"\x00" * 64])
def test_another_server_behind_the_port_is_refused(answer: bytes) -> None:
    with answering(answer) as port:
        error = said(f"zk://127.0.0.1:{port}/locks")
        assert isinstance(error, StoreRefused)
        assert "not ZooKeeper" in str(error)


def test_a_server_that_hangs_is_unavailable_within_the_limit() -> None:
    with answering(None) as port:
        began_at = time.monotonic()
        error = said(f"zk://127.0.0.1:{port}/locks", 0.5)
        assert time.monotonic() - began_at < 10
        assert isinstance(error, StoreUnavailable)
        assert "does not answer like ZooKeeper" in str(error)


def test_an_ensemble_without_a_majority_says_so(tmp_path: Path) -> None:
    ensemble = Ensemble(tmp_path / "ensemble")
    lonely = ensemble.servers[0]
    lonely.launch()
    try:
        until(lambda: isinstance(_attempt(lonely), StoreUnavailable) and "majority" in str(_attempt(lonely)))
    finally:
        lonely.kill()


def _attempt(one: ZookeeperServer) -> StoreError:
    return said(f"zk://{one.address}/locks")


def test_another_users_nodes_and_a_wrong_password_are_refused(
    server: ZookeeperServer, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = opened(space.replace("zk://", "zk://me:secret%2F1@"))
    taken(mine)
    mine.close()
    for credentials in ("", "me:wr0ng@", "other:secret%2F1@"):
        error = said(space.replace("zk://", f"zk://{credentials}"))
        assert isinstance(error, StoreRefused)
        assert "allows no access" in str(error)
        assert "wr0ng" not in str(error)
        assert "secret" not in str(error)
    monkeypatch.setenv("ZOOKEEPER_USER", "me")
    monkeypatch.setenv("ZOOKEEPER_PASSWORD", "secret/1")
    from_environment = opened(space)
    assert isinstance(from_environment.perform(Read(APT), LIMIT), Snapshot)
    from_environment.close()


def test_a_closed_root_is_refused_and_a_prepared_path_works(server: ZookeeperServer, space: str) -> None:
    name = space.rpartition("/")[2]
    with asked(server.address) as admin:
        admin.add_auth("digest", "admin:admin")
        admin.create(f"/{name}", acl=[make_digest_acl("admin", "admin", all=True)])
        admin.create(f"/{name}/locks", acl=[make_digest_acl("admin", "admin", all=True), *_for("me", "pw")])
    refused = opened(f"{space}/mine".replace("zk://", "zk://me:pw@"))
    with pytest.raises(StoreRefused, match="allows no access"):
        refused.perform(Create(APT, {}, 30.0, "me"), LIMIT)
    refused.close()
    allowed = opened(f"{space}/locks".replace("zk://", "zk://me:pw@"))
    taken(allowed)
    allowed.close()


def test_a_break_is_audited_with_an_acl_of_hosts_only(space: str, tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text("ip:127.0.0.1:cdrwa")
    with lockstead.connect(f"{space}?acl={file}") as client:
        client.lock("apt", ttl=20).acquire()
        client.lock("apt").break_lease(reason="it hangs", by="me", now=True)
        assert [(entry.by, entry.reason) for entry in client.history()] == [("me", "it hangs")]


def _for(user: str, password: str) -> list[object]:
    return [make_digest_acl(user, password, create=True, read=True, write=True, delete=True)]


def test_a_server_that_is_too_old_is_told_the_version_that_is_needed() -> None:
    error = failure(UnimplementedError(), writes=True)
    assert isinstance(error, StoreRefused)
    assert "3.4" in str(error)


def test_what_nobody_knows_is_an_unknown_outcome_if_it_writes() -> None:
    assert type(failure(KazooException("?"), writes=True)).__name__ == "OutcomeUnknown"
    assert type(failure(KazooException("?"), writes=False)).__name__ == "StoreUnavailable"


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZookeeperServer, int, Path]]:
    """Return a server with a plain and a TLS port, the latter, and the file of its authority."""
    folder = tmp_path_factory.mktemp("secured")
    made, key = certificate(folder)
    both = folder / "both.pem"
    both.write_text(_pkcs8(key) + made.read_text())
    port = free_port()
    properties = {
        "zookeeper.serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "zookeeper.ssl.keyStore.location": str(both),
        "zookeeper.ssl.clientAuth": "none",
        "zookeeper.ssl.trustStore.location": str(made.rename(folder / "ca.pem")),
    }
    running = ZookeeperServer(folder / "server", settings={"secureClientPort": str(port)}, properties=properties)
    with running:
        yield running, port, folder / "ca.pem"


def _pkcs8(key: Path) -> str:
    command = ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", str(key)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_tls_works_with_the_servers_authority(secured: tuple[ZookeeperServer, int, Path]) -> None:
    _, port, authority = secured
    store = opened(f"zk://127.0.0.1:{port}/locks?ca={authority}")
    taken(store)
    assert store.url == f"zk://127.0.0.1:{port}/locks?ca={authority}"
    store.close()


def test_tls_errors_are_reported_and_leave_no_socket(
    secured: tuple[ZookeeperServer, int, Path],
) -> None:
    plain, port, authority = secured
    for url in (f"zk://127.0.0.1:{port}/locks?tls=true", f"zk://{plain.address}/locks?ca={authority}"):
        error = said(url, 3.0)
        assert isinstance(error, StoreRefused)
        assert str(error).startswith("no TLS with the ZooKeeper at 127.0.0.1")
    assert "TLS" in str(said(f"zk://127.0.0.1:{port}/locks", 3.0))
    # a socket that was left open is a warning of the collector, and that an error of this test
    gc.collect()


# --- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("zk://", "names no server"),
        ("zk:///locks", "names no server"),
        ("zk://a,,b/locks", "names no server"),
        ("zk://host:0/locks", "names no server"),
        ("zk://host:99999/locks", "names no server"),
        ("zk://host/a//b", "no empty pieces"),
        ("zk://host/../b", "no empty pieces"),
        ("zk://host/a%0Ab", "no control characters"),
        ("zk://host/zookeeper/locks", "belongs to the server itself"),
        ("zk://host/locks?session=0.1", "session is 0.1 s"),
        ("zk://host/locks?session=abc", "session"),
        ("zk://host/locks?tls=maybe", "tls is true or false"),
    ],
)
def test_a_url_that_is_none_is_refused_without_repeating_it(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        store_urls.open_store(url.replace("zk://", "zk://me:pa55@") if "//host" in url else url)
    assert "pa55" not in str(caught.value)


def test_h22_a_printable_url_has_no_credentials_and_the_same_store() -> None:
    for text, shown in (
        ("zk://me:secret@h1,h2:2182/a/b", "zk://h1:2181,h2:2182/a/b"),
        ("zk://h1", "zk://h1:2181/lockstead"),
        ("zk://[::1]:2181/a%20b", "zk://[::1]:2181/a%20b"),
        ("zk://me@h1/a?session=30s&tls=true", "zk://h1:2181/a?session=30&tls=true"),
        ("zk://me@h1/a?acl=/etc/acl", "zk://h1:2181/a?acl=/etc/acl"),
        ("zk://h1/a?ca=/x.pem&cert=/c.pem&key=/k.pem", "zk://h1:2181/a?ca=/x.pem&cert=/c.pem&key=/k.pem"),
    ):
        assert store_urls.printable(text) == shown
        assert store_urls.printable(shown) == shown
        with_environment = target_of(shown, {"ZOOKEEPER_USER": "me", "ZOOKEEPER_PASSWORD": "secret"})
        assert (with_environment.user, with_environment.password) == ("me", "secret")
        assert "secret" not in repr(with_environment)
    with_user = target_of("zk://anna@h1", {"ZOOKEEPER_USER": "me", "ZOOKEEPER_PASSWORD": "secret"})
    assert (with_user.user, with_user.password) == ("anna", "secret")


def test_a_client_factory_is_accepted_and_nothing_else(server: ZookeeperServer, space: str) -> None:
    made: list[KazooClient] = []

    def make() -> KazooClient:
        made.append(KazooClient(hosts=server.address, timeout=5.0))
        return made[-1]

    store = store_urls.open_store(space, make)
    assert isinstance(store, ZookeeperStore)
    taken(store)
    store.close()
    assert len(made) == 1
    assert not made[0].connected
    for wrong in ("client", KazooClient()):
        with pytest.raises(TypeError, match="function that returns a KazooClient"):
            store_urls.open_store(space, wrong)


def test_without_kazoo_the_line_says_what_to_type() -> None:
    program = (
        "import sys\nsys.modules['kazoo'] = None\nfrom lockstead.stores import url\n"
        "print(url.printable('zk://me:x@host'), url.parse_lock('zk://host#apt').key)\n"
        "try: url.open_store('zk://host')\nexcept Exception as error: print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    shown, refused = run.stdout.splitlines()
    assert shown == "zk://host:2181/lockstead apt"
    assert refused == "StoreRefused the ZooKeeper store needs kazoo: pip install 'lockstead[zookeeper]'"


@pytest.mark.parametrize(
    "written", ["", "digest:me:hash", "digest:me:h4sh=:cdrwx", "world:anyone:r,,\nnonsense h4sh", "\xff"]
)
def test_an_invalid_acl_file_is_refused_without_showing_a_hash(tmp_path: Path, written: str) -> None:
    file = tmp_path / "acl"
    file.write_bytes(written.encode("latin-1"))
    with pytest.raises(StoreRefused, match=rf"{file}.*(is not SCHEME:ID:RIGHTS|is not text)") as refused:
        opened(f"zk://h1/locks?acl={file}")
    assert "h4sh" not in str(refused.value)


def test_an_acl_file_must_exist_and_excludes_an_own_client(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match=r"cannot be read: .*No such file"):
        opened(f"zk://h1/locks?acl={tmp_path}/none")
    with pytest.raises(ValueError, match="set default_acl on yours"):
        store_urls.open_store("zk://h1/locks?acl=x", KazooClient)


def test_the_beginning_of_an_answer_is_that_of_a_slow_zookeeper() -> None:
    whole = b"Zookeeper version: 3.9"
    for count, kind in ((0, "mute"), (4, "mute"), (len(whole), "serves")):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(whole[:count])
            assert _reply("host:1", ours, Bounds(0.1), b"srvr").kind == kind
