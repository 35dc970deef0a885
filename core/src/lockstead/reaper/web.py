"""What the reaper serves by HTTP: /metrics, /healthz and /livez. It only shows; nothing can be changed here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lockstead.monitor.listening import is_bearer
from lockstead.monitor.openmetrics import OPENMETRICS, Metrics
from lockstead.monitor.serving import Connection

if TYPE_CHECKING:
    from lockstead.reaper.alerts import Outlet
    from lockstead.reaper.service import StoreReaper

HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def create_app(
    stores: Sequence[StoreReaper],
    metrics: Metrics,
    outlets: Sequence[Outlet],
    token: str | None,
    wall: Callable[[], float] = time.time,
) -> Starlette:
    """Return the application. token: what /metrics, and the details of /healthz, need as a bearer token."""

    def may(request: Request) -> bool:
        return token is None or is_bearer(request.headers.get("authorization"), token)

    async def show_metrics(request: Request) -> Response:
        if not may(request):
            return PlainTextResponse("a bearer token is needed\n", 401, {**HEADERS, "WWW-Authenticate": "Bearer"})
        return Response(metrics.text(), media_type=OPENMETRICS, headers=HEADERS)

    async def healthz(request: Request) -> Response:
        now = wall()
        is_ok = all(store.is_watched(now) for store in stores)
        said: dict[str, Any] = {"status": "ok" if is_ok else "degraded"}
        if may(request):
            said |= {
                "stores": [store.facts(now) for store in stores],
                "alerts": {outlet.name: outlet.facts() for outlet in outlets},
            }
        return JSONResponse(said, 200 if is_ok else 503, HEADERS)

    async def livez(_request: Request) -> Response:
        # a store that is down must not restart the reaper
        return PlainTextResponse("ok\n", 200, HEADERS)

    return Starlette(
        routes=[Route("/metrics", show_metrics), Route("/healthz", healthz), Route("/livez", livez)],
    )


class Server(uvicorn.Server):
    """A server that leaves the signals to the command."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            limit_concurrency=100,
            log_config=None,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield
