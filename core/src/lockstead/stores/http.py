"""HTTP requests within bounds, over the connection pools of httpcore, blocking or asynchronous.

Never follows a redirect, keeps a cookie, or sends a request twice. Imported only when a store is opened, because it
imports httpcore. Must not know what is requested, nor from which server.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import zip_longest
from typing import Any, Final, TypeAlias, cast

import httpcore

from lockstead.errors import StoreUnavailable
from lockstead.frozen import frozen
from lockstead.stores.awaiting import aside
from lockstead.stores.bounds import Bounds

KEEPALIVE: Final = 10.0
"""Seconds for which an idle connection may be reused.

Longer than the longest pause of a waiter, so that polling needs no handshakes. Far below the idle timeouts of servers
and of middleboxes on the way (a minute and more), because a request sent over a connection that was just closed has an
unknown outcome, and sending it again would be a hidden retry.
"""

CONNECTIONS_MAX: Final = 64

Pool: TypeAlias = httpcore.ConnectionPool
AsyncPool: TypeAlias = httpcore.AsyncConnectionPool


@frozen
class Answer:
    """An HTTP response. headers: by lower-case name; the last value of each."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class _Phases(dict[str, Any]):
    """The bounds of a request, passed as httpcore's timeouts by phase; httpcore hands them to the stream unread."""

    def __init__(self, bounds: Bounds, share: float) -> None:
        super().__init__()
        self._bounds = bounds
        self._share = share

    def get(self, phase: str, _default: object = None) -> Any:
        if phase == "pool":
            return _seconds(self._bounds)
        return self._bounds.part(self._share) if phase == "connect" else self._bounds


class _AwaitedPhases(_Phases):
    """Like `_Phases`, in seconds; `aio_exchanged` also limits the whole request and counts the bytes read."""

    def get(self, phase: str, _default: object = None) -> Any:
        return _seconds(self._bounds.part(self._share) if phase == "connect" else self._bounds)


def _seconds(bounds: Bounds) -> float:
    return max(0.001, bounds.ends_at - time.monotonic())


class _Stream(httpcore.NetworkStream):
    """A connection whose operations count against the bounds of the current request."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if timeout is None:
            return self._inner.read(max_bytes)
        bounds = cast(Bounds, timeout)
        came = self._inner.read(max_bytes, bounds.left())
        bounds.took(len(came))
        return came

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, None if timeout is None else cast(Bounds, timeout).left())

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _until_connected(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """A network backend that opens connections of type `_Stream`."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        seconds = _until_connected(timeout)
        return _Stream(self._inner.connect_tcp(host, port, seconds, local_address, socket_options))


class _AwaitedBackend(httpcore.AsyncNetworkBackend):
    """A network backend that looks no name up in the loop's executor, whose threads are joined when the loop ends."""

    def __init__(self) -> None:
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as in httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        ends_at = time.monotonic() + (math.inf if timeout is None else timeout)
        lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            try:
                found = lookup(flags=socket.AI_NUMERICHOST)
            except OSError:
                found = await aside(lookup, ends_at)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no address of {host} was found in time") from error
        except (OSError, UnicodeError, StoreUnavailable) as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = _in_turn(found)
        for number, address in enumerate(addresses, 1):
            left = (ends_at - time.monotonic()) / (len(addresses) - number + 1)
            try:
                return await self._inner.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise httpcore.ConnectError(f"no address of {host} is known")


def _in_turn(found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the addresses of a lookup, IPv6 and IPv4 in turn, so that one that leads nowhere costs little time."""
    by_family: dict[int, list[str]] = {}
    for family, *_, address in found:
        by_family.setdefault(family, []).append(address[0])
    return [address for addresses in zip_longest(*by_family.values()) for address in addresses if address]


def _until_connected(timeout: object) -> float | None:
    if timeout is None:
        return None
    try:
        return cast(Bounds, timeout).left()
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(str(error)) from error


# --- pools ---------------------------------------------------------------------------------------------------------


def blocking(tls: ssl.SSLContext, proxy: str | None = None) -> Pool:
    """Return a pool for blocking requests. Raises ValueError or ImportError for an unusable proxy."""
    kinds = httpcore.ConnectionPool, httpcore.HTTPProxy, httpcore.SOCKSProxy
    return cast(Pool, _made(*kinds, _Backend(), tls, proxy))


def awaiting(tls: ssl.SSLContext, proxy: str | None = None) -> AsyncPool:
    """Return a pool for asynchronous requests of one event loop, like `blocking`."""
    kinds = httpcore.AsyncConnectionPool, httpcore.AsyncHTTPProxy, httpcore.AsyncSOCKSProxy
    return cast(AsyncPool, _made(*kinds, _AwaitedBackend(), tls, proxy))


def _made(direct: Any, by_http: Any, by_socks: Any, backend: object, tls: ssl.SSLContext, proxy: str | None) -> object:
    settings: dict[str, Any] = {
        "ssl_context": tls,
        "network_backend": backend,
        "max_connections": CONNECTIONS_MAX,
        "max_keepalive_connections": CONNECTIONS_MAX,
        "keepalive_expiry": KEEPALIVE,
    }
    if proxy is None:
        return direct(**settings)
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(proxy)
    if not parts.hostname or parts.scheme not in ("http", "https", "socks5", "socks5h"):
        raise ValueError("neither http, https nor socks5, or without a host")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 1080)
    host = parts.hostname.encode("idna") if not parts.hostname.isascii() else parts.hostname.encode()
    scheme = parts.scheme.removesuffix("h") if parts.scheme.startswith("socks") else parts.scheme
    where = httpcore.URL(scheme=scheme.encode(), host=host, port=port, target=b"/")
    proxy_auth = (unquote(parts.username).encode(), unquote(parts.password or "").encode()) if parts.username else None
    if parts.scheme.startswith("socks"):
        import socksio  # type: ignore[import-not-found]  # noqa: F401  # so that it is found missing now, not at the first request

        return by_socks(proxy_url=where, proxy_auth=proxy_auth, **settings)
    if parts.scheme == "https":
        settings["proxy_ssl_context"] = ssl.create_default_context()
    return by_http(proxy_url=where, proxy_auth=proxy_auth, **settings)


# --- requests ------------------------------------------------------------------------------------------------------


def request(
    method: str, url: httpcore.URL, target: bytes | None, headers: Mapping[str, str], content: bytes
) -> httpcore.Request:
    """Return a request. target: path and query as sent, if not those of the url; only without a proxy."""
    lines = [(b"Host", _host(url)), *((name.encode(), value.encode()) for name, value in headers.items())]
    if content or method not in ("GET", "DELETE"):
        lines.append((b"Content-Length", b"%d" % len(content)))
    extensions: dict[str, Any] = {} if target is None else {"target": target}
    return httpcore.Request(method, url, headers=lines, content=content, extensions=extensions)


def _host(url: httpcore.URL) -> bytes:
    host = b"[%b]" % url.host if b":" in url.host else url.host
    usual = {b"http": 80, b"https": 443}.get(url.scheme)
    return host if url.port in (None, usual) else b"%b:%d" % (host, url.port)


def exchanged(pool: Pool, asked: httpcore.Request, bounds: Bounds, share: float = 1.0) -> Answer:
    """Send a request once and return its response, within bounds. share: fraction of the time left for connecting.

    Raises httpcore's errors, TimeoutError or AnswerTooLong.
    """
    asked.extensions["timeout"] = _Phases(bounds, share)
    response = pool.handle_request(asked)
    try:
        body = b"".join(cast(Iterable[bytes], response.stream))
    finally:
        response.close()
    return _answer(response, body)


async def aio_exchanged(pool: AsyncPool, asked: httpcore.Request, bounds: Bounds, share: float = 1.0) -> Answer:
    """Like `exchanged`, asynchronously."""
    asked.extensions["timeout"] = _AwaitedPhases(bounds, share)
    # each phase has its own limit, which ends first: its error says whether anything was sent
    async with asyncio.timeout(_seconds(bounds) + 0.1):
        response = await pool.handle_async_request(asked)
        try:
            pieces = []
            async for piece in cast(Any, response.stream):
                bounds.took(len(piece))
                pieces.append(piece)
        finally:
            await response.aclose()
    return _answer(response, b"".join(pieces))


def _answer(response: httpcore.Response, body: bytes) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.headers}, body)
