"""What a granted lock is called on its way from a trigger to a task, and from task to task. Plain values only.

Must not know Airflow, nor wait for anything: `triggers` waits, `operators` and `body` read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from lockstead import NotAcquired, StoreRefused

if TYPE_CHECKING:
    from lockstead import LeaseTicket, LockInfo
    from lockstead.unclean import Unclean

GRANTED: Final = "granted"
NOT_ACQUIRED: Final = "not acquired"
REFUSED: Final = "refused"
FAILED: Final = "failed"

MARK: Final = "after an unclean end: "
"""With this begins the progress of a lease whose task has yet to fail for it: a retry reads it there."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as it is handed on. waited is seconds; unclean says how the one before ended, where not cleanly."""

    ticket: str
    token: int | None
    key: str
    holder: str
    waited: float = 0.0
    unclean: str | None = None

    @property
    def xcom(self) -> dict[str, Any]:
        """Return what acquire returns."""
        return {"ticket": self.ticket, "token": self.token, "key": self.key, "holder": self.holder}

    @property
    def event(self) -> dict[str, Any]:
        """Return what a trigger fires with."""
        return {"state": GRANTED, **asdict(self)}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Self:
        """Read either of the two; ValueError if a word is missing."""
        try:
            return cls(
                ticket=str(said["ticket"]),
                token=None if said["token"] is None else int(said["token"]),
                key=str(said["key"]),
                holder=str(said["holder"]),
                waited=float(said.get("waited", 0.0)),
                unclean=said.get("unclean"),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"this is not what acquire returns: {said!r}") from error

    def __str__(self) -> str:
        shown = "no token" if self.token is None else f"token {self.token}"
        return f"acquired {self.key!r} with {shown} after {self.waited:.1f} s"


def granted(ticket: LeaseTicket, token: int | None, waited: float, unclean: str | None) -> Grant:
    """Describe a lease that was detached."""
    return Grant(str(ticket), token, ticket.key, ticket.holder, max(0.0, waited), unclean)


def unclean_of(before: Unclean | None, owner: str, earlier: LockInfo | None) -> str | None:
    """Say who left the lock unclean, to its present owner; what an earlier try of its own left is not a surprise.

    earlier: who held the lock when it was looked at last; an earlier try may have marked there that the one before it
    ended unclean.
    """
    if before is not None:
        return str(before)
    if earlier is None or earlier.owner != owner or not (earlier.progress or "").startswith(MARK):
        return None
    return (earlier.progress or "").removeprefix(MARK)


def failure(error: Exception) -> dict[str, Any]:
    """Describe, for an event, why there is no lease."""
    if isinstance(error, NotAcquired):
        state = NOT_ACQUIRED
    elif isinstance(error, StoreRefused | ValueError | TypeError):
        state = REFUSED
    else:
        state = FAILED
    return {"state": state, "message": str(error)}


def waiting(key: str, held: LockInfo) -> str:
    """Say who is waited for, since when it holds the lock and why, in one line."""
    try:
        since = f" since {held.acquired_at.to_datetime_string()} UTC" if held.acquired_at else ""
    except (ValueError, OverflowError):
        since = ""  # no instant at all: a text ends no wait
    why = f" (purpose: {held.purpose})" if held.purpose else ""
    token = f", token {held.token}" if held.token is not None else ""
    return f"waiting for {held.owner!r}, who holds {key!r}{since}{why}{token}"
