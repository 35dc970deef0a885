"""What a task ends with when its lock fails it. Must not know how that was found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lockstead
from airflow_lockstead import compat

if TYPE_CHECKING:
    from lockstead import LossReason


class LeaseLost(compat.AirflowFailException):  # type: ignore[misc]  # a class that is found when Airflow is there
    """A body ended, or was ended, without its lease; never retried, for a retry would run without the lock.

    reason is None where the lease was gone before the body began and nobody can tell why.
    """

    def __init__(self, key: str, holder: str, token: int | None, reason: LossReason | None, detail: str) -> None:
        said = reason.value if reason is not None else "unknown"
        shown = "none" if token is None else token
        super().__init__(f"lease lost: key {key!r}, holder {holder!r}, token {shown}, reason {said}: {detail}")
        self.key = key
        self.holder = holder
        self.token = token
        self.reason = reason


class NotAcquired(compat.AirflowFailException):  # type: ignore[misc]  # a class that is found when Airflow is there
    """The wait for a lock ended and others hold it; not retried, for the wait had its time."""


@contextmanager
def refusing() -> Iterator[None]:
    """Fail a task at once, with the one line, for what no retry can mend: a wrong URL, a connection, a refusal."""
    try:
        yield
    except (ValueError, TypeError, lockstead.StoreRefused) as error:
        raise compat.AirflowFailException(f"lockstead: {error}") from error
