"""Asking the application without a server: stores in memory, an HTTP client inside, and a loop in virtual time."""

from __future__ import annotations

import asyncio
import html
import re
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl

import httpx
from starlette.applications import Starlette

from lockstead import AsyncClient
from lockstead.dashboard import create_app
from lockstead.dashboard.state import Dashboard
from lockstead.protocol.commands import Command
from tests.runtime.faulty import Faulty, quiet

SITE: Final = "http://localhost:8123"
ADMIN: Final = "an-admin-token-of-ours"
READER: Final = "a-token-of-a-reader"
OURS: Final = {"sec-fetch-site": "same-origin"}
"""What a browser says with a form that a page of ours sends."""


class Asker:
    """An application, its store and a browser that asks it."""

    def __init__(self, app: Starlette, store: Faulty, client: AsyncClient, browser: httpx.AsyncClient) -> None:
        self.app = app
        self.dash: Dashboard = app.state.dashboard
        self.store = store
        self.client = client
        self.browser = browser

    @property
    def url(self) -> str:
        """The name of the store."""
        return self.store.url

    async def page(self, path: str = "/", status: int = 200, **query: str) -> str:
        """Return a page."""
        answer = await self.browser.get(path, params=query or None)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.text

    async def lock(self, key: str) -> str:
        """Return the page of a lock."""
        return await self.page("/lock", store=self.url, key=key)

    async def log_in(self, token: str = ADMIN) -> httpx.Response:
        """Send the form for a token."""
        return await self.browser.post("/login", data={"token": token}, headers=OURS)

    async def form(self, key: str, number: int = 0) -> dict[str, str]:
        """Return the fields of the form that breaks a lease, as the page of its lock leads to it."""
        links = re.findall(r'href="(break\?[^"]*)"', await self.lock(key))
        link = html.unescape(links[number])
        page = await self.page("/" + link)
        hidden = re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)"', page)
        fields = {name: html.unescape(text) for name, text in hidden}
        assert fields.items() >= dict(parse_qsl(link.partition("?")[2])).items()
        return fields

    async def round(self) -> None:
        """Have the store listed once more."""
        self.dash.start()
        (watch,) = self.dash.watches.values()
        rounds = watch.listing.rounds
        watch.looked()
        while watch.listing.rounds == rounds:
            watch.wake()
            await asyncio.sleep(0.001)
        await self.dash.recorder.settled()


class Prompt(Faulty):
    """A store that answers in the event loop. A loop in virtual time does not wait for threads."""

    async def aperform(self, command: Command[Any], limit: float) -> Any:
        """Answer at once."""
        return self.perform(command, limit)


@asynccontextmanager
async def asking(store: Faulty | None = None, site: str = SITE, **given: Any) -> AsyncGenerator[Asker]:
    """Open an application for one store in memory."""
    store = store or Faulty()
    async with AsyncClient(store, listener=quiet) as client:
        app = create_app([client], **{"every": 3600.0, **given})
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url=site) as browser:
                yield Asker(app, store, client, browser)
        finally:
            await app.state.dashboard.stop()


def asked(body: Callable[[Asker], Awaitable[None]], **given: Any) -> None:
    """Run a test with an application of one store."""

    async def run() -> None:
        async with asyncio.timeout(60), asking(**given) as asker:
            await body(asker)

    asyncio.run(run())


class _Jumping(selectors.DefaultSelector):
    """A selector that does not wait for time: it says how long it should have."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready; if nothing is, let the time pass."""
        # a thread that writes the history gets a moment: otherwise hours could pass meanwhile
        found = super().select(timeout and min(timeout, 0.001))
        if not found and timeout:
            self.passed += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while anything is to do, and jumps to the next timer otherwise."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the seconds that passed."""
        return self._jumping.passed


def in_virtual_time(body: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop in virtual time. Requests to a store in memory take none."""

    async def run() -> None:
        await body()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
