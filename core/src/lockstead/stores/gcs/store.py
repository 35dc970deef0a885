"""Records as objects in Google Cloud Storage: one HTTP request for each command, without retries.

`google-cloud-storage` provides only credentials and endpoint: its client retries requests, fetches the bucket
implicitly, and hides response headers. Must not know the encoding of requests, nor what the fields of a record mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstead.aio_script import drive as adrive
from lockstead.errors import StoreUnavailable
from lockstead.protocol.commands import Command, StoreClock, TokenSource, Traits
from lockstead.script import drive
from lockstead.stores.bounds import LISTING_MAX, Bounds, bounds_of
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import BucketPath, Request, exchange
from lockstead.stores.gcs.transport import Transports, translated
from lockstead.stores.loops import PerLoop
from lockstead.stores.port import StoreBase

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee
    from lockstead.stores.http import Answer, AwaitedPool
    from lockstead.values import Name

A = TypeVar("A")

TRAITS: Final = Traits(
    scheme="gs",
    guarantee="consensus: strongly consistent reads, and writes with preconditions",
    clock=StoreClock.TWO_CLOCKS,
    tokens=TokenSource.DRAWN,
    clock_skew_max=2.0,
    clock_resolution=1.0,
    ttl_recommended=20.0,
    foreign=True,
    pace=1.0,
)


class GcsStore(StoreBase):
    """Records as objects in a bucket. It is slow: a request takes tens to hundreds of milliseconds.

    An object accepts about one change per second; the service rejects further changes, with an unknown outcome.
    """

    traits = TRAITS

    def __init__(self, place: BucketPath, access: Access) -> None:
        self._place = place
        self.url = place.url
        self._access = access
        self._transports = Transports(access)
        self._inherited: list[object] = []
        self._is_open = True
        self._make_pools()

    def _make_pools(self) -> None:
        # not at the first request, because its duration calibrates the clocks
        self._pool = self._transports.blocking()
        self._awaiting = PerLoop(self._transports.awaiting, lambda pool: pool.aclose())

    @property
    def diverted(self) -> str | None:
        """A message that an emulator's variable redirects the locks; None if it is not set."""
        if self._access.by is None:
            return None
        return f"{self._access.by} is set: these locks are at {self._access.endpoint}, not in Cloud Storage"

    # --- blocking ------------------------------------------------------------------------------------------------

    def perform(self, command: Command[A], limit: float) -> A:
        """Carry out one command within `limit` seconds: one request, except for a listing of several pages."""
        bounds = bounds_of(command, limit)
        return cast(A, drive(exchange(command, self._place), lambda request: self._send(request, bounds)))

    def _send(self, request: Request, bounds: Bounds, *, again: bool = True) -> Answer:
        from lockstead.stores.http import exchanged

        self._check_open()
        pool, headers = self._pool, self._access.signed(request.headers, bounds)
        try:
            answer = exchanged(pool, self._transports.request(request, headers), bounds)
        except Exception as error:
            raise translated(error, request, bounds) from error
        finally:
            if not self._is_open:
                pool.close()  # the store was closed during the request, and the pool may have reconnected
        if answer.status == 401 and self._access.rejected(headers) and again:
            # the first request was rejected before it had any effect, so this is not a hidden retry
            return self._send(request, bounds, again=False)
        return answer

    # --- examining -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """The mechanism of Cloud Storage behind each guarantee."""
        from lockstead.stores.gcs.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:
        """Diagnose the endpoint, the bucket's settings and this account's permissions."""
        from lockstead.stores.gcs.client import RetryingClient
        from lockstead.stores.gcs.doctor import examination

        def send(request: Request) -> Answer:
            return self._send(request, Bounds(limit, LISTING_MAX))

        return examination(RetryingClient(self._place, self._access, send), scratch)

    # --- asynchronous --------------------------------------------------------------------------------------------

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Carry out one command like `perform`, asynchronously, from any asyncio event loop."""
        bounds = bounds_of(command, limit)
        self._check_open()
        pool = await self._awaiting.get()
        return await adrive(exchange(command, self._place), lambda request: self._asend(pool, request, bounds))

    async def _asend(self, pool: AwaitedPool, request: Request, bounds: Bounds, *, again: bool = True) -> Answer:
        from lockstead.stores.http import aexchanged

        headers = await self._access.asigned(request.headers, bounds)
        try:
            answer = await aexchanged(pool, self._transports.request(request, headers), bounds)
        except Exception as error:
            raise translated(error, request, bounds) from error
        finally:
            if not self._is_open:
                await pool.aclose()
        if answer.status == 401 and self._access.rejected(headers) and again:
            return await self._asend(pool, request, bounds, again=False)
        return answer

    # --- both ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.url} is closed")

    def after_fork(self) -> None:
        """Forget every inherited connection without closing it, because it belongs to the parent."""
        self._inherited += [self._pool, self._awaiting]
        self._access.forget()
        self._make_pools()

    def close(self) -> None:
        """Close every connection. Idempotent. Those of other event loops are closed there, which may take 1 s."""
        self._is_open = False
        self._pool.close()
        self._awaiting.close()
