# Generated from aio_driver.py by `make blocking`: edit that file instead.
"""What carries out scripts on a bucket, blocking: each request is sent once. Must not know what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstead.stores.bounds import Bounds
from lockstead.stores.driver import DriverBase
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import Request
from lockstead.stores.gcs.transport import Transports, translated

if TYPE_CHECKING:
    from lockstead.stores.http import Answer


class Driver(DriverBase[Request, "Answer"]):
    """The connections of one process, or of one event loop, to Cloud Storage."""

    name = "Cloud Storage"

    def __init__(self, access: Access, transports: Transports) -> None:
        from lockstead.stores.http import blocking

        self._access = access
        self._transports = transports
        self._pool = transports.pool(blocking)
        self._is_open = True

    def exchange(self, bounds: Bounds, request: Request, *, again: bool = True) -> Answer:
        """Send a request and return its response; again: once more if the service rejects the access token."""
        from lockstead.stores.http import exchanged

        headers = self._access.signed(request.headers, bounds)
        try:
            answer = exchanged(self._pool, self._transports.request(request, headers), bounds)
        except Exception as error:
            raise translated(error, request, bounds) from error
        finally:
            if not self._is_open:
                self._pool.close()  # closed during the request, and the pool may have reconnected
        if answer.status == 401 and self._access.rejected(headers) and again:
            # the first request was rejected before it had any effect, so this is not a hidden retry
            return self.exchange(bounds, request, again=False)
        return answer

    def close(self) -> None:
        """Close every connection; those in use as soon as they are not. Idempotent."""
        self._is_open = False
        self._pool.close()
