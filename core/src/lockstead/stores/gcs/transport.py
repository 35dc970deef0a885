"""Decides how a request leaves for Cloud Storage: by which connections, proxy and certificates; and why it got nowhere.

It goes out through the transports of httpx, below its client: nothing there follows a redirect, keeps a cookie or
parses an address anew. Must not know what is asked, nor who owns a transport and closes it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar

from lockstead.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from lockstead.stores.gcs.access import Access
from lockstead.stores.gcs.wire import Request

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

KEEPALIVE: Final = 10.0
"""Seconds for which an idle connection is used again.

Longer than the longest pause of a waiter, so that polling needs no handshakes; far below the patience of the service
and of anything that forgets connections on the way (a minute and more), because a request that is sent into a
connection just closed has an unknown outcome, and sending it again would be a hidden repetition.
"""

CONNECTIONS_MAX: Final = 64

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


class Transports:
    """Makes transports to the service that an `Access` names, and requests for them. Promises to close none of them.

    Made by one thread at a time; requests by any.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._base: httpx.URL | None = None
        self._tls: ssl.SSLContext | None = None

    def blocking(self) -> httpx.HTTPTransport:
        """Make a transport. StoreRefused or StoreUnavailable if the environment names a way that cannot be."""
        import httpx

        return self._made(httpx.HTTPTransport)

    def awaiting(self) -> httpx.AsyncHTTPTransport:
        """Make an awaiting transport, like `blocking`."""
        import httpx

        return self._made(httpx.AsyncHTTPTransport)

    def request(self, request: Request, headers: Mapping[str, str], left: float) -> httpx.Request:
        """Give a request as httpx wants it, with what is left of its limit (seconds)."""
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

    def _made(self, kind: Callable[..., T]) -> T:
        """Make a transport. No message repeats the address of a proxy, for there may be a password in it."""
        import httpx

        try:
            return kind(**self._ways())
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            more = f": {error}" if isinstance(error, ImportError) else ""
            raise StoreRefused(
                f"the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used ({type(error).__name__}{more}); correct "
                "the variable, or unset it"
            ) from None
        except OSError as error:
            raise StoreUnavailable(
                f"no certificates for the way to Cloud Storage ({error}); correct SSL_CERT_FILE or SSL_CERT_DIR"
            ) from error

    def _ways(self) -> _Ways:
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


def translated(error: Exception, request: Request, limit: float) -> StoreError:
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
