"""Endpoint, credentials, and the refresh of an access token.

google-auth sends its own request to refresh a token. It runs in a separate thread, one at a time, so that a hanging
token endpoint delays no caller beyond its limit. Must not know the requests to the store. No message repeats text
from credentials.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from lockstead.errors import StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.transport import refuse_clear

ENDPOINT: Final = "https://storage.googleapis.com"
EMULATOR: Final = "STORAGE_EMULATOR_HOST"
SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
MISSING: Final = "the Cloud Storage store needs its client libraries: pip install 'lockstead[gcs]'"

REFRESH_LIMIT: Final = 30.0
"""Seconds for one request for a token; google-auth's default is two minutes."""


class Access:
    """Access to the service.

    credentials: a `google.auth` object, or None. by: the environment variable that set the endpoint, if any. Safe to
    share between threads and event loops. Does not guarantee a valid token, only an error in time.
    """

    def __init__(self, endpoint: str, credentials: Any = None, *, by: str | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.by = by
        # not for an emulator
        self.proxy = _proxy(self.endpoint) if self.endpoint.startswith("https://") else None
        self._credentials = credentials
        self._lock = threading.Lock()
        self._refreshing: Future[None] | None = None
        self._is_rejected = False

    def __repr__(self) -> str:
        return f"Access({self.endpoint!r})"

    @property
    def has_credentials(self) -> bool:
        """Whether requests carry an access token."""
        return self._credentials is not None

    @property
    def account(self) -> str:
        """This account as a member of an IAM policy; empty if the credentials do not contain it."""
        for kind, name in (("serviceAccount", "service_account_email"), ("user", "account")):
            value = getattr(self._credentials, name, None)
            if isinstance(value, str) and "@" in value:
                return f"{kind}:{value}"
        return ""

    def signed(self, headers: Mapping[str, str], bounds: Bounds) -> dict[str, str]:
        """Return the headers with an access token. Raises StoreRefused or StoreUnavailable; nothing was sent."""
        refreshing = self._needs()
        if refreshing is not None:
            with _translated(bounds):
                refreshing.result(timeout=bounds.left())
        return self._with_token(headers)

    async def aio_signed(self, headers: Mapping[str, str], bounds: Bounds) -> dict[str, str]:
        """Like `signed`, asynchronously."""
        refreshing = self._needs()
        if refreshing is not None:
            awaited = asyncio.wrap_future(refreshing)
            awaited.add_done_callback(_retrieved)
            with _translated(bounds):
                # others wait for the same refresh: a cancellation must not end it
                await asyncio.wait_for(asyncio.shield(awaited), bounds.left())
        return self._with_token(headers)

    def rejected(self, headers: Mapping[str, str]) -> bool:
        """Record that the service rejected a request with these headers; return whether to send it once more.

        It will have another token: a new one, or one that another caller has fetched meanwhile.
        """
        if self._credentials is None:
            return False
        if self._with_token({}).items() <= headers.items():
            self._is_rejected = True
        return True

    def forget(self) -> None:
        """Make the access usable in a forked child, where the refreshing thread does not exist."""
        self._lock = threading.Lock()
        self._refreshing = None

    def _with_token(self, headers: Mapping[str, str]) -> dict[str, str]:
        signed = dict(headers)
        if self._credentials is not None:
            self._credentials.apply(signed)
        return signed

    def _needs(self) -> Future[None] | None:
        """Return the refresh to wait for; None if the token is good. Starts one early, while the old token is valid."""
        credentials = self._credentials
        if credentials is None or (credentials.valid and not self._is_rejected):
            return None
        serves_meanwhile = not self._is_rejected and _still_serves(credentials)
        refreshing = self._refresh()
        return None if serves_meanwhile else refreshing

    def _refresh(self) -> Future[None] | None:
        with self._lock:
            if self._refreshing is None:
                if self._credentials.valid and not self._is_rejected:
                    return None  # a refresh ended since the check above
                self._refreshing = Future()
                name = "lockstead-token"
                # a daemon thread: a hanging token endpoint must not keep the process from exiting
                threading.Thread(target=self._run, args=(self._refreshing,), name=name, daemon=True).start()
            return self._refreshing

    def _run(self, refreshing: Future[None]) -> None:
        outcome: BaseException | None = None
        try:
            import google.auth.transport.requests

            request = google.auth.transport.requests.Request()
            self._credentials.refresh(partial(request, timeout=REFRESH_LIMIT))
        except BaseException as error:  # noqa: BLE001 - raised in every caller that waits for it
            outcome = error
        with self._lock:
            self._refreshing = None
            self._is_rejected = False
        if outcome is None:
            refreshing.set_result(None)
        else:
            refreshing.set_exception(outcome)


def _proxy(endpoint: str) -> str | None:
    """Return the address of the environment's proxy for an endpoint, if any."""
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(urlsplit(endpoint).netloc):
        return None
    proxies = getproxies()
    found = proxies.get("https") or proxies.get("all")
    if not found:
        return None
    return found if "://" in found else f"http://{found}"


def _retrieved(awaited: asyncio.Future[None]) -> None:
    """Retrieve an outcome without a waiter, or asyncio would log it."""
    if not awaited.cancelled():
        awaited.exception()


def _still_serves(credentials: Any) -> bool:
    """Return whether a token that is due for renewal is still valid."""
    expiry = getattr(credentials, "expiry", None)
    if not credentials.token or not isinstance(expiry, datetime):
        return False
    return (expiry.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() > 10.0


@contextmanager
def _translated(bounds: Bounds) -> Iterator[None]:
    """Raise the StoreError for the failure of a refresh; nothing was sent."""
    try:
        yield
    except TimeoutError as error:
        raise StoreUnavailable(
            f"no access token for Cloud Storage within {bounds.limit:.3g} s; nothing was sent"
        ) from error
    except Exception as error:
        raise _unsigned(error) from error


def _unsigned(error: Exception) -> StoreError:
    from google.auth.exceptions import RefreshError

    if isinstance(error, RefreshError) and not error.retryable:
        return StoreRefused(
            f"the credentials for Cloud Storage were not accepted ({type(error).__name__}); renew them, for instance "
            "by 'gcloud auth application-default login'"
        )
    return StoreUnavailable(f"no access token for Cloud Storage ({type(error).__name__}); nothing was sent")


def default_access() -> Access:
    """Return the access from the environment: an emulator, or application default credentials.

    Raises StoreRefused if there is neither.
    """
    emulator = os.environ.get(EMULATOR)
    if emulator:
        return Access(_emulator(emulator), by=EMULATOR)
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
    except ImportError as error:
        raise StoreRefused(MISSING) from error
    try:
        credentials, _project = google.auth.default(scopes=[SCOPE])
    except (DefaultCredentialsError, OSError, ValueError) as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            # without the cause's message, which quotes the file
            raise StoreRefused(
                "the file in GOOGLE_APPLICATION_CREDENTIALS does not exist or contains no credentials "
                f"({type(error).__name__}); correct the variable, or unset it to use those of this machine"
            ) from None
        raise StoreRefused(
            "no Google credentials found: run 'gcloud auth application-default login', or set "
            "GOOGLE_APPLICATION_CREDENTIALS, or pass client=storage.Client(...)"
        ) from error
    return Access(ENDPOINT, credentials)


def _emulator(text: str) -> str:
    """Return the endpoint in STORAGE_EMULATOR_HOST; raise StoreRefused, without repeating it, if it is invalid."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not text.isascii() or not text.isprintable() or " " in text or parts.query or parts.fragment:
        raise StoreRefused("STORAGE_EMULATOR_HOST is not an address; write 'http://127.0.0.1:PORT', or unset it")
    if parts.username is not None or parts.password is not None:
        raise StoreRefused("STORAGE_EMULATOR_HOST has credentials in it; an emulator needs none, leave them out")
    return parts.geturl()


def access_of(client: object) -> Access:
    """Return the endpoint and credentials of a `google.cloud.storage.Client`; raise TypeError for another type."""
    credentials = getattr(client, "_credentials", None)
    connection = getattr(client, "_connection", None)
    if credentials is None or connection is None:
        raise TypeError(f"client must be a google.cloud.storage.Client, not {type(client).__name__}")
    try:
        from google.auth.credentials import AnonymousCredentials, with_scopes_if_required
    except ImportError as error:
        raise StoreRefused(MISSING) from error
    endpoint = str(getattr(connection, "API_BASE_URL", ENDPOINT))
    if isinstance(credentials, AnonymousCredentials):
        return Access(endpoint)
    parts = urlsplit(endpoint)
    if parts.scheme != "https":
        refuse_clear([parts.hostname or ""], way="an https:// endpoint for the client")
    scoped = with_scopes_if_required(credentials, [SCOPE])  # type: ignore[no-untyped-call]  # it has no types
    return Access(endpoint, scoped)
