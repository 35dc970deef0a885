"""Server-sent events: a stream for each open tab, which holds nothing but what its tab was sent last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment is sent: a tab that is gone is noticed by it."""

SEND_TAKES: Final = 20.0
"""Seconds for which a tab may leave an event unread; then it is dropped, and its browser connects again."""

TABS_MAX: Final = 200

STREAM_LASTS: Final = 3600.0
"""Seconds after which a stream ends: the browser connects again, and it is asked again who it is."""


def message(event: str, text: str) -> str:
    """Return one event as it is sent."""
    lines = text.replace("\r", " ").split("\n")
    return "".join((f"event: {event}\n", *(f"data: {line}\n" for line in lines), "\n"))


class EventStream(Response):
    """A response that sends events until its tab is closed, or does not read them."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str], *, heartbeat: float = HEARTBEAT, send_takes: float = SEND_TAKES):
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._heartbeat = heartbeat
        self._send_takes = send_takes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of ASGI
        """Send the events. Ends when the client is gone, the events end, or the client does not read."""
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        gone = asyncio.ensure_future(_disconnected(receive))
        coming: asyncio.Future[str] | None = None
        try:
            await self._sent(send, start)
            ends_at = asyncio.get_running_loop().time() + STREAM_LASTS
            while not gone.done() and asyncio.get_running_loop().time() < ends_at:
                coming = coming or asyncio.ensure_future(anext(self._events))
                both: list[asyncio.Future[Any]] = [gone, coming]
                await asyncio.wait(both, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
                text = ": still here\n\n"
                if coming.done():
                    if isinstance(coming.exception(), StopAsyncIteration):
                        break
                    text, coming = coming.result(), None
                if not gone.done():
                    await self._sent(send, {"type": "http.response.body", "body": text.encode(), "more_body": True})
            await self._sent(send, {"type": "http.response.body", "body": b""})
        except (TimeoutError, OSError):
            return
        finally:
            for task in (gone, coming):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError, StopAsyncIteration):
                        await task
            await self._events.aclose()

    async def _sent(self, send: Send, part: dict[str, object]) -> None:
        async with asyncio.timeout(self._send_takes):
            await send(part)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
