"""A granted lock as it is passed from a trigger to a task, and from task to task. Plain values only.

Must not know Airflow or wait for anything: `triggers` waits, `operators` and `body` read grants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from lockstead import LeaseTicket, NotAcquired, StoreRefused

if TYPE_CHECKING:
    from lockstead import LockInfo
    from lockstead.unclean import Unclean

GRANTED: Final = "granted"
NOT_ACQUIRED: Final = "not acquired"
REFUSED: Final = "refused"
FAILED: Final = "failed"

MARK: Final = "after an unclean end: "
"""Prefix of the progress of a lease whose task must fail because of an unclean end: a retry of the task reads it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that is passed between tasks. waited is in seconds; unclean: how the previous lease ended, if unclean."""

    ticket: str
    token: int | None
    key: str
    holder: str
    waited: float = 0.0
    unclean: str | None = None

    @property
    def mode(self) -> str:
        """Return the mode of the lease, as in its sequencer: "permit/2" for a permit."""
        return LeaseTicket.parse(self.ticket).mode if self.slot is None else f"permit/{self.slot}"

    @property
    def slot(self) -> int | None:
        """Return the number of the permit; None for a lock."""
        return LeaseTicket.parse(self.ticket).slot

    @property
    def xcom(self) -> dict[str, Any]:
        """Return the XCom of the acquire task."""
        return {"ticket": self.ticket, "token": self.token, "key": self.key, "holder": self.holder}

    @property
    def event(self) -> dict[str, Any]:
        """Return the payload of a trigger's event."""
        return {"state": GRANTED, **asdict(self)}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Self:
        """Return the grant of an XCom or an event; ValueError if it is not one."""
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
        shown += "" if self.slot is None else f", slot {self.slot}"
        return f"acquired {self.key!r} with {shown} after {self.waited:.1f} s"


def granted(ticket: LeaseTicket, token: int | None, waited: float, unclean: str | None) -> Grant:
    """Return the grant of a detached lease."""
    return Grant(str(ticket), token, ticket.key, ticket.holder, max(0.0, waited), unclean)


def unclean_of(before: Unclean | None, owner: str, earlier: LockInfo | None) -> str | None:
    """Return a text that says who left the lock unclean, for its present owner; None if no other owner did.

    earlier: the holder when the lock was last inspected. If that is an earlier try of this owner, it may have noted in
    its progress that the lease before it ended unclean.
    """
    if before is not None:
        return str(before)
    if earlier is None or earlier.owner != owner or not (earlier.progress or "").startswith(MARK):
        return None
    return (earlier.progress or "").removeprefix(MARK)


def failure(error: Exception) -> dict[str, Any]:
    """Return the event for an acquisition that failed with this error."""
    if isinstance(error, NotAcquired):
        state = NOT_ACQUIRED
    elif isinstance(error, StoreRefused | ValueError | TypeError):
        state = REFUSED
    else:
        state = FAILED
    return {"state": state, "message": str(error)}
