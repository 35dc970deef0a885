"""What the engine tells of itself: typed events. Adapters log, count and trace them; nothing is told twice.

Must not know who listens. The default listener writes to `logging.getLogger("lockstead")`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lockstead.errors import LossReason


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody else holds the lock, and this acquisition waits. Told once for each acquisition.

    held_for is seconds by two machines' wall clocks, for people only; None where the record does not say.
    """

    key: str
    holder: str
    held_by: str
    purpose: str | None
    held_for: float | None = None


@dataclass(frozen=True, slots=True)
class Acquired:
    """A lease was granted. waited is seconds; token is None until one is drawn."""

    key: str
    holder: str
    token: int | None
    waited: float


@dataclass(frozen=True, slots=True)
class Attached:
    """This process became a member of a lease."""

    key: str
    holder: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """A renewal succeeded. deadline is the new end of the belief, seconds on this process's boot clock."""

    key: str
    holder: str
    deadline: float


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    """A renewal had no clear answer. left is seconds until the deadline."""

    key: str
    holder: str
    error: Exception
    left: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease may no longer be ours."""

    key: str
    holder: str
    reason: LossReason
    token: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Released:
    """The lease was given back. removed: by us; otherwise it was not ours any more, or is left to expire."""

    key: str
    holder: str
    removed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """The lease could not be given back; the work is done all the same, and the ttl frees the key."""

    key: str
    holder: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Detached:
    """This process works under the lease no more and has not given it back: it was detached, or was a member."""

    key: str
    holder: str


@dataclass(frozen=True, slots=True)
class LeaseDropped:
    """A lease was dropped without `release()` or `detach()`: nobody renews it, the ttl frees the key."""

    key: str
    holder: str


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """A callback given to `on_lost` raised."""

    key: str
    holder: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class EngineWarning:
    """Something that works but deserves a look."""

    key: str
    message: str


LockEvent: TypeAlias = (
    Waiting
    | Acquired
    | Attached
    | Renewed
    | RenewalFailed
    | Lost
    | Released
    | ReleaseFailed
    | Detached
    | LeaseDropped
    | CallbackFailed
    | EngineWarning
)
Listener: TypeAlias = Callable[[LockEvent], None]

_log = logging.getLogger("lockstead")


def log(event: LockEvent) -> None:
    """Write an event to the logger `lockstead`: a loss is ERROR, a failed renewal WARNING, contention DEBUG."""
    match event:
        case Waiting():
            purpose = f" (purpose: {event.purpose})" if event.purpose else ""
            _log.debug("%r: waiting for %r%s", event.key, event.held_by, purpose)
        case Acquired():
            token = "" if event.token is None else f", token {event.token}"
            _log.info("%r: acquired by %r after %.2f s%s", event.key, event.holder, event.waited, token)
        case Attached():
            _log.info("%r: attached to the lease of %r", event.key, event.holder)
        case Renewed():
            pass  # the usual course: ten thousand leases would fill the log with it
        case RenewalFailed():
            _log.warning("%r: renewal failed, %.1f s left: %s", event.key, event.left, event.error)
        case Lost():
            detail = f" ({event.detail})" if event.detail else ""
            _log.error("%r: lease of %r lost: %s%s", event.key, event.holder, event.reason.value, detail)
        case Released():
            _log.info("%r: released by %r%s", event.key, event.holder, "" if event.removed else f": {event.detail}")
        case ReleaseFailed():
            _log.warning("%r: not released, the ttl will free it: %s", event.key, event.error)
        case Detached():
            _log.info("%r: works no more under the lease of %r", event.key, event.holder)
        case LeaseDropped():
            _log.warning("%r: the lease of %r was dropped unreleased, the ttl will free it", event.key, event.holder)
        case CallbackFailed():
            _log.error("%r: a callback of on_lost failed: %r", event.key, event.error)
        case EngineWarning():
            _log.warning("%r: %s", event.key, event.message)
