"""How a request leaves for Cloud Storage: by which connections, proxy and certificates; and why it got nowhere.

Must not know what is asked, nor who owns the connections and closes them.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import Request

if TYPE_CHECKING:
    import httpcore

    from lockstead.stores.http import AwaitedPool, Pool

T = TypeVar("T")

_HEADERS: Final = {"User-Agent": "lockstead"}


class Transports:
    """Makes connections to the service that an `Access` names, and requests for them. Promises to close none of them.

    Made by one thread at a time; requests by any.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._base: httpcore.URL | None = None
        self._tls: ssl.SSLContext | None = None

    def blocking(self) -> Pool:
        """Make connections. StoreRefused or StoreUnavailable if the environment names a way that cannot be."""
        from lockstead.stores.http import blocking

        return self._made(blocking)

    def awaiting(self) -> AwaitedPool:
        """Make awaiting connections, like `blocking`."""
        from lockstead.stores.http import awaiting

        return self._made(awaiting)

    def request(self, request: Request, headers: Mapping[str, str]) -> httpcore.Request:
        """Return a request as httpcore wants it."""
        import httpcore

        from lockstead.stores.http import request as asked

        if self._base is None:
            self._base = httpcore.URL(self._access.endpoint)
        base = self._base
        target: bytes | None = base.target.rstrip(b"/") + request.target.encode("ascii")
        if self._access.proxy is not None:
            # a tunnel through a proxy would be asked for by that very target
            base = httpcore.URL(scheme=base.scheme, host=base.host, port=base.port, target=target or b"/")
            target = None
        return asked(request.method, base, target, {**_HEADERS, **headers}, request.content)

    def _made(self, make: Callable[[ssl.SSLContext, str | None], T]) -> T:
        """Make connections. No message repeats the address of a proxy, for there may be a password in it."""
        try:
            tls = self._verification()
        except OSError as error:
            raise StoreUnavailable(
                f"no certificates for the way to Cloud Storage ({error}); correct SSL_CERT_FILE or SSL_CERT_DIR"
            ) from error
        try:
            return make(tls, self._access.proxy)
        except (ImportError, ValueError) as error:
            more = f": {error}" if isinstance(error, ImportError) else ""
            raise StoreRefused(
                f"the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used ({type(error).__name__}{more}); correct "
                "the variable, or unset it"
            ) from None

    def _verification(self) -> ssl.SSLContext:
        if self._tls is None:
            # reading all the authorities takes a tenth of a second; a context without any trusts nobody
            is_secure = self._access.endpoint.startswith("https://")
            self._tls = _authorities() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._tls


def _authorities() -> ssl.SSLContext:
    """Trust those whom SSL_CERT_FILE or SSL_CERT_DIR names, or those that browsers trust."""
    import certifi

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if folder and not file:
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=file or certifi.where())


def translated(error: Exception, request: Request, bounds: Bounds) -> StoreError:
    """Tell what was certainly never sent from everything else, which may have been applied."""
    import httpcore

    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout | httpcore.PoolTimeout | httpcore.ProxyError):
        return StoreUnavailable(f"no connection to Cloud Storage for {request.what} ({told}); nothing was sent")
    if isinstance(error, httpcore.UnsupportedProtocol):
        return StoreRefused(f"the endpoint of Cloud Storage is not an address ({told}); correct the client's endpoint")
    if isinstance(error, httpcore.TimeoutException | TimeoutError):
        return OutcomeUnknown(f"no answer to {request.what} within {bounds.limit:.3g} s")
    return OutcomeUnknown(f"no clear answer to {request.what} ({told})")
