"""Records as objects in Google Cloud Storage: one HTTP request for each command, without retries.

`google-cloud-storage` provides only credentials and endpoint: its client retries requests, fetches the bucket
implicitly, and hides response headers. Must not know the encoding of requests, nor what the fields of a record mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstead.protocol.commands import Command, StoreClock, TokenSource, Traits
from lockstead.script import Script
from lockstead.stores.bounds import LISTING_MAX, Bounds
from lockstead.stores.driven import DrivenStore
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.aio_driver import AsyncDriver
from lockstead.stores.gcs.client import RetryingClient
from lockstead.stores.gcs.driver import Driver
from lockstead.stores.gcs.encoding import BucketPath, Request, exchange
from lockstead.stores.gcs.transport import Transports
from lockstead.stores.loops import PerLoop

if TYPE_CHECKING:
    from lockstead.stores.examination import Finding, Guarantee
    from lockstead.stores.http import Answer
    from lockstead.values import Name

TRAITS: Final = Traits(
    scheme="gs",
    guarantee="consensus: strongly consistent reads, and writes with preconditions",
    clock=StoreClock.TWO_CLOCKS,
    tokens=TokenSource.DRAWN,
    clock_skew_max=2.0,
    clock_resolution=1.0,
    ttl_recommended=20.0,
    foreign=True,
    draws_by_clock=True,
    pace=1.0,
)


class GcsStore(DrivenStore[Driver, AsyncDriver]):
    """Records as objects in a bucket. It is slow: a request takes tens to hundreds of milliseconds.

    An object accepts about one change per second; the service rejects further changes, with an unknown outcome.
    """

    traits = TRAITS

    def __init__(self, place: BucketPath, access: Access) -> None:
        self._place = place
        self.url = place.url
        self._access = access
        self._transports = Transports(access)
        super().__init__()

    def _begin(self) -> None:
        self._access.forget()
        # not at the first request, because its duration calibrates the clocks
        self._driver = Driver(self._access, self._transports)
        self._drivers = PerLoop(partial(AsyncDriver, self._access, self._transports), AsyncDriver.aclose)

    def _script(self, command: Command[Any], _bounds: Bounds) -> Script[Request, Answer, Any]:
        return exchange(command, self._place)

    @property
    def diverted(self) -> str | None:
        """A message that an emulator's variable redirects the locks; None if it is not set."""
        if self._access.by is None:
            return None
        return f"{self._access.by} is set: these locks are at {self._access.endpoint}, not in Cloud Storage"

    @property
    def behind(self) -> Mapping[Guarantee, str]:
        """Return what in this store is behind a guarantee."""
        from lockstead.stores.gcs.doctor import BEHIND

        return BEHIND

    def examine(self, scratch: Callable[[str], Name], limit: float) -> Iterator[Finding]:
        """Diagnose the endpoint, the bucket's settings and this account's permissions."""
        from lockstead.stores.gcs.doctor import examination

        def send(request: Request) -> Answer:
            return self._driver.exchange(Bounds(limit, LISTING_MAX), request)

        return examination(RetryingClient(self._place, self._access, send), scratch)
