"""The ASGI application: its addresses, and what stands before each: the name it is called by, who asks, the headers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from os import PathLike, fspath
from typing import Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstead.aio_lock import AsyncClient
from lockstead.dashboard.access import Access
from lockstead.dashboard.board import ROWS_MAX
from lockstead.dashboard.history import History
from lockstead.dashboard.pages import Pages
from lockstead.dashboard.rendering import STATIC
from lockstead.dashboard.state import Dashboard
from lockstead.monitor.listening import checked_token
from lockstead.monitor.names import LockNames

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: nothing from elsewhere, nothing inline, no frame around it."""

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # not no-referrer: with it browsers send `Origin: null` with our own forms
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

LASTING: Final = "max-age=31536000, immutable"
"""How long a static file is kept: its address changes with its content."""

OPEN_TO_ALL: Final = ("/login", "/healthz", "/static/")


def create_app(
    stores: Sequence[str | AsyncClient],
    *,
    token: str | None = None,
    admin_token: str | None = None,
    trusted_proxy_header: str | None = None,
    hosts: Sequence[str] = (),
    history: str | PathLike[str] | None = None,
    lock_labels: Sequence[str] = (),
    title: str = "Locks",
    every: float = 1.0,
    rows_max: int = ROWS_MAX,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """Return the dashboard of some stores as an ASGI application. Mount it under any path.

    stores: URLs, or open clients, which stay open. token: what one needs to look. admin_token: what one needs to
    break; without it the pages are read-only. trusted_proxy_header: the header in which a proxy names the person; the
    proxy alone must be able to reach the application. hosts: names by which browsers call it, besides addresses and
    localhost. history: the SQLite file that keeps what was seen, even while nobody looks; it belongs to one dashboard.
    lock_labels: names of locks in /metrics, as in "apt-*=apt". every: seconds between two listings of a store. Raises
    ValueError or TypeError for what cannot be used.
    """
    if isinstance(stores, str):
        raise TypeError("stores is a list of URLs or clients, not a text")
    for name, one in (("token", token), ("admin_token", admin_token)):
        if one is not None:
            checked_token(one, f"{name} is the token itself,")
    access = Access(
        token=token, admin_token=admin_token, trusted_proxy_header=trusted_proxy_header, hosts=hosts, clock=clock
    )
    if not every > 0:
        raise ValueError(f"every is a number of seconds above 0, not {every!r}")
    names = LockNames.parse(lock_labels)
    kept = History(None if history is None else fspath(history))
    try:
        dash = Dashboard(
            stores,
            access,
            every=every,
            history=kept,
            always=history is not None,
            names=names,
            rows_max=rows_max,
            title=title,
            wall=wall,
        )
    except BaseException:
        kept.close()
        raise
    pages = Pages(dash)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        dash.start()
        for watch in dash.watches.values():
            watch.looked()
        try:
            yield
        finally:
            await dash.stop()

    app = Starlette(
        routes=[
            Route("/", pages.index),
            Route("/events", pages.events),
            Route("/lock", pages.lock),
            Route("/lock-events", pages.lock_events),
            Route("/break", pages.ask_to_break),
            Route("/break", pages.break_lease, methods=["POST"]),
            Route("/login", pages.login),
            Route("/login", pages.log_in, methods=["POST"]),
            Route("/logout", pages.log_out, methods=["POST"]),
            Route("/metrics", pages.metrics),
            Route("/healthz", pages.healthz),
            Mount("/static", StaticFiles(directory=STATIC), name="static"),
        ],
        lifespan=lifespan,
    )
    app.add_middleware(Gate, dash=dash)
    app.state.dashboard = dash
    return app


class Gate:
    """Stands before every page: the name it is called by, who asks, where a form comes from, and the headers."""

    def __init__(self, app: ASGIApp, dash: Dashboard) -> None:
        self._app = app
        self._dash = dash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._dash.start()
        request = Request(scope, receive)
        refusal = self._refusal(request)
        lasts = LASTING if _path(scope).startswith("/static/") else "no-store"

        async def with_headers(part: Message) -> None:
            if part["type"] == "http.response.start":
                headers = MutableHeaders(scope=part)
                for name, text in HEADERS.items():
                    headers[name] = text
                headers.setdefault("cache-control", lasts)
            await send(part)

        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        access, path = self._dash.access, _path(request.scope)
        if path == "/healthz":
            return None
        if not access.knows_host(request):
            return PlainTextResponse(
                "this dashboard is not known by that name: give it by --host, or hosts= of create_app\n", 421
            )
        if access.is_embedded(request):
            return PlainTextResponse("this dashboard cannot be embedded in another site\n", 403)
        if request.method not in ("GET", "HEAD") and not access.is_same_origin(request):
            return PlainTextResponse("this form was not sent by a page of this dashboard\n", 403)
        visitor = request.scope["lockstead.visitor"] = access.visitor(request)
        if visitor.may_read or path.startswith(OPEN_TO_ALL):
            return None
        return _unknown(request, access)


def _unknown(request: Request, access: Access) -> Response:
    if access.has_login and _is_page(request):
        query = f"?{request.url.query}" if request.url.query else ""
        there = (_path(request.scope).lstrip("/") or "./") + query
        return RedirectResponse("login?" + urlencode({"next": there}), 303)
    return PlainTextResponse("log in first\n", 401, {"www-authenticate": "Bearer"})


def _is_page(request: HTTPConnection) -> bool:
    """Whether a browser shows what the address answers."""
    return _path(request.scope) in ("/", "/lock", "/break")


def _path(scope: Scope) -> str:
    """Return the path below the place where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) or "/"
