"""Requests to a store as events, for the listeners of the process."""

from __future__ import annotations

from typing import Any, Final

from lockstead.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from lockstead.events import NotGrantedResult, StoreRequest
from lockstead.listeners import LISTENERS
from lockstead.protocol.commands import Command, Create, Extend, List, OutOfTime, Pause, Read, Remove, Replace
from lockstead.runtime.inside import holds_no_lock
from lockstead.stores.port import Store

BATCH: Final = "batch"
"""The command of several in one request."""

_NAMES: Final[dict[type, str]] = {one: one.__name__.lower() for one in (Create, Read, Replace, Extend, Remove, List)}


@holds_no_lock
def report(command: Command[Any], store: Store, took: float) -> None:
    """Tell the listeners of a request that was answered. took: seconds."""
    LISTENERS.notify(StoreRequest(_name(command), "ok", took), store.url)


@holds_no_lock
def report_failed(command: Command[Any], store: Store, took: float, error: BaseException) -> None:
    """Tell the listeners of a request that raised an error; nothing if it was a pause, or was never sent."""
    if LISTENERS.every and not isinstance(command, Pause) and not isinstance(error, OutOfTime):
        LISTENERS.notify(StoreRequest(_name(command), result_of(error), took), store.url)


@holds_no_lock
def report_batch(count: int, store: Store, took: float, error: BaseException | None = None) -> None:
    """Tell the listeners of a request with several commands."""
    LISTENERS.notify(StoreRequest(BATCH, "ok" if error is None else result_of(error), took, count), store.url)


def _name(command: Command[Any]) -> str:
    return _NAMES.get(type(command)) or type(command).__name__.lower()


def result_of(error: BaseException) -> NotGrantedResult:
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
