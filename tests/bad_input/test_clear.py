"""Where a password may go: over TLS, to this machine, or where the URL says that it may go in clear."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

import lockstead
from lockstead.errors import StoreError, StoreRefused
from lockstead.stores import url as urls
from lockstead.stores.transport import is_local
from tests.bad_input.lines import SECRET
from tests.bad_input.test_limits import as_redis

ELSEWHERE: Final = {
    "redis": "redis://me:{password}@db.example.org/0",
    "sentinel": "redis+sentinel://me:{password}@db.example.org/service",
    "cluster": "redis+cluster://me:{password}@127.0.0.1,db.example.org",
    "redlock": "redlock://me:{password}@127.0.0.1,localhost,db.example.org",
    "etcd": "etcd://me:{password}@127.0.0.1,db.example.org/locks",
    "zk": "zk://me:{password}@db.example.org/locks",
    "cassandra": "cassandra://me:{password}@db.example.org/locks",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_clear_password_to_another_machine_needs_consent(name: str) -> None:
    url = ELSEWHERE[name].format(password=SECRET)
    with pytest.raises(StoreRefused, match=r"to db\.example\.org unencrypted; write .* or cleartext=true") as raised:
        urls.open_store(url)
    assert SECRET not in str(raised.value)
    for allowed in ("cleartext=true", "tls=true"):
        urls.open_store(f"{url}?{allowed}").close()
    assert "cleartext=true" in urls.printable(f"{url}?cleartext=true")
    urls.open_store(ELSEWHERE[name].format(password="").replace("me:@", "")).close()


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("redis", {"REDIS_PASSWORD": SECRET}),
        ("redlock", {"REDIS_PASSWORD": SECRET}),
        ("etcd", {"ETCDCTL_USER": f"root:{SECRET}"}),
        ("zk", {"ZOOKEEPER_USER": "me", "ZOOKEEPER_PASSWORD": SECRET}),
        ("cassandra", {"CASSANDRA_USERNAME": "me", "CASSANDRA_PASSWORD": SECRET}),
    ],
)
def test_a_password_of_the_environment_is_treated_alike(
    name: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(StoreRefused, match="unencrypted"):
        urls.open_store(ELSEWHERE[name].format(password="").replace("me:@", ""))


@pytest.mark.parametrize(
    ("host", "is_this_machine"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("localhost", True),
        ("a.localhost", True),
        ("/run/postgresql", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("fe80::1%lo", False),
    ],
)
def test_this_machine_is_known_by_its_addresses(host: str, is_this_machine: bool) -> None:
    assert is_local(host) is is_this_machine


# --- TLS is asked for by whatever is for TLS alone --------------------------------------------------------------------

TLS_ALONE: Final = [
    "redis://h/0?ssl_ca_certs=/ca.pem",
    "redis+sentinel://h/s?ssl_cert_reqs=required",
    "redis+cluster://h?ssl_certfile=/c.pem",
    "redlock://a,b,c?ssl_check_hostname=true",
]


@pytest.mark.parametrize("url", TLS_ALONE)
def test_a_setting_that_is_for_tls_alone_asks_for_tls(url: str) -> None:
    store: Any = urls.open_store(url)
    access = store._group.masters[0].access if hasattr(store, "_group") else store._access
    store.close()
    assert access.is_secure
    assert access.is_verified
    with pytest.raises(ValueError, match=r"tls=false and ssl_"):
        urls.open_store(f"{url}&tls=false")


@pytest.mark.parametrize("url", ["etcd://h?ca=/c.pem&tls=false", "zk://h?ca=/c&tls=false", "cassandra://h?ca=/c&tls=0"])
def test_no_tls_and_a_certificate_do_not_go_together(url: str) -> None:
    with pytest.raises(ValueError, match="tls=false and ca"):
        urls.open_store(url)


def test_the_host_is_checked_whatever_the_default_of_the_library_is() -> None:
    store: Any = urls.open_store("rediss://h/0")
    said = store._access.arguments(("h", 1), to_sentinel=False)
    assert (said["ssl_check_hostname"], said["ssl_cert_reqs"]) == (True, "required")
    loose: Any = urls.open_store("rediss://h/0?ssl_cert_reqs=none")
    assert loose._access.arguments(("h", 1), to_sentinel=False)["ssl_check_hostname"] is False


@pytest.mark.parametrize("variable", ["ETCDCTL_CACERT", "ETCDCTL_CERT"])
def test_a_certificate_that_etcdctl_takes_asks_for_tls(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstead.stores.etcd.url import target_of

    said = {variable: "/c.pem", **({"ETCDCTL_KEY": "/k.pem"} if variable == "ETCDCTL_CERT" else {})}
    assert target_of("etcd://h/x", said).tls
    assert not target_of("etcd://h/x?tls=false", said).tls
    assert not target_of("etcd://h/x", {}).tls


# --- servers that ask for more than they should -----------------------------------------------------------------------


@contextmanager
def listening(answers: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Answer each thing that is said with the next of these words; give the port, and what was said."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        for answer in answers:
                            said.append(client.recv(65536))
                            client.sendall(answer)
                        said.append(client.recv(65536))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], said
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5.0)


ASKS_FOR_PASSWORD: Final = [b"N", b"R" + struct.pack("!ii", 8, 3)]


def test_a_clear_password_is_sent_to_this_machine_only() -> None:
    with listening(ASKS_FOR_PASSWORD) as (port, said):
        # an address of this machine that is not known for one
        url = f"postgresql://me:{SECRET}@0.0.0.0:{port}/db?request_timeout=3&ttl=60#apt"
        with pytest.raises(StoreRefused, match=r"cleartext password.*sslmode=require"):
            lockstead.Lock(url).try_acquire()
        assert SECRET.encode() not in b"".join(said)
        with pytest.raises(StoreError):
            lockstead.Lock(url.replace("?", "?cleartext=true&")).try_acquire()
        assert SECRET.encode() in b"".join(said)


@pytest.mark.parametrize("named_by", ["service", "PGSERVICE", "PGHOSTADDR"])
def test_a_server_named_by_the_environment_gets_no_clear_password(
    named_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(ASKS_FOR_PASSWORD) as (port, said):
        (tmp_path / "services").write_text(f"[far]\nhost=0.0.0.0\nport={port}\nuser=me\npassword={SECRET}\n")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        host, option = "", ""
        if named_by == "service":
            option = "service=far&"
        elif named_by == "PGSERVICE":
            monkeypatch.setenv("PGSERVICE", "far")
        else:
            monkeypatch.setenv("PGHOSTADDR", "0.0.0.0")
            host = f"me:{SECRET}@localhost:{port}"
        url = f"postgresql://{host}/db?{option}request_timeout=3&ttl=60#apt"
        with pytest.raises(StoreRefused, match="cleartext password"):
            lockstead.Lock(url).try_acquire()
        assert said
        assert SECRET.encode() not in b"".join(said)


def test_a_redis_that_is_no_cluster_sends_nobody_elsewhere() -> None:
    with listening([b"+OK\r\n"]) as (elsewhere, heard), socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                as_redis(client)
                client.sendall(b"-ASK 1 127.0.0.1:%d\r\n" % elsewhere)
                client.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"redis://me:{SECRET}@127.0.0.1:{server.getsockname()[1]}/0?request_timeout=3&ttl=60#apt"
        with pytest.raises(StoreRefused, match=r"redis\+cluster://"):
            lockstead.Lock(url).try_acquire()
        thread.join(5.0)
    assert heard == []


# --- what a doctor says -----------------------------------------------------------------------------------------------


def test_a_doctor_says_who_can_read_what_is_sent() -> None:
    from lockstead.stores.transport import transport

    def found(host: str, **said: bool) -> tuple[str, str]:
        told = {"tls": False, "is_verified": False, "has_password": False, **said}
        finding = transport([host], way="tls=true", **told)
        assert finding.check == "transport"
        return finding.severity.value, finding.text

    assert found("127.0.0.1")[0] == "ok"
    assert found("h", tls=True, is_verified=True)[0] == "ok"
    assert found("h", tls=True) == ("warning", "TLS, but the server at h is not authenticated")
    assert found("h") == ("warning", "no TLS: anyone on the network path to h can read and change every lock")
    assert "read the password" in found("h", has_password=True)[1]
