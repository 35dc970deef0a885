"""What carries out scripts on a bucket, awaiting: each request is sent once. Must not know what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstead.stores.aio_driver import AsyncDriverBase
from lockstead.stores.bounds import Bounds
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import Request
from lockstead.stores.gcs.transport import Transports, translated

if TYPE_CHECKING:
    from lockstead.stores.http import Answer


class AsyncDriver(AsyncDriverBase[Request, "Answer"]):
    """The connections of one process, or of one event loop, to Cloud Storage."""

    name = "Cloud Storage"

    def __init__(self, access: Access, transports: Transports) -> None:
        from lockstead.stores.http import awaiting

        self._access = access
        self._transports = transports
        self._pool = transports.pool(awaiting)
        self._is_open = True

    async def exchange(self, bounds: Bounds, request: Request, *, again: bool = True) -> Answer:
        """Send a request and return its response; again: once more if the service rejects the access token."""
        from lockstead.stores.http import aio_exchanged

        headers = await self._access.aio_signed(request.headers, bounds)
        try:
            answer = await aio_exchanged(self._pool, self._transports.request(request, headers), bounds)
        except Exception as error:
            raise translated(error, request, bounds) from error
        finally:
            if not self._is_open:
                await self._pool.aclose()  # closed during the request, and the pool may have reconnected
        if answer.status == 401 and self._access.rejected(headers) and again:
            # the first request was rejected before it had any effect, so this is not a hidden retry
            return await self.exchange(bounds, request, again=False)
        return answer

    async def aclose(self) -> None:
        """Close every connection; those in use as soon as they are not. Idempotent."""
        self._is_open = False
        await self._pool.aclose()
