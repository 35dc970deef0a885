"""Connections to Cloud Storage with proxy and certificates, and translation of their errors.

Must not know the meaning of requests, nor who owns and closes the connections.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.bounds import Bounds
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.encoding import Request

if TYPE_CHECKING:
    import httpcore

T = TypeVar("T")

_HEADERS: Final = {"User-Agent": "lockstead"}


class Transports:
    """A factory of connection pools for the endpoint of an `Access`, and of requests. Does not close the pools."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def request(self, request: Request, headers: Mapping[str, str]) -> httpcore.Request:
        """Return the request for httpcore."""
        import httpcore

        from lockstead.stores.http import request as asked

        base = self._base
        target: bytes | None = base.target.rstrip(b"/") + request.target.encode("ascii")
        if self._access.proxy is not None:
            # httpcore would use the target for the tunnel through the proxy
            base = httpcore.URL(scheme=base.scheme, host=base.host, port=base.port, target=target or b"/")
            target = None
        return asked(request.method, base, target, {**_HEADERS, **headers}, request.content)

    def pool(self, make: Callable[[ssl.SSLContext, str | None], T]) -> T:
        """Return a connection pool from `make`.

        Raises StoreRefused or StoreUnavailable for an unusable proxy or certificate. No message contains the address of
        a proxy, which may include a password.
        """
        try:
            tls = self._tls
        except OSError as error:
            raise StoreUnavailable(
                f"cannot load the certificates for Cloud Storage ({error}); correct SSL_CERT_FILE or SSL_CERT_DIR"
            ) from error
        try:
            return make(tls, self._access.proxy)
        except (ImportError, ValueError) as error:
            more = f": {error}" if isinstance(error, ImportError) else ""
            raise StoreRefused(
                f"the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used ({type(error).__name__}{more}); correct "
                "the variable, or unset it"
            ) from None

    @cached_property
    def _base(self) -> httpcore.URL:
        import httpcore

        return httpcore.URL(self._access.endpoint)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # loading the authorities takes 0.1 s; a context without authorities trusts no server
        is_secure = self._access.endpoint.startswith("https://")
        return _authorities() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _authorities() -> ssl.SSLContext:
    """Return a context that trusts the authorities of SSL_CERT_FILE or SSL_CERT_DIR, or those of certifi."""
    import certifi

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if folder and not file:
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=file or certifi.where())


def translated(error: Exception, request: Request, bounds: Bounds) -> StoreError:
    """Return the StoreError for an error of httpcore.

    StoreUnavailable if the request was certainly not sent, StoreRefused for an invalid endpoint, else OutcomeUnknown.
    """
    import httpcore

    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout | httpcore.PoolTimeout | httpcore.ProxyError):
        return StoreUnavailable(f"cannot connect to Cloud Storage for {request.what}: {text}")
    if isinstance(error, httpcore.UnsupportedProtocol):
        return StoreRefused(f"the endpoint of Cloud Storage is not an address ({text}); correct the client's endpoint")
    if isinstance(error, httpcore.TimeoutException | TimeoutError):
        return OutcomeUnknown(f"no answer to {request.what} within {bounds.limit:.3g} s")
    return OutcomeUnknown(f"no clear answer to {request.what} ({text})")
