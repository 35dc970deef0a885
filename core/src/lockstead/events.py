"""The events of the engine. Listeners log, count or trace them; nothing is reported twice.

Must not know the listeners. The default one writes to `logging.getLogger("lockstead")`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lockstead.errors import LossReason


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another holder has the lock, and this acquisition waits. Emitted once for each acquisition.

    held_for is seconds by two machines' wall clocks, for display only; None if unknown. wanted_by: the writer that
    waits for readers, maybe this one.
    """

    key: str
    holder: str
    held_by: str
    purpose: str | None
    held_for: float | None = None
    wanted_by: str | None = None


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
    """A renewal succeeded. deadline is in seconds on this process's boot clock."""

    key: str
    holder: str
    deadline: float


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    """A renewal had no clear reply. left is seconds until the deadline."""

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
    """The lease was released. removed: by this process; otherwise it had ended before, or is left to expire."""

    key: str
    holder: str
    removed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """The lease could not be released; the ttl frees the key."""

    key: str
    holder: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Detached:
    """This process has left the lease without releasing it: it was detached, or was a member."""

    key: str
    holder: str


@dataclass(frozen=True, slots=True)
class LeaseDropped:
    """A lease was dropped without `release()` or `detach()`: it is no longer renewed, and the ttl frees the key."""

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
    """A condition that works but may cause trouble."""

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
            pass  # with many leases it would fill the log
        case RenewalFailed():
            _log.warning("%r: renewal failed, %.1f s left: %s", event.key, event.left, event.error)
        case Lost():
            level = logging.INFO if event.reason is LossReason.ENDED else logging.ERROR
            detail = f" ({event.detail})" if event.detail else ""
            _log.log(level, "%r: lease of %r lost: %s%s", event.key, event.holder, event.reason.value, detail)
        case Released():
            _log.info("%r: released by %r%s", event.key, event.holder, "" if event.removed else f": {event.detail}")
        case ReleaseFailed():
            _log.warning("%r: not released; its ttl will free it: %s", event.key, event.error)
        case Detached():
            _log.info("%r: detached from the lease of %r", event.key, event.holder)
        case LeaseDropped():
            _log.warning(
                "%r: the lease of %r was dropped without a release; its ttl will free it", event.key, event.holder
            )
        case CallbackFailed():
            _log.error("%r: a callback of on_lost failed: %r", event.key, event.error)
        case EngineWarning():
            _log.warning("%r: %s", event.key, event.message)
