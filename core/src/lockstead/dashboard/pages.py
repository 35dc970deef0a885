"""What each address answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from lockstead.dashboard.access import Visitor, cookie_name
from lockstead.dashboard.breaking import NAME_MAX, Asked, Chosen, carry_out, chosen
from lockstead.dashboard.filters import Filter
from lockstead.dashboard.live import TABS_MAX, EventStream, message
from lockstead.dashboard.rendering import lasting
from lockstead.monitor.openmetrics import OPENMETRICS

if TYPE_CHECKING:
    from lockstead.dashboard.board import Listing
    from lockstead.dashboard.state import Dashboard

NO_STORE: Final = "This dashboard shows no such store."

FORM_BYTES_MAX: Final = 20_000
FRESH_WITHIN: Final = 2.0
"""Seconds for which a page waits for a listing, if the last one is old; then it shows what is known."""


class Pages:
    """The endpoints of one dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dash = dashboard

    # --- reading -------------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        """Show every lock that the filter admits."""
        await self._dash.look(FRESH_WITHIN)
        wanted = Filter.parse(request.query_params)
        shown = await self._dash.rendered(wanted)
        return self._page(request, "locks.html", filter=wanted, view=shown.view, rows=shown.rows)

    async def events(self, request: Request) -> Response:
        """Stream the changes of the list."""
        return self._stream(list_events(self._dash, Filter.parse(request.query_params)))

    async def lock(self, request: Request) -> Response:
        """Show one lock and its history."""
        await self._dash.look(FRESH_WITHIN)
        listing = self._dash.board.listing(request.query_params.get("store", ""))
        if listing is None:
            return self._problem(request, 404, NO_STORE)
        return self._page(request, "lock.html", **await self._dash.described(listing, self._key(request)))

    async def lock_events(self, request: Request) -> Response:
        """Stream the changes of one lock."""
        listing = self._dash.board.listing(request.query_params.get("store", ""))
        if listing is None:
            return self._problem(request, 404, NO_STORE)
        return self._stream(lock_events(self._dash, listing, self._key(request), self._visitor(request)))

    def _key(self, request: Request) -> str:
        return request.query_params.get("key", "")[:NAME_MAX]

    def _stream(self, events: AsyncGenerator[str]) -> Response:
        if self._dash.tabs >= TABS_MAX:
            return PlainTextResponse("too many open pages\n", 503, {"retry-after": "30"})
        return EventStream(events)

    async def metrics(self, _request: Request) -> Response:
        """Return the gauges of every store, of a round that is not old."""
        await self._dash.look(FRESH_WITHIN)
        return Response(self._dash.metrics.text(), headers={"content-type": OPENMETRICS})

    async def healthz(self, _request: Request) -> Response:
        """Return that the dashboard answers. The page and the metrics show which stores do."""
        return PlainTextResponse("ok\n", headers={"cache-control": "no-store"})

    # --- logging in ----------------------------------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        """Show the form for a token."""
        return self._login(request, 200, "", request.query_params.get("next", ""))

    async def log_in(self, request: Request) -> Response:
        """Open a session for a token."""
        form = await read_form(request)
        access, there = self._dash.access, _own_page(form.get("next", ""))
        address = request.client.host if request.client else ""
        if (wait := access.logins.wait(address)) > 0:
            return self._login(request, 429, f"Too many wrong tokens. Try again in {wait:.0f} seconds.", there)
        secret = access.log_in(form.get("token", ""))
        if secret is None:
            access.logins.count(address)
            return self._login(request, 403, "This token is wrong.", there)
        answer = RedirectResponse(there, 303)
        answer.set_cookie(
            cookie_name(request),
            secret,
            path=(request.scope.get("root_path") or "") + "/",
            # behind a proxy the address of the page tells more than the request
            secure=request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:"),
            httponly=True,
            samesite="lax",
        )
        return answer

    def _login(self, request: Request, status: int, problem: str, there: str) -> Response:
        return self._page(request, "login.html", status, problem=problem, next=_own_page(there))

    async def log_out(self, request: Request) -> Response:
        """Close the session."""
        form = await read_form(request)
        session = self._visitor(request).session
        if session is not None and self._dash.access.has_proof(session, form.get("csrf", "")):
            self._dash.access.log_out(request)
        return RedirectResponse("./", 303)

    # --- breaking ------------------------------------------------------------------------------------------------

    async def ask_to_break(self, request: Request) -> Response:
        """Show what a break would do, and ask for a reason."""
        if not self._visitor(request).may_break:
            return self._refused(request)
        return await self._form(request, Asked.parse(request.query_params), 200)

    async def break_lease(self, request: Request) -> Response:
        """Break the lease that the form showed, and no other."""
        visitor = self._visitor(request)
        if visitor.session is None or not visitor.may_break:
            return self._refused(request)
        form = await read_form(request)
        if not self._dash.access.has_proof(visitor.session, form.get("csrf", "")):
            return self._problem(request, 403, "This form is too old: open the page of the lock again.")
        asked = Asked.parse(form)
        if not asked.reason:
            return await self._form(request, asked, 400, "A break needs a reason: the holder and the history show it.")
        if (wait := self._dash.access.breaks.wait("")) > 0:
            return await self._form(request, asked, 429, f"Too many breaks. Try again in {wait:.0f} seconds.")
        self._dash.access.breaks.count("")  # before anything is awaited: many may be asked for at once
        found = await self._chosen(asked)
        if isinstance(found, str):
            return await self._form(request, asked, 409, found)
        client = request.client.host if request.client else "an unknown address"
        by = visitor.who or asked.by or f"dashboard admin at {client}"
        visitor.session.notice = await carry_out(found, asked, by)
        self._dash.broke(asked.store, asked.key)
        return RedirectResponse("lock?" + urlencode({"store": asked.store, "key": asked.key}), 303)

    async def _chosen(self, asked: Asked) -> Chosen | str:
        client = self._dash.client(asked.store)
        if client is None:
            return "This store is not open: it does not answer."
        return await chosen(client, asked, self._dash.wall())

    async def _form(self, request: Request, asked: Asked, status: int, problem: str = "") -> Response:
        found = await self._chosen(asked)
        if isinstance(found, str):
            return self._problem(request, 409 if status == 200 else status, found)
        return self._page(request, "break.html", status, asked=asked, found=found, problem=problem)

    # --- answers -------------------------------------------------------------------------------------------------

    def _visitor(self, request: Request) -> Visitor:
        visitor: Visitor = request.scope["lockstead.visitor"]
        return visitor

    def _refused(self, request: Request) -> Response:
        if not self._dash.access.has_admin:
            return self._problem(
                request, 403, "This dashboard is read-only: it was started without --admin-token-file."
            )
        there = f"break?{request.url.query}" if request.method == "GET" else "./"
        return RedirectResponse("login?" + urlencode({"next": there}), 303)

    def _problem(self, request: Request, status: int, problem: str) -> Response:
        return self._page(request, "problem.html", status, problem=problem)

    def _page(self, request: Request, name: str, status: int = 200, **given: Any) -> Response:
        visitor, access = self._visitor(request), self._dash.access
        notice = ""
        if visitor.session is not None and request.method == "GET":
            notice, visitor.session.notice = visitor.session.notice, ""
        shared = {
            "visitor": visitor,
            "csrf": visitor.session.csrf if visitor.session else "",
            "has_login": access.has_login,
            "has_admin": access.has_admin,
            "notice": notice,
            "title": self._dash.title,
            "now": self._dash.wall(),
        }
        return HTMLResponse(self._dash.templates.get_template(name).render(shared | given), status)


async def list_events(dash: Dashboard, wanted: Filter) -> AsyncGenerator[str]:
    """Yield what changed in the list: all of it if locks came, went or moved, otherwise the rows that differ."""
    sent: dict[str, int] | None = None
    version = -1
    with dash.tab():
        while (upcoming := await dash.board.next(version)) is not None:
            version = upcoming
            shown = await dash.rendered(wanted)
            prints = shown.prints
            if sent is not None and list(prints) == list(sent):
                ids = [name for name, print_ in prints.items() if sent[name] != print_]
                text = message("rows", shown.changed(ids)) if ids else ""
            else:
                text = message("list", shown.everything())
            sent = dict(prints)
            yield text + message("summary", shown.summary())


async def lock_events(dash: Dashboard, listing: Listing, key: str, visitor: Visitor) -> AsyncGenerator[str]:
    """Yield the page of a lock whenever it changed."""
    version, sent = -1, None
    with dash.tab():
        while (upcoming := await dash.board.next(version)) is not None:
            version = upcoming
            given = await dash.described(listing, key)
            row, store = given["row"], given["store"]
            lasts = row and lasting(row), store.error, *(given[name] for name in ("waiting", "problem", "timeline"))
            if lasts != sent:
                sent = lasts
                given |= {"visitor": visitor, "has_admin": dash.access.has_admin}
                text = dash.templates.get_template("_lock.html").render(given)
                yield message("lock", text)


async def read_form(request: Request) -> Mapping[str, str]:
    """Return a form's fields; empty if it is too large, no form, or not sent to its end."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                return {}
    except ClientDisconnect:
        return {}
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        return {}


def _own_page(there: str) -> str:
    """Return the address of a page of ours, relative to another; the list for anything else."""
    page, mark, query = there.partition("?")
    is_ours = page in ("", "./", "lock", "break") and query.isascii() and query.isprintable() and len(there) < 4000
    return (page or "./") + mark + query if is_ours else "./"
