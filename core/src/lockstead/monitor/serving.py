"""Connections of the HTTP servers: whoever asks nothing, or reads nothing, does not keep one."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

TAKES: Final = 30.0
"""Seconds in which a client sends a whole request, and in which it reads what was sent."""


class Connection(H11Protocol):
    """A connection that is cut if its client is too slow. uvicorn alone waits for it, and counts it, forever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._disarm()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Note a request that is whole: the answer may take any time."""
        super().handle_events()
        if self._is_answering():
            self._disarm()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, and for the client to read the answer."""
        self._arm()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._arm()

    def resume_writing(self) -> None:
        """Go on: the client has read most of it."""
        super().resume_writing()
        if self._is_answering():
            self._disarm()
        else:
            self._arm()

    def _is_answering(self) -> bool:
        cycle = self.cycle
        return bool(cycle) and not (cycle.response_complete or cycle.more_body or self.flow.write_paused)

    def _arm(self) -> None:
        self._disarm()
        self._late = self.loop.call_later(TAKES, self.transport.abort)

    def _disarm(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
