"""Access to an etcd, and the one-line errors if it fails: TLS, passwords, other servers, no space."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.server
import ipaddress
import json
import socketserver
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import lockstead
from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Conflict, Create, Extend, Read, Remove, Removed
from lockstead.stores import url as urls
from lockstead.stores.etcd.encoding import Request, Response
from lockstead.stores.etcd.errors import LeaseGone, answered
from lockstead.stores.examination import Severity
from lockstead.stores.port import AsyncStore, ShowsQueue, Store, SupportsDiagnostics, SupportsFifoQueue
from lockstead.testing.conformance.base import is_a, shows
from lockstead.values import Name, Space
from tests.servers.base import free_port
from tests.servers.etcd import Etcd, EtcdPlace, ask
from tests.stores.etcd.test_queue import until

APT = Name("apt")
LIMIT = 20.0


def cycle(store: Store) -> None:
    made = shows(store.perform(Create(APT, {"v": "1"}, 60.0, "me", 60.0), LIMIT))
    shows(store.perform(Extend(APT, {}, made.incarnation, lifetime=60.0), LIMIT))
    is_a(Removed, store.perform(Remove(APT, made.incarnation), LIMIT))


def refusal(store: Store) -> str:
    """The one line that a command is refused with."""
    try:
        with pytest.raises(StoreRefused) as failure:
            store.perform(Create(APT, {"v": "1"}, 60.0, "", 60.0), LIMIT)
        awaits = is_a(AsyncStore, store)  # type: ignore[type-abstract]
        with pytest.raises(StoreRefused):
            asyncio.run(awaits.aperform(Read(APT), LIMIT))
    finally:
        store.close()
    line = str(failure.value)
    assert "\n" not in line
    return line


# --- TLS --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Papers:
    """An authority, and a certificate with its key that it signed, as PEM files."""

    authority: Path
    cert: Path
    key: Path


def papers(directory: Path) -> Papers:
    """Make an authority of our own, and a certificate for 127.0.0.1, good for servers and clients."""
    directory.mkdir()
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begun(subject: str) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("authority"))
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        return made.not_valid_after(now + datetime.timedelta(days=1))

    root = begun("authority").public_key(root_key.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    leaf = begun("etcd").public_key(key.public_key())
    leaf = leaf.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
    found = Papers(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    pem = serialization.Encoding.PEM
    found.authority.write_bytes(root.sign(root_key, hashes.SHA256()).public_bytes(pem))
    found.cert.write_bytes(leaf.sign(root_key, hashes.SHA256()).public_bytes(pem))
    plain = serialization.NoEncryption()
    found.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("papers") / "ours")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, ours: Papers) -> Iterator[Etcd]:
    """An etcd that speaks TLS, and demands a client certificate."""
    options = ["--cert-file", ours.cert, "--key-file", ours.key, "--trusted-ca-file", ours.authority]
    server = Etcd(tmp_path_factory.mktemp("secure"), options=[*map(str, options), "--client-cert-auth"], scheme="https")
    with server:
        yield server


def url(server: Etcd, ours: Papers | None = None, *, cert: bool = True) -> str:
    if ours is None:
        return f"etcd://{server.address}/locks"
    own = f"&cert={ours.cert}&key={ours.key}" if cert else ""
    return f"etcd://{server.address}/locks?ca={ours.authority}{own}"


def test_tls_with_a_client_certificate_blocking_awaiting_and_waiting(secure: Etcd, ours: Papers) -> None:
    store = urls.open_store(url(secure, ours))
    cycle(store)
    awaits = is_a(AsyncStore, store)  # type: ignore[type-abstract]
    asyncio.run(awaits.aperform(Read(APT), LIMIT))
    held = shows(store.perform(Create(APT, {"v": "1"}, 60.0, "me", 60.0), LIMIT))
    queues = is_a(SupportsFifoQueue, store)  # type: ignore[type-abstract]
    has_turn, has_changed = threading.Event(), threading.Event()

    def on_turn(is_free: bool) -> None:
        (has_turn if is_free else has_changed).set()

    with contextlib.closing(queues.enqueue(APT, "next", on_turn)):
        until(lambda: is_a(ShowsQueue, store).standing(APT, LIMIT), "no place was taken")  # type: ignore[type-abstract]
        store.perform(Remove(APT, held.incarnation), LIMIT)
        assert has_turn.wait(LIMIT)
    store.close()


def test_certificates_from_the_environment(secure: Etcd, ours: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in {"CACERT": ours.authority, "CERT": ours.cert, "KEY": ours.key}.items():
        monkeypatch.setenv(f"ETCDCTL_{name}", str(path))
    store = urls.open_store(f"etcd://{secure.address}/locks?tls=true")
    cycle(store)
    store.close()


def test_an_authority_that_we_do_not_know_is_named_as_such(secure: Etcd) -> None:
    assert "?ca=FILE" in refusal(urls.open_store(f"etcd://{secure.address}/locks?tls=true"))


def test_without_the_client_certificate_that_is_wanted(secure: Etcd, ours: Papers) -> None:
    assert "cert=FILE" in refusal(urls.open_store(url(secure, ours, cert=False)))


def test_with_a_client_certificate_of_another_authority(secure: Etcd, ours: Papers, tmp_path: Path) -> None:
    theirs = papers(tmp_path / "theirs")
    mixed = f"etcd://{secure.address}/locks?ca={ours.authority}&cert={theirs.cert}&key={theirs.key}"
    assert "client certificate" in refusal(urls.open_store(mixed))


def test_without_tls_where_etcd_wants_it(secure: Etcd) -> None:
    assert "?tls=true" in refusal(urls.open_store(url(secure)))


def test_with_tls_where_etcd_has_none(etcd: EtcdPlace, ours: Papers) -> None:
    assert "no TLS" in refusal(urls.open_store(url(etcd.server, ours)))


def test_files_that_are_no_certificates(ours: Papers, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for query in (
        f"ca={tmp_path / 'nowhere.pem'}",
        f"ca={empty}",
        f"ca={ours.authority}&cert={empty}&key={empty}",
        f"ca={ours.authority}&cert={ours.cert}&key={ours.authority}",
    ):
        with pytest.raises(StoreRefused, match=r"cannot be (read|used)"):
            urls.open_store(f"etcd://127.0.0.1/locks?{query}")


# --- passwords --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd with passwords; `me` may write below `locks/` and nowhere else."""
    with Etcd(tmp_path_factory.mktemp("guarded")) as server:
        for user, password in (("root", "toor"), ("me", "pa:ss@word")):
            server.ask("auth/user/add", {"name": user, "password": password})
        server.ask("auth/role/add", {"name": "root"})
        server.ask("auth/user/grant", {"user": "root", "role": "root"})
        server.ask("auth/role/add", {"name": "locks"})
        span = {"key": b64encode(b"locks/").decode(), "range_end": b64encode(b"locks0").decode()}
        server.ask("auth/role/grant", {"name": "locks", "perm": {"permType": "READWRITE", **span}})
        server.ask("auth/user/grant", {"user": "me", "role": "locks"})
        server.ask("auth/enable")
        yield server


ME = "me:pa%3Ass%40word"


def test_a_user_with_a_password_blocking_awaiting_and_waiting(guarded: Etcd) -> None:
    with lockstead.connect(f"etcd://{ME}@{guarded.address}/locks") as client:
        lease = client.lock("apt", ttl=60).acquire()
        granted: list[bool] = []

        def waits() -> None:
            with lockstead.connect(f"etcd://{ME}@{guarded.address}/locks") as other:
                with other.lock("apt", ttl=60).acquire(timeout=60) as got:
                    granted.append(got.is_held)

        thread = threading.Thread(target=waits)
        thread.start()
        thread.join(0.5)
        lease.release()
        thread.join()
    assert granted == [True]


def test_credentials_from_the_environment_open_what_is_printed(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = urls.printable(f"etcd://{ME}@{guarded.address}/locks")
    assert shown == f"etcd://{guarded.address}/locks"
    for user, password in (("me:pa:ss@word", ""), ("me", "pa:ss@word")):
        monkeypatch.setenv("ETCDCTL_USER", user)
        monkeypatch.setenv("ETCDCTL_PASSWORD", password)
        store = urls.open_store(shown)
        cycle(store)
        store.close()


def test_h22_no_line_shows_a_password(guarded: Etcd) -> None:
    store = urls.open_store(f"etcd://me:guess-this@{guarded.address}/locks")
    shown = f"{store!r} {store} {store.url}"
    line = refusal(store)
    assert "refused user or password" in line
    assert "guess-this" not in shown + line


def test_a_user_is_missing(guarded: Etcd) -> None:
    assert "wants a user" in refusal(urls.open_store(f"etcd://{guarded.address}/locks"))


def test_a_prefix_that_the_user_may_not_write(guarded: Etcd) -> None:
    line = refusal(urls.open_store(f"etcd://{ME}@{guarded.address}/elsewhere"))
    assert "grant-permission" in line
    assert f" at {guarded.address} " in line
    assert "ss@word" not in line


def test_a_password_is_left_aside_where_etcd_asks_for_none(etcd: EtcdPlace, space: str) -> None:
    store = urls.open_store(f"etcd://{ME}@{etcd.server.address}/{space}")
    cycle(store)
    store.close()


def test_a_sign_in_that_etcd_has_forgotten_is_renewed(guarded: Etcd) -> None:
    store = urls.open_store(f"etcd://{ME}@{guarded.address}/locks")
    cycle(store)
    guarded.kill()  # simple tokens live in memory
    with guarded_again(guarded):
        with contextlib.suppress(StoreError):
            store.perform(Read(APT), LIMIT)  # the connection died
        cycle(store)
        awaits = is_a(AsyncStore, store)  # type: ignore[type-abstract]
        asyncio.run(awaits.aperform(Read(APT), LIMIT))
    store.close()


@contextlib.contextmanager
def guarded_again(server: Etcd) -> Iterator[None]:
    server.start()
    yield


# --- other servers, old servers, no server ----------------------------------------------------------------------------


class Says(http.server.BaseHTTPRequestHandler):
    """Answers everything with what the server was given."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, body = self.server.says  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def somebody(status: int, body: bytes) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Says) as server:
        server.says = (status, body)  # type: ignore[attr-defined]
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"etcd://127.0.0.1:{server.server_port}/locks"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (404, b"Not Found\n", "older than 3.4"),
        (404, b'{"code":5,"message":"Not Found"}', "older than 3.4"),
        (400, b'{"message": "of another kind"}', "not etcd"),
        (200, b"<html>welcome</html>", "not etcd"),
        (200, b'{"ok": true}', "not etcd"),
        (405, b"", "not etcd"),
    ],
)
def test_what_is_no_etcd_or_too_old_is_said(status: int, body: bytes, line: str) -> None:
    with somebody(status, body) as place:
        assert line in refusal(urls.open_store(place))


@pytest.mark.parametrize("said", ["error", "message"])
@pytest.mark.parametrize(
    ("status", "code", "text", "kind"),
    [
        (400, 3, "authentication failed, invalid user ID or password", StoreRefused),
        (400, 3, "user name is empty", StoreRefused),
        (403, 7, "permission denied", StoreRefused),
        (404, 5, "requested lease not found", LeaseGone),
        (429, 8, "mvcc: database space exceeded", StoreUnavailable),
        (503, 14, "request timed out", OutcomeUnknown),
    ],
)
def test_the_words_of_an_error_are_found_wherever_a_version_puts_them(
    said: str, status: int, code: int, text: str, kind: type[Exception]
) -> None:
    """Up to 3.5 under `error`, from 3.6 on under `message` alone, as both servers were seen to answer."""
    request = Request("Create", "kv/txn", b"{}")
    body = json.dumps({said: f"etcdserver: {text}", "code": code}).encode()
    with pytest.raises(kind) as raised:
        answered(Response(status, body, 0.0), request)
    assert "not etcd" not in str(raised.value)


def test_what_speaks_no_http() -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(b"-ERR unknown command 'POST'\r\n" * 3)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert "no HTTP" in refusal(urls.open_store(f"etcd://127.0.0.1:{server.server_address[1]}/locks"))
        finally:
            server.shutdown()
            thread.join()


def test_where_nobody_listens_the_store_is_unavailable() -> None:
    store = urls.open_store(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/locks")
    with pytest.raises(StoreUnavailable, match="cannot connect to etcd"):
        store.perform(Read(APT), LIMIT)
    store.close()


@pytest.mark.parametrize(
    "text",
    [
        "etcd://",
        "etcd:///locks",
        "etcd://host:99999/locks",
        "etcd://ho st/locks",
        "etcd://host,/locks",
        "etcd://host/%ff",
        "etcd://host/locks?tls=perhaps",
        "etcd://host/locks?tls=false&ca=ca.pem",
        "etcd://host/locks?tls=true&cert=me.pem",
    ],
)
def test_a_url_that_is_none_of_an_etcd(text: str) -> None:
    with pytest.raises(ValueError) as failure:
        urls.open_store(text.replace("host", "secret:word@host", 1))
    assert "word" not in str(failure.value).replace("password", "")


def test_the_url_has_one_form() -> None:
    assert urls.printable("etcd://h1,h2:99,h1/a%20b/") == "etcd://h1:2379,h2:99/a%20b"
    assert urls.printable("etcd://[::1]/x?ca=/a/b.pem") == "etcd://[::1]:2379/x?ca=/a/b.pem"


def test_h24_a_foreign_record_is_shown_as_damaged_and_never_free(etcd: EtcdPlace, space: str, store: Store) -> None:
    ask(etcd.server.port, "kv/put", {"key": b64encode(f"{space}/lock/apt:a".encode()).decode(), "value": "Zm9v"})
    assert "damage" in shows(store.perform(Read(APT), LIMIT)).fields
    is_a(Conflict, store.perform(Create(APT, {}, 1.0, "", 60.0), LIMIT))
    with pytest.raises(StoreRefused, match="'apt' in etcd is damaged"):
        store.perform(Extend(APT, {}, None), LIMIT)


# --- no space ---------------------------------------------------------------------------------------------------------


def test_without_space_leases_are_renewed_and_nothing_granted(tmp_path: Path) -> None:
    with Etcd(tmp_path, options=["--quota-backend-bytes", str(1 << 20)]) as server:
        place = f"etcd://{server.address}/locks"
        store = urls.open_store(place)
        made = shows(store.perform(Create(APT, {"v": "1"}, 60.0, "", 60.0), LIMIT))
        _fill(server)
        with pytest.raises(StoreUnavailable, match="out of space"):
            store.perform(Create(Name("yum"), {"v": "1"}, 60.0, "", 60.0), LIMIT)
        shows(store.perform(Extend(APT, {}, made.incarnation, lifetime=60.0), LIMIT))
        found = list(is_a(SupportsDiagnostics, store).examine(lambda part: Name(part, Space.AUDIT), LIMIT))  # type: ignore[type-abstract]
        assert [one.severity for one in found if one.check == "alarms"] == [Severity.FAILURE]
        assert [one.severity for one in found if one.check == "space"] == [Severity.WARNING]
        is_a(Removed, store.perform(Remove(APT, made.incarnation), LIMIT))
        revision = server.ask("kv/range", {"key": "YQ=="})["header"]["revision"]
        server.ask("kv/deleterange", {"key": b64encode(b"fill").decode()})
        server.ask("kv/compaction", {"revision": revision, "physical": True})
        server.ask("maintenance/defragment")
        member = server.ask("maintenance/status")["header"]["member_id"]
        server.ask("maintenance/alarm", {"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"})
        cycle(store)
        store.close()


def _fill(server: Etcd) -> None:
    put: dict[str, Any] = {"key": b64encode(b"fill").decode(), "value": b64encode(b"x" * 100_000).decode()}
    for _ in range(100):
        try:
            server.ask("kv/put", put)
        except OSError:
            return
    raise AssertionError("the quota was not reached")


# --- the doctor -------------------------------------------------------------------------------------------------------


def test_the_doctor_looks_at_every_member(etcd: EtcdPlace, space: str) -> None:
    store = urls.open_store(f"etcd://{etcd.server.address},127.0.0.1:{free_port()}/{space}")
    found = list(is_a(SupportsDiagnostics, store).examine(Name, LIMIT))  # type: ignore[type-abstract]
    store.close()
    shown = [(one.check, one.severity) for one in found]
    assert ("version", Severity.OK) in shown
    assert ("member", Severity.WARNING) in shown
    assert ("quorum", Severity.OK) in shown
    assert ("alarms", Severity.OK) in shown
    (space_found,) = [one for one in found if one.check == "space"]
    assert space_found.figures["db_bytes"] > 0
    assert space_found.figures["quota_bytes"] > 0
