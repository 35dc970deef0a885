"""How a lock is spoken of in states, log lines and events, and where log lines go. Asks nothing of anybody."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstead import LockInfo


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Return the logger of the run that this context is in, else `prefect_lockstead`."""
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        found: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()
    except MissingContextError:
        return logging.getLogger("prefect_lockstead")
    return found


def waiting_for(key: str, held: LockInfo | None) -> str:
    """Say who is waited for, since when the lock is held and why, in one line."""
    if held is None:
        return f"waiting for {key!r}"
    since = f" since {held.acquired_at.to_datetime_string()} UTC" if held.acquired_at else ""
    why = f" (purpose: {held.purpose})" if held.purpose else ""
    token = f", token {held.token}" if held.token is not None else ""
    return f"waiting for {key!r}, held by {held.owner!r}{since}{why}{token}"
