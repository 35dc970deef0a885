"""Requests to a store as events, for the listeners of the process."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.events import StoreRequest
from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Command
from lockstead.runtime.inside import holds_no_lock
from lockstead.stores.port import Store

BATCH: Final = "batch"


class Observed:
    """A block that sends a request. Reports it at its end, in whatever way it ends."""

    __slots__ = ("_began_at", "_command", "_count", "_store")

    def __init__(self, command: Command[Any] | None, store: Store, count: int = 1) -> None:
        """command: None for a batch of `count` commands."""
        self._command = BATCH if command is None else type(command).__name__.lower()
        self._count = count
        self._store = store
        self._began_at = time.monotonic()

    def __enter__(self) -> Observed:
        return self

    @holds_no_lock
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        took = time.monotonic() - self._began_at
        LISTENERS.notify(StoreRequest(self._command, result_of(error), took, self._count), self._store.url)


def result_of(error: BaseException | None) -> str:
    """Return how a request ended that raised this error."""
    match error:
        case None:
            return "ok"
        case StoreRefused():
            return "refused"
        case StoreUnavailable():
            return "unavailable"
        case OutcomeUnknown():
            return "unknown"
        case Exception():
            return "error"
        case _:
            return "cancelled"
