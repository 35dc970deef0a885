"""For each way in which a body can end: how its task ends, and how its lease is left. Two tables, pure.

Must not know Airflow's classes: `body` classifies exceptions.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Kind(Enum):
    """How a body ended."""

    RETURNED = "returned"
    DEFERRED = "deferred"
    RESCHEDULED = "asked to be rescheduled"
    SKIPPED = "skipped itself"
    RAISED = "raised"
    STOPPED = "was stopped"
    ENDED = "was ended by a timeout, a termination or an exit"


class Becomes(Enum):
    """How the task ends."""

    ITSELF = "what the body ended with"
    LEASE_LOST = "LeaseLost, which is never retried"


class Leaving(Enum):
    """How the lease is left."""

    WITHDRAW = "this body works under it no longer"
    GIVE_BACK = "nobody will: it is released"
    HAND_ON = "it lives on, for when the task is resumed"


NOT_OVER: Final = frozenset({Kind.DEFERRED, Kind.RESCHEDULED})
"""The body will be resumed, so its section has not ended."""

_BECOMES: Final = {
    # the body may have worked without the lock, however it ended
    **{(kind, False): Becomes.LEASE_LOST for kind in Kind},
    **{(kind, True): Becomes.ITSELF for kind in Kind},
}

_LEAVING: Final = {
    **{(kind, False): Leaving.WITHDRAW for kind in Kind},
    **{(kind, True): Leaving.HAND_ON if kind in NOT_OVER else Leaving.GIVE_BACK for kind in Kind},
}


def becomes(kind: Kind, *, is_held: bool) -> Becomes:
    """Return how a task ends. is_held: whether the lease was still held when the body ended."""
    return _BECOMES[kind, is_held]


def leaving(kind: Kind, *, is_single: bool) -> Leaving:
    """Return how the lease is left. is_single: the task has a lock of its own, so no other task releases it."""
    return _LEAVING[kind, is_single]
