"""Decides how commands reach Google Cloud Storage: our own requests, one a command, never repeated.

`google-cloud-storage` is asked for credentials and endpoint only: its client repeats requests, asks for the bucket
behind one's back, and hides response headers. Must not know what a request says nor what the fields of a record mean.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Command, StoreClock, TokenSource, Traits
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.transport import Transports, translated
from lockstead.stores.gcs.wire import Place, Request, Response, exchange

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

CLEANUP_LIMIT: Final = 1.0
"""Seconds that `close` waits for an event loop to close its connections."""


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
        self._transports = Transports(access)
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
            answer = transport.handle_request(self._transports.request(request, headers, left))
            try:
                body = answer.read()
            finally:
                answer.close()
        except Exception as error:
            raise translated(error, request, limit) from error
        finally:
            if not self._is_open:
                transport.close()  # closed meanwhile, and it may have connected anew since
        return self._received(answer, body)

    def _blocking(self) -> httpx.HTTPTransport:
        with self._lock:
            self._check_open()
            if self._transport is None:
                self._transport = self._transports.blocking()
            return self._transport

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Promise, str]:
        """What of Cloud Storage keeps a promise."""
        from lockstead.stores.gcs.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:
        """Look at the way to the bucket, its settings and our rights."""
        from lockstead.stores.gcs.doctor import examination
        from lockstead.stores.gcs.way import Way

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
                answer = await transport.handle_async_request(self._transports.request(request, headers, left))
                try:
                    body = await answer.aread()
                finally:
                    await answer.aclose()
        except Exception as error:
            raise translated(error, request, limit) from error
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
            transport = self._transports.awaiting()
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

    def _received(self, answer: httpx.Response, body: bytes) -> Response:
        if answer.status_code == 401:
            self._access.rejected()
        return Response(answer.status_code, answer.headers.get("Date"), body)

    def prepare(self) -> None:
        """Make what the first request needs: how long its answer takes calibrates the clocks, so nothing may add."""
        self._blocking()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection, without closing it: its bytes belong to the parent."""
        self._inherited += [self._transport, *self._looped.values(), self._transports]
        self._lock = threading.Lock()
        self._transport = None
        self._looped = {}
        self._transports = Transports(self._access)
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
