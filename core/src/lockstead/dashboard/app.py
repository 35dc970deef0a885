"""The ASGI application: its addresses, its headers, and what runs beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final
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
from lockstead.dashboard.board import ROWS_MAX, Board, Listing
from lockstead.dashboard.filters import Filter
from lockstead.dashboard.pages import Pages
from lockstead.dashboard.rendering import STATIC, Rendered, environment
from lockstead.dashboard.rows import DESCRIBED_MAX, identity, row_of, waiters_of
from lockstead.dashboard.watching import Watch
from lockstead.errors import StoreError
from lockstead.reading import clean
from lockstead.stores.port import ShowsQueue

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


class Dashboard:
    """The state behind the pages of one application."""

    def __init__(
        self,
        stores: Sequence[str | AsyncClient],
        access: Access,
        every: float,
        wall: Callable[[], float],
        rows_max: int,
    ) -> None:
        self.access = access
        self.wall = wall
        self.every = every
        self.title = "Locks"
        self.board = Board(wall, rows_max)
        self.templates = environment()
        self.tabs = 0
        self._rendered: dict[str, Rendered] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.watches = {one.name: one for one in (Watch(store, every, wall) for store in stores)}
        if len(self.watches) < len(stores):
            raise ValueError("a store is given twice")
        for watch in self.watches.values():
            watch.listing = Listing(watch.name, self.board.changed, self._observed)
            watch.watchers.append(watch.listing)
            self.board.listings.append(watch.listing)

    # --- what runs beside ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the rounds, if they do not run in this event loop: a mounted application is not told of the start."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._tasks = [loop.create_task(watch.run(), name=watch.name) for watch in self.watches.values()]

    async def stop(self) -> None:
        """Stop the rounds and close what was opened here."""
        tasks, self._tasks, self._loop = self._tasks, [], None
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        for watch in self.watches.values():
            await watch.close()

    async def look(self, limit: float) -> None:
        """Note that somebody looks; wait at most `limit` seconds for a listing of each store that is not old."""
        for watch in self.watches.values():
            watch.looked()
        oldest = self.wall() - 3 * self.every
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                for one in self.board.listings:
                    rounds = one.rounds
                    while one.rounds == rounds and (one.read_at is None or one.read_at < oldest) and one.error is None:
                        await self.board.next(self.board.version)

    @contextmanager
    def tab(self) -> Iterator[None]:
        """Count an open tab: rounds go on while there is one."""
        self.tabs += 1
        for watch in self.watches.values():
            watch.arrive()
        try:
            yield
        finally:
            self.tabs -= 1
            for watch in self.watches.values():
                watch.leave()

    def wake(self, store: str) -> None:
        """List a store at once."""
        self.watches[store].wake()

    def client(self, store: str) -> AsyncClient | None:
        """Return the client of a store; None if it is not open."""
        watch = self.watches.get(store)
        return None if watch is None else watch.client

    def _observed(self, store: str, at: float, locks: dict[str, Any]) -> None:
        """Note a listing."""

    # --- what the pages show -------------------------------------------------------------------------------------

    def rendered(self, wanted: Filter) -> Rendered:
        """Return what a filter shows now; rendered once for all tabs."""
        view = self.board.view(wanted)
        known = self._rendered.get(wanted.query)
        if known is None or known.view is not view:
            self._rendered = {name: one for name, one in self._rendered.items() if one.view.version == view.version}
            known = self._rendered[wanted.query] = Rendered(self.templates, view, wanted)
        return known

    async def described(self, store: str, key: str) -> dict[str, Any]:
        """Return what the page of a lock shows."""
        now = self.wall()
        listing = self.board.listing(store)
        assert listing is not None
        held = listing.locks.get(key)
        row = None if held is None else row_of(store, held, now, parts_max=DESCRIBED_MAX)
        waiting, audit, problem = [], [], ""
        client = self.client(store)
        if client is not None:
            try:
                audit = (await client.history(key))[-100:]
                if isinstance(client._engine.store, ShowsQueue):
                    waiting = list(waiters_of(await client.lock(key).contenders()))
            except (StoreError, ValueError) as error:
                problem = clean(str(error))[:300]
        return {
            "store": listing.state(now),
            "key": key,
            "id": identity(store, key),
            "row": row,
            "waiting": waiting,
            "audit": audit,
            "problem": problem,
            "timeline": [],
        }

    def metrics(self) -> tuple[bytes, str]:
        """Return the metrics as text, and their media type."""
        return b"", "text/plain"


def create_app(
    stores: Sequence[str | AsyncClient],
    *,
    token: str | None = None,
    admin_token: str | None = None,
    trusted_proxy_header: str | None = None,
    hosts: Sequence[str] = (),
    every: float = 2.0,
    rows_max: int = ROWS_MAX,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """Return the dashboard of some stores as an ASGI application. Mount it under any path.

    stores: URLs, or open clients, which stay open. token: what one needs to look. admin_token: what one needs to
    break; without it the pages are read-only. trusted_proxy_header: the header in which a proxy names the person; the
    proxy alone must be able to reach the application. hosts: names by which browsers call it, besides addresses and
    localhost. every: seconds between two listings. Raises ValueError for a URL that is not a store's.
    """
    access = Access(
        token=token, admin_token=admin_token, trusted_proxy_header=trusted_proxy_header, hosts=hosts, clock=clock
    )
    dash = Dashboard(stores, access, every, wall, rows_max)
    pages = Pages(dash)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        dash.start()
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
            return PlainTextResponse("this dashboard is not known by that name: start it with --host NAME\n", 421)
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
