"""What becomes of each way in which a body can end, and how its lease is left. Two tables, pure.

Must not know Airflow's classes: `body` says which kind an exception is.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Kind(Enum):
    """How a body ended."""

    RETURNED = "returned"
    DEFERRED = "deferred"
    RESCHEDULED = "wanted to be started again later"
    SKIPPED = "skipped itself"
    RAISED = "raised"
    STOPPED = "was stopped"
    ENDED = "was ended by a time-out, a termination or an exit"


class Becomes(Enum):
    """What the task ends with."""

    ITSELF = "what the body ended with"
    LEASE_LOST = "LeaseLost, which is never retried"


class Leaving(Enum):
    """How the lease is left."""

    WITHDRAW = "this body works under it no longer"
    GIVE_BACK = "nobody will: it is released"
    HAND_ON = "it lives on, for when the task is resumed"


NOT_OVER: Final = frozenset({Kind.DEFERRED, Kind.RESCHEDULED})
"""What comes back: the section is not over."""

_BECOMES: Final = {
    # whatever was done, it was done by who may no longer have had the lock
    **{(kind, False): Becomes.LEASE_LOST for kind in Kind},
    **{(kind, True): Becomes.ITSELF for kind in Kind},
}

_LEAVING: Final = {
    **{(kind, False): Leaving.WITHDRAW for kind in Kind},
    **{(kind, True): Leaving.HAND_ON if kind in NOT_OVER else Leaving.GIVE_BACK for kind in Kind},
}


def becomes(kind: Kind, *, is_held: bool) -> Becomes:
    """Return what a task ends with. is_held: whether the lease could be trusted when the body ended."""
    return _BECOMES[kind, is_held]


def leaving(kind: Kind, *, is_single: bool) -> Leaving:
    """Return how the lease is left. is_single: the task has the lock for itself, so nobody else releases it."""
    return _LEAVING[kind, is_single]
