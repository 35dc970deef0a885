"""Decides how commands reach Google Cloud Storage: our own requests, one a command, never repeated.

`google-cloud-storage` is asked for credentials and endpoint only: its client repeats requests, asks for the bucket
behind one's back, and hides response headers. Must not know what the fields of a record mean.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Command, List, Listing, StoreClock, TokenSource, Traits
from lockstead.stores.gcs_wire import Place, Request, Response, answer_to, page_of, request_for

if TYPE_CHECKING:
    import httpx

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="gs",
    guarantee="consensus: strongly consistent reads, and writes with preconditions",
    clock=StoreClock.DATED,
    tokens=TokenSource.DRAWN,
    granularity=2.0,
    date_step=1.0,
    ttl_recommended=20.0,
    foreign=True,
)

ENDPOINT: Final = "https://storage.googleapis.com"
KEEPALIVE: Final = 4.0
"""Seconds for which an idle connection is used again: shorter than any server's patience, so that a request is hardly
ever sent into a connection that was just closed, which would leave its outcome unknown."""

CONNECTIONS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Access:
    """Where requests go and who vouches for them. credentials is a `google.auth` object, or None for an emulator."""

    endpoint: str
    credentials: Any = None
    project: str | None = None

    def __repr__(self) -> str:
        return f"Access({self.endpoint!r})"


class GcsStore:
    """Records as objects in a bucket. Promises no speed: a request takes tens to hundreds of milliseconds.

    One object takes about one change a second; what is above is refused by the service, with an unknown outcome.
    """

    def __init__(self, place: Place, access: Access) -> None:
        self._place = place
        self._access = access
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._aclients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._aclients = weakref.WeakKeyDictionary()
        self._inherited: list[object] = []
        self._is_open = True

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    @property
    def traits(self) -> Traits:
        """What the protocol must know of this store."""
        return TRAITS

    @property
    def url(self) -> str:
        """The store's URL; there are no credentials in it."""
        return _url(self._place)

    # --- blocking ------------------------------------------------------------------------------------------------

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command as one request (a listing: one a page), each within `limit` seconds."""
        client = self._blocking()
        if isinstance(command, List):
            entries: list[Any] = []
            page: str | None = None
            while True:
                listing, page = page_of(command, self._send(client, command, limit, page), self._place)
                entries += listing.entries
                if page is None:
                    return cast(A, Listing(tuple(entries)))
        return cast(A, answer_to(command, self._send(client, command, limit, None), self._place))

    def _send(self, client: httpx.Client, command: Command[Any], limit: float, page: str | None) -> Response:
        request = request_for(command, self._place, page)
        headers = self._signed(request)
        try:
            answer = client.request(
                request.method,
                self._access.endpoint + request.path,
                params=dict(request.params),
                headers=headers,
                content=request.content,
                timeout=limit,
            )
        except Exception as error:
            raise _translated(error, command, limit) from error
        return Response(answer.status_code, answer.headers.get("Date"), answer.content)

    def _blocking(self) -> httpx.Client:
        with self._lock:
            self._check_open()
            if self._client is None:
                import httpx

                self._client = httpx.Client(limits=_limits(), trust_env=self._access.credentials is not None)
            return self._client

    # --- awaiting ------------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command, awaiting, from any event loop."""
        client = self._awaiting()
        if isinstance(command, List):
            entries: list[Any] = []
            page: str | None = None
            while True:
                listing, page = page_of(command, await self._asend(client, command, limit, page), self._place)
                entries += listing.entries
                if page is None:
                    return Listing(tuple(entries))
        return answer_to(command, await self._asend(client, command, limit, None), self._place)

    async def _asend(
        self, client: httpx.AsyncClient, command: Command[Any], limit: float, page: str | None
    ) -> Response:
        request = request_for(command, self._place, page)
        if self._access.credentials is not None and not self._access.credentials.valid:
            # a refresh is a request of the credentials' own, and blocks
            headers = await asyncio.get_running_loop().run_in_executor(None, self._signed, request)
        else:
            headers = self._signed(request)
        try:
            answer = await client.request(
                request.method,
                self._access.endpoint + request.path,
                params=dict(request.params),
                headers=headers,
                content=request.content,
                timeout=limit,
            )
        except Exception as error:
            raise _translated(error, command, limit) from error
        return Response(answer.status_code, answer.headers.get("Date"), answer.content)

    def _awaiting(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            client = self._aclients.get(loop)
            if client is None:
                import httpx

                client = httpx.AsyncClient(limits=_limits(), trust_env=self._access.credentials is not None)
                self._aclients[loop] = client
            return client

    # --- both ----------------------------------------------------------------------------------------------------

    def _signed(self, request: Request) -> dict[str, str]:
        headers = dict(request.headers)
        credentials = self._access.credentials
        if credentials is None:
            return headers
        import google.auth.exceptions
        import google.auth.transport.requests

        try:
            credentials.before_request(
                google.auth.transport.requests.Request(), request.method, self._access.endpoint, headers
            )
        except google.auth.exceptions.RefreshError as error:
            raise StoreRefused(
                f"the credentials for {self.url} were not accepted; renew them ({type(error).__name__})"
            ) from error
        except google.auth.exceptions.GoogleAuthError as error:
            raise StoreUnavailable(f"no access token for {self.url} ({type(error).__name__})") from error
        return headers

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it: its bytes belong to the parent."""
        self._inherited += [self._client, self._aclients]
        self._lock = threading.Lock()
        self._client = None
        self._aclients = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        with self._lock:
            self._is_open = False
            client, self._client = self._client, None
            awaiting = list(self._aclients.items())
            self._aclients.clear()
        if client is not None:
            client.close()
        for loop, aclient in awaiting:
            _close_in(loop, aclient)


def _close_in(loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient) -> None:
    """Close an awaiting client in the loop that its connections belong to, if that still runs."""
    if not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(client.aclose(), loop)
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        try:
            closing.result(timeout=1.0)
        except TimeoutError:
            closing.cancel()


def _limits() -> httpx.Limits:
    import httpx

    return httpx.Limits(
        max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX, keepalive_expiry=KEEPALIVE
    )


def _translated(error: Exception, command: Command[Any], limit: float) -> StoreError:
    """Tell what was certainly never sent from everything else, which may have been applied."""
    import httpx

    what = type(command).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol):
        return StoreUnavailable(f"no connection to Cloud Storage for {what}: {error or type(error).__name__}")
    if isinstance(error, httpx.TimeoutException):
        return OutcomeUnknown(f"no answer to {what} within {limit:.3g} s")
    return OutcomeUnknown(f"no clear answer to {what}: {type(error).__name__}: {error}")


def _url(place: Place) -> str:
    return f"gs://{place.bucket}/{place.prefix}" if place.prefix else f"gs://{place.bucket}"


class _Opener:
    """Opens `gs://bucket/prefix`; with a key wanted, `gs://bucket/prefix/key` is short for `gs://bucket/prefix#key`."""

    traits = TRAITS

    def split(self, rest: str, fragment: str | None) -> tuple[str, str | None]:
        """Give (store, key): the last piece of the path is the key where no fragment names one."""
        if fragment is not None:
            return rest, fragment
        path = rest.removeprefix("gs://")
        if "/" not in path.strip("/"):
            return rest, None
        store, _, key = path.rstrip("/").rpartition("/")
        return f"gs://{store}", key

    def printable(self, store_url: str) -> str:
        """Give the URL in its one form; there are no credentials in it."""
        return _url(_place(store_url))

    def open(self, store_url: str, client: object | None) -> GcsStore:
        """Open the store; asks the service nothing yet. client is a `google.cloud.storage.Client` of the caller's own.

        StoreRefused when the client library or any credentials are missing.
        """
        place = _place(store_url)
        try:
            import httpx  # noqa: F401 - found missing here, not in the middle of a renewal
        except ImportError as error:
            raise StoreRefused("the gs: store needs its client libraries: pip install 'lockstead[gcs]'") from error
        return GcsStore(place, _access_of(client) if client is not None else _default_access())


def _place(store_url: str) -> Place:
    from urllib.parse import unquote

    bucket, _, prefix = store_url.removeprefix("gs://").partition("/")
    if not store_url.startswith("gs://") or not bucket or "@" in bucket:
        raise ValueError("not the URL of a bucket; write 'gs://bucket/prefix', without credentials")
    return Place(unquote(bucket), unquote(prefix).strip("/"))


def _default_access() -> Access:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        return Access((emulator if "://" in emulator else f"http://{emulator}").rstrip("/"))
    try:
        import google.auth
        import google.auth.exceptions
    except ImportError as error:
        raise StoreRefused("the gs: store needs its client libraries: pip install 'lockstead[gcs]'") from error
    try:
        credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise StoreRefused(
            "no Google credentials found: run 'gcloud auth application-default login', or set "
            "GOOGLE_APPLICATION_CREDENTIALS, or pass client=storage.Client(...)"
        ) from error
    return Access(ENDPOINT, credentials, project)


def _access_of(client: Any) -> Access:
    credentials = getattr(client, "_credentials", None)
    connection = getattr(client, "_connection", None)
    if credentials is None or connection is None:
        raise TypeError(f"client must be a google.cloud.storage.Client, not {type(client).__name__}")
    endpoint = str(getattr(connection, "API_BASE_URL", ENDPOINT)).rstrip("/")
    try:
        from google.auth.credentials import AnonymousCredentials, with_scopes_if_required
    except ImportError as error:
        raise StoreRefused("the gs: store needs its client libraries: pip install 'lockstead[gcs]'") from error
    if isinstance(credentials, AnonymousCredentials):
        return Access(endpoint, None, getattr(client, "project", None))
    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    scoped = with_scopes_if_required(credentials, scopes)  # type: ignore[no-untyped-call]  # google-auth has no types
    return Access(endpoint, scoped, getattr(client, "project", None))


OPENER: Final = _Opener()
