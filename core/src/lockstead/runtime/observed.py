"""Requests to a store as events, for the listeners of the process."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.events import StoreRequest
from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Command
from lockstead.runtime.inside import holds_no_lock
from lockstead.stores.port import Store

BATCH: Final = "batch"
"""The command of several in one request."""


@holds_no_lock
def report(
    command: Command[Any] | None, store: Store, began_at: float, error: BaseException | None = None, count: int = 1
) -> None:
    """Tell the listeners that a request has ended. command: None for a batch of `count`; began_at: by `monotonic`."""
    took = monotonic() - began_at
    what = BATCH if command is None else type(command).__name__.lower()
    LISTENERS.notify(StoreRequest(what, "ok" if error is None else result_of(error), took, count), store.url)


def result_of(error: BaseException) -> str:
    """Return how a request ended that raised this error."""
    match error:
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
