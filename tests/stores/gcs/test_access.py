"""Who vouches for requests to Cloud Storage, and what a token endpoint that is slow, dead or refusing costs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import RefreshError, TransportError
from google.cloud import storage

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Read, Remove
from lockstead.stores import http, url
from lockstead.stores.bounds import Bounds
from lockstead.stores.gcs.access import ENDPOINT, Access, access_of, default_access
from lockstead.stores.gcs.encoding import BucketPath
from lockstead.stores.gcs.store import GcsStore
from lockstead.stores.gcs.transport import Transports
from lockstead.testing.conformance.base import in_threads
from lockstead.values import Name

SECRET = "ya29.s3cret"


class Named(AnonymousCredentials):  # type: ignore[misc]
    """Credentials that say whose they are, as those of accounts do."""

    def __init__(self, **names: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, value in names.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("names", "account"),
    [
        (
            {"service_account_email": "ci@project.iam.gserviceaccount.com"},
            "serviceAccount:ci@project.iam.gserviceaccount.com",
        ),
        ({"service_account_email": "default", "account": ""}, ""),
        ({"account": "anna@example.com"}, "user:anna@example.com"),
        ({"account": None}, ""),
        ({}, ""),
    ],
)
def test_an_account_is_named_as_a_policy_names_it_and_not_guessed(names: dict[str, object], account: str) -> None:
    assert Access(ENDPOINT, Named(**names)).account == account
    assert Access(ENDPOINT).account == ""


class Tokens(Credentials):  # type: ignore[misc,no-untyped-call]
    """Credentials whose token endpoint is this object."""

    def __init__(self, failure: Exception | None = None, *, hangs: bool = False) -> None:
        super().__init__()
        self.refreshed = 0
        self.failure = failure
        self.go_on = threading.Event()
        if not hangs:
            self.go_on.set()

    def refresh(self, request: Any) -> None:
        self.refreshed += 1
        assert self.go_on.wait(30.0)
        if self.failure is not None:
            raise self.failure
        self.token = f"{SECRET}-{self.refreshed}"
        self.valid_for(3600.0)

    def valid_for(self, seconds: float) -> None:
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=seconds)


def bearer(headers: dict[str, str]) -> str:
    return headers["authorization"]


def test_a_token_is_fetched_once_and_used_until_it_is_due() -> None:
    credentials = Tokens()
    access = Access(ENDPOINT, credentials)
    for _ in range(3):
        assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-1"
    assert asyncio.run(access.aio_signed({"X": "1"}, Bounds(5.0)))["X"] == "1"
    assert credentials.refreshed == 1


def test_many_threads_wait_for_one_refresh() -> None:
    credentials = Tokens(hangs=True)
    access = Access(ENDPOINT, credentials)
    release = threading.Timer(0.1, credentials.go_on.set)
    release.start()
    signed = in_threads([lambda: bearer(access.signed({}, Bounds(20.0)))] * 8)
    release.join()
    assert set(signed) == {f"Bearer {SECRET}-1"}


def test_a_token_that_is_due_is_used_while_a_new_one_is_fetched() -> None:
    credentials = Tokens(hangs=True)
    credentials.token = f"{SECRET}-old"
    credentials.valid_for(120.0)  # google-auth calls it expired from 225 s before
    assert not credentials.valid
    access = Access(ENDPOINT, credentials)
    assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-old"
    assert bearer(asyncio.run(access.aio_signed({}, Bounds(5.0)))) == f"Bearer {SECRET}-old"
    credentials.go_on.set()
    ends_at = time.monotonic() + 20.0
    while bearer(access.signed({}, Bounds(5.0))) != f"Bearer {SECRET}-1":
        assert time.monotonic() < ends_at
        time.sleep(0.005)
    assert credentials.refreshed == 1


class Overtaken(Tokens):
    """Credentials whose refresh ends just after somebody saw that their token is due."""

    @property
    def valid(self) -> bool:
        seen = bool(super().valid)
        if not seen and self.refreshed:
            self.go_on.set()
            for thread in threading.enumerate():
                if thread.name == "lockstead-token" and thread is not threading.current_thread():
                    thread.join(20.0)
        return seen


def test_a_concurrent_token_refresh_is_not_repeated() -> None:
    credentials = Overtaken(hangs=True)
    credentials.token = f"{SECRET}-old"
    credentials.valid_for(120.0)
    access = Access(ENDPOINT, credentials)
    assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-old"
    in_time = time.monotonic() + 20.0
    while not credentials.refreshed:
        assert time.monotonic() < in_time
        time.sleep(0.005)
    assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-1"
    assert not any(thread.name == "lockstead-token" for thread in threading.enumerate())
    assert credentials.refreshed == 1


def test_h09_a_token_endpoint_that_hangs_costs_no_more_than_the_limit() -> None:
    credentials = Tokens(hangs=True)
    access = Access(ENDPOINT, credentials)
    began_at = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"no access token .* within 0\.1 s; nothing was sent"):
        access.signed({}, Bounds(0.1))
    with pytest.raises(StoreUnavailable):
        asyncio.run(access.aio_signed({}, Bounds(0.1)))
    assert time.monotonic() - began_at < 10.0
    credentials.go_on.set()
    assert bearer(access.signed({}, Bounds(20.0))) == f"Bearer {SECRET}-1"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RefreshError(f"invalid_grant {SECRET}"), StoreRefused),
        (RefreshError(f"try again {SECRET}", retryable=True), StoreUnavailable),
        (TransportError(f"no route {SECRET}"), StoreUnavailable),
        (OSError(f"no file {SECRET}"), StoreUnavailable),
    ],
)
def test_h22_credentials_that_fail_are_told_without_what_they_said(failure: Exception, kind: type[Exception]) -> None:
    bounds = Bounds(5.0)
    for ask in (lambda access: access.signed({}, bounds), lambda access: asyncio.run(access.aio_signed({}, bounds))):
        with pytest.raises(kind) as told:
            ask(Access(ENDPOINT, Tokens(failure)))
        assert SECRET not in str(told.value)
        assert "\n" not in str(told.value)


def test_a_rejected_token_is_replaced_before_the_next_request() -> None:
    access = Access(ENDPOINT, Tokens())
    assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-1"
    assert access.rejected({"authorization": f"Bearer {SECRET}-1"})
    assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-2"
    assert bearer(access.signed({}, Bounds(5.0))) == f"Bearer {SECRET}-2"


class Expired(Tokens):
    """Credentials whose first token the service no longer takes, though they call it valid."""

    def answer(self, token: str) -> bytes:
        is_good = not token.endswith(f"{SECRET}-1")
        status, body = (b"404 Not Found", b'{"error":{"code":404,"message":"No such object: b/k"}}')
        if not is_good:
            status, body = b"401 Unauthorized", b'{"error":{"code":401,"message":"Invalid Credentials"}}'
        return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            status,
            len(body),
            body,
        )


@pytest.mark.parametrize("command", [Read(Name("k")), Remove(Name("k"), "1", "1")], ids=["read", "release"])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_rejected_access_token_is_refreshed_and_retried_once(command: Any, is_awaited: bool) -> None:
    credentials, asked = Expired(), []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                while said := client.recv(65536):
                    token = next(
                        line for line in said.decode().split("\r\n") if line.lower().startswith("authorization")
                    )
                    asked.append(token)
                    client.sendall(credentials.answer(token))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        store = GcsStore(BucketPath("b", ""), Access(f"http://127.0.0.1:{listening.getsockname()[1]}", credentials))
        if is_awaited:
            asyncio.run(store.aperform(command, 10.0))
        else:
            store.perform(command, 10.0)
        store.close()
        thread.join(10.0)
    assert [token.rpartition("-")[2] for token in asked] == ["1", "2"]
    assert credentials.refreshed == 2


def test_h13_a_forked_child_does_not_wait_for_its_parents_refresh() -> None:
    credentials = Tokens(hangs=True)
    access = Access(ENDPOINT, credentials)
    with pytest.raises(StoreUnavailable):
        access.signed({}, Bounds(0.01))
    access.forget()
    credentials.go_on.set()
    assert bearer(access.signed({}, Bounds(20.0))).startswith("Bearer ")


def test_h18_who_is_cancelled_does_not_cancel_the_refresh_of_others() -> None:
    credentials = Tokens(hangs=True)
    access = Access(ENDPOINT, credentials)

    async def both() -> dict[str, str]:
        impatient = asyncio.ensure_future(access.aio_signed({}, Bounds(20.0)))
        patient = asyncio.ensure_future(access.aio_signed({}, Bounds(20.0)))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        credentials.go_on.set()
        return await patient

    assert bearer(asyncio.run(both())) == f"Bearer {SECRET}-1"
    assert credentials.refreshed == 1


def test_h22_nothing_that_is_printed_has_a_token() -> None:
    access = Access(ENDPOINT, Tokens())
    access.signed({}, Bounds(5.0))
    store = url.open_store("gs://bucket/locks", a_client(Tokens()))
    assert isinstance(store, GcsStore)
    store._access.signed({}, Bounds(5.0))
    for text in (repr(access), repr(store), str(store), store.url):
        assert SECRET not in text
    store.close()


def a_client(credentials: Any, **options: Any) -> storage.Client:
    return storage.Client(project="p", credentials=credentials, **options)


def test_a_client_of_the_callers_own_gives_endpoint_and_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    credentials = Tokens()
    assert bearer(access_of(a_client(credentials)).signed({}, Bounds(5.0))) == f"Bearer {SECRET}-1"
    assert access_of(a_client(credentials)).endpoint == ENDPOINT
    elsewhere = a_client(AnonymousCredentials(), client_options={"api_endpoint": "http://127.0.0.1:9/"})  # type: ignore[no-untyped-call]
    assert access_of(elsewhere).endpoint == "http://127.0.0.1:9"
    assert access_of(elsewhere).signed({}, Bounds(5.0)) == {}


def test_an_emulator_is_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("127.0.0.1:9", "http://127.0.0.1:9", "http://127.0.0.1:9/"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", text)
        access = default_access()
        assert access.endpoint == "http://127.0.0.1:9"
        assert access.proxy is None
        assert access.signed({}, Bounds(5.0)) == {}


def test_no_credentials_at_all_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(StoreRefused, match="gcloud auth application-default login"):
        default_access()


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, "http://proxy.example:3128"),
        ({"https_proxy": "proxy.example:3128"}, "http://proxy.example:3128"),
        ({"ALL_PROXY": "socks5://proxy.example"}, "socks5://proxy.example"),
        ({"HTTP_PROXY": "http://proxy.example"}, None),
        ({"HTTPS_PROXY": "http://proxy.example", "NO_PROXY": "other.example,.googleapis.com"}, None),
        ({"HTTPS_PROXY": "http://proxy.example", "NO_PROXY": "other.example"}, "http://proxy.example"),
        ({"HTTPS_PROXY": "http://proxy.example", "no_proxy": "*"}, None),
    ],
)
def test_environment_proxies_are_used_for_the_real_service_only(
    environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Access(ENDPOINT).proxy == proxy
    assert Access("http://storage.googleapis.com").proxy is None


def test_requests_go_through_the_proxy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        store = GcsStore(BucketPath("bucket", "locks"), Access(ENDPOINT))

        def ask() -> None:
            with pytest.raises(StoreUnavailable, match="Cloud Storage"):
                store.perform(Read(Name("apt")), 20.0)

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask)
            connection, _ = proxy.accept()
            with connection:
                asks_for = connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            asked.result(30.0)
        store.close()
    assert asks_for.startswith(b"CONNECT storage.googleapis.com:443 ")


def test_an_endpoint_may_be_below_a_path() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}/below/"
        store = GcsStore(BucketPath("bucket", "locks"), Access(endpoint))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(store.perform, Read(Name("apt ü")), 20.0)
            connection, _ = server.accept()
            with connection:
                asks_for = connection.recv(4096)
                connection.sendall(b"HTTP/1.1 500 Sorry\r\nContent-Length: 0\r\n\r\n")
            assert isinstance(asked.exception(30.0), OutcomeUnknown)
        store.close()
    assert asks_for.startswith(b"GET /below/storage/v1/b/bucket/o/locks%2Fapt%2520%C3%BC?prettyPrint=false HTTP/1.1")


@pytest.mark.parametrize(
    ("variable", "value", "kind", "said"),
    [
        ("HTTPS_PROXY", f"http://me:{SECRET}@[::1", StoreRefused, "ValueError"),
        ("HTTPS_PROXY", f"ftp://me:{SECRET}@proxy.example", StoreRefused, "ValueError"),
        ("ALL_PROXY", f"socks5://me:{SECRET}@proxy.example", StoreRefused, "socksio"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem", StoreUnavailable, "SSL_CERT_FILE"),
    ],
)
@pytest.mark.parametrize("is_awaiting", [False, True])
def test_h22_a_way_that_cannot_be_is_told_when_the_store_is_opened(
    is_awaiting: bool, variable: str, value: str, kind: type[StoreError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(variable, value)
    access = Access(ENDPOINT)
    with pytest.raises(kind, match=said) as told:
        if is_awaiting:
            Transports(access).pool(http.awaiting)
        else:
            GcsStore(BucketPath("bucket", "locks"), access)
    assert SECRET not in str(told.value)
