"""Decides how commands reach Google Cloud Storage: our own requests, one a command, never repeated.

`google-cloud-storage` is asked for credentials and endpoint only: its client repeats requests, asks for the bucket
behind one's back, and hides response headers. The requests go out through the transports of httpx, below its client:
nothing there follows a redirect, keeps a cookie or parses an address anew. Must not know what a request says nor what
the fields of a record mean.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, cast

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.protocol.commands import Command, StoreClock, TokenSource, Traits
from lockstead.stores.gcs_access import Access
from lockstead.stores.gcs_wire import Place, Request, Response, exchange

if TYPE_CHECKING:
    import httpx

    from lockstead.stores.examination import Finding, Promise
    from lockstead.values import Name

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
    pace=1.0,
)

KEEPALIVE: Final = 10.0
"""Seconds for which an idle connection is used again.

Longer than the longest pause of a waiter, so that polling needs no handshakes; far below the patience of the service
and of anything that forgets connections on the way (a minute and more), because a request that is sent into a
connection just closed has an unknown outcome, and sending it again would be a hidden repetition.
"""

CONNECTIONS_MAX: Final = 64

CLEANUP_LIMIT: Final = 1.0
"""Seconds that `close` waits for an event loop to close its connections."""


_HEADERS: Final = {"User-Agent": "lockstead"}


class _Ways(TypedDict):
    """How a transport makes its connections, blocking or awaiting."""

    limits: httpx.Limits
    verify: ssl.SSLContext
    trust_env: bool
    proxy: str | None


class _Remaining(dict[str, float]):
    """The time-outs of one request, by phase: each may take what its predecessors left of the whole limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._ends_at = time.monotonic() + limit

    def get(self, _phase: str, _default: object = None) -> float:
        return max(0.001, self._ends_at - time.monotonic())


@dataclass(frozen=True, slots=True)
class _Looped:
    """An awaiting transport and the generator that closes it when its event loop ends."""

    transport: httpx.AsyncHTTPTransport
    life: AsyncGenerator[None, None]


class GcsStore:
    """Records as objects in a bucket. Promises no speed: a request takes tens to hundreds of milliseconds.

    One object takes about one change a second; what is above is refused by the service, with an unknown outcome.
    """

    def __init__(self, place: Place, access: Access) -> None:
        self._place = place
        self._access = access
        self._lock = threading.Lock()
        self._transport: httpx.HTTPTransport | None = None
        self._looped: dict[asyncio.AbstractEventLoop, _Looped] = {}
        self._base: httpx.URL | None = None
        self._tls: ssl.SSLContext | None = None
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
        return self._place.url

    # --- blocking ------------------------------------------------------------------------------------------------

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds: one request, but for a listing of several pages."""
        ends_at = time.monotonic() + limit
        transport = self._blocking()
        steps = exchange(command, self._place)
        request = next(steps)
        while True:
            response = self._send(transport, request, ends_at - time.monotonic(), limit)
            try:
                request = steps.send(response)
            except StopIteration as stop:
                return cast(A, stop.value)

    def _send(self, transport: httpx.HTTPTransport, request: Request, left: float, limit: float) -> Response:
        headers = self._access.signed(request.headers, max(0.0, left))
        try:
            answer = transport.handle_request(self._built(request, headers, left))
            try:
                body = answer.read()
            finally:
                answer.close()
        except Exception as error:
            raise _translated(error, request, limit) from error
        finally:
            if not self._is_open:
                transport.close()  # closed meanwhile, and it may have connected anew since
        return self._received(answer, body)

    def _blocking(self) -> httpx.HTTPTransport:
        with self._lock:
            self._check_open()
            if self._transport is None:
                import httpx

                self._transport = httpx.HTTPTransport(**self._ways())
            return self._transport

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Promise, str]:
        """What of Cloud Storage keeps a promise."""
        from lockstead.stores.gcs_doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:
        """Look at the way to the bucket, its settings and our rights."""
        from lockstead.stores.gcs_doctor import examination
        from lockstead.stores.gcs_way import Way

        def send(request: Request) -> Response:
            return self._send(self._blocking(), request, limit, limit)

        return examination(Way(self._place, self._access.endpoint, self._access.account, send), scratch)

    # --- awaiting ------------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, awaiting, from any event loop of asyncio."""
        ends_at = time.monotonic() + limit
        transport = await self._awaiting()
        steps = exchange(command, self._place)
        request = next(steps)
        while True:
            response = await self._asend(transport, request, ends_at - time.monotonic(), limit)
            try:
                request = steps.send(response)
            except StopIteration as stop:
                return stop.value

    async def _asend(
        self, transport: httpx.AsyncHTTPTransport, request: Request, left: float, limit: float
    ) -> Response:
        headers = await self._access.asigned(request.headers, max(0.0, left))
        try:
            # the phases are limited too, and know better what was never sent: they come first
            async with asyncio.timeout(left + 0.1):
                answer = await transport.handle_async_request(self._built(request, headers, left))
                try:
                    body = await answer.aread()
                finally:
                    await answer.aclose()
        except Exception as error:
            raise _translated(error, request, limit) from error
        finally:
            if not self._is_open:
                await transport.aclose()
        return self._received(answer, body)

    async def _awaiting(self) -> httpx.AsyncHTTPTransport:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            looped = self._looped.get(loop)
            if looped is not None:
                return looped.transport
            import httpx

            transport = httpx.AsyncHTTPTransport(**self._ways())
            looped = _Looped(transport, self._until_closed(loop, transport))
            self._looped = {old: kept for old, kept in self._looped.items() if not old.is_closed()}
            self._looped[loop] = looped
        # a loop that ends closes its asynchronous generators: so the connections end with the loop they belong to
        await anext(looped.life)
        return transport

    async def _until_closed(
        self, loop: asyncio.AbstractEventLoop, transport: httpx.AsyncHTTPTransport
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self._lock:
                self._looped.pop(loop, None)
            await transport.aclose()

    # --- both ----------------------------------------------------------------------------------------------------

    def _built(self, request: Request, headers: dict[str, str], left: float) -> httpx.Request:
        import httpx

        if self._base is None:
            self._base = httpx.URL(self._access.endpoint)
        base, target = self._base, request.target.encode("ascii")
        path = base.raw_path.rstrip(b"/") + target
        extensions: dict[str, object] = {"timeout": _Remaining(left)}
        if self._access.proxy is None:
            # what differs from request to request goes as it is: to parse it takes as long as all the rest
            extensions["target"] = path
        else:
            # a tunnel through a proxy would be asked for by that very target
            base = base.copy_with(raw_path=path)
        return httpx.Request(
            request.method, base, headers={**_HEADERS, **headers}, content=request.content, extensions=extensions
        )

    def _received(self, answer: httpx.Response, body: bytes) -> Response:
        if answer.status_code == 401:
            self._access.rejected()
        return Response(answer.status_code, answer.headers.get("Date"), body)

    def _ways(self) -> _Ways:
        """Say how connections are made. Called with the lock held."""
        import httpx

        limits = httpx.Limits(
            max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX, keepalive_expiry=KEEPALIVE
        )
        return {
            "limits": limits,
            "verify": self._verification(),
            "trust_env": self._access.uses_proxies,
            "proxy": self._access.proxy,
        }

    def _verification(self) -> ssl.SSLContext:
        if self._tls is None:
            import httpx

            is_secure = self._access.endpoint.startswith("https://")
            # reading all the authorities takes a tenth of a second; a context without any trusts nobody
            self._tls = httpx.create_ssl_context() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._tls

    def prepare(self) -> None:
        """Make what the first request needs: how long its answer takes calibrates the clocks, so nothing may add."""
        self._blocking()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it: its bytes belong to the parent."""
        self._inherited += [self._transport, *self._looped.values(), self._tls]
        self._lock = threading.Lock()
        self._transport = None
        self._looped = {}
        self._tls = None
        self._access.forget()

    def close(self) -> None:
        """Close every connection. Idempotent. Those of other event loops are closed in these, which may take 1 s."""
        with self._lock:
            self._is_open = False
            transport, self._transport = self._transport, None
            awaiting = list(self._looped.items())
            self._looped.clear()
        if transport is not None:
            transport.close()
        for loop, looped in awaiting:
            _close_in(loop, looped)


def _close_in(loop: asyncio.AbstractEventLoop, looped: _Looped) -> None:
    """Close an awaiting transport in the loop that its connections belong to, if that still runs."""
    if not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(looped.life.aclose(), loop)
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        try:
            closing.result(timeout=CLEANUP_LIMIT)
        except TimeoutError:
            closing.cancel()


def _translated(error: Exception, request: Request, limit: float) -> StoreError:
    """Tell what was certainly never sent from everything else, which may have been applied."""
    import httpx

    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError):
        return StoreUnavailable(f"no connection to Cloud Storage for {request.what} ({told}); nothing was sent")
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return StoreRefused(f"the endpoint of Cloud Storage is no address ({told}); correct the client's endpoint")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return OutcomeUnknown(f"no answer to {request.what} within {limit:.3g} s")
    return OutcomeUnknown(f"no clear answer to {request.what} ({told})")
