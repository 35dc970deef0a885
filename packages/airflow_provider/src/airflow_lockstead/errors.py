"""Exceptions with which a task ends because of its lock. Must not know how the cause was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lockstead
from airflow_lockstead import compat

if TYPE_CHECKING:
    from lockstead import LossReason


class LeaseLost(compat.AirflowFailException):  # type: ignore[misc]  # the base class is found at run time
    """A body ended, was ended, or did not begin because its lease was lost. Never retried: a retry would have no lock.

    reason is None if the lease was gone before the body began, for an unknown reason.
    """

    def __init__(self, key: str, holder: str, token: int | None, reason: LossReason | None, detail: str) -> None:
        said = reason.value if reason is not None else "unknown"
        shown = "none" if token is None else token
        super().__init__(f"lease lost: key {key!r}, holder {holder!r}, token {shown}, reason {said}: {detail}")
        self.key = key
        self.holder = holder
        self.token = token
        self.reason = reason


class NotAcquired(compat.AirflowFailException):  # type: ignore[misc]  # the base class is found at run time
    """The timeout ended while another holder had the lock. Not retried: the task has waited its full timeout."""


@contextmanager
def refusing() -> Iterator[None]:
    """Fail a task without retries, with one line, for errors that no retry can fix: wrong URL, connection, refusal."""
    try:
        yield
    except (ValueError, TypeError, lockstead.StoreRefused) as error:
        raise compat.AirflowFailException(f"lockstead: {error}") from error
