"""The events of the engine. Listeners log, count or trace them; nothing is reported twice.

Must not know the listeners. The default one writes to `logging.getLogger("lockstead")`. member: the registration of a
process that was attached to a lease; empty for the lease's owner. With holder it identifies a lease in this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lockstead.errors import LossReason
from lockstead.frozen import frozen


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another holder has the lock, and this acquisition waits. Emitted once for each acquisition.

    held_for is seconds by two machines' wall clocks, for display only; None if unknown. wanted_by: the writer that
    waits for readers, maybe this one. traceparent: the position of the other holder's trace, if its record names one.
    """

    key: str
    holder: str
    held_by: str
    purpose: str | None
    held_for: float | None = None
    wanted_by: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class HolderChanged:
    """An acquisition that waits has seen another holder than before. The fields are those of `Waiting`."""

    key: str
    holder: str
    held_by: str
    purpose: str | None
    held_for: float | None = None
    wanted_by: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Acquired:
    """A lease was granted. waited is seconds; token is None until one is drawn."""

    key: str
    holder: str
    token: int | None
    waited: float


NotGrantedResult: TypeAlias = Literal["timeout", "held", "refused", "unavailable", "unknown", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class NotGranted:
    """An acquisition ended without a lease. waited is seconds.

    result: "timeout": it waited; "held": it tried once; "refused", by the store or the caller's own state;
    "unavailable" and "unknown": the store did not answer; "cancelled"; "error": anything else. error: what ended it.
    """

    key: str
    holder: str
    result: NotGrantedResult
    waited: float
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """This process became a member of a lease."""

    key: str
    holder: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class Renewed:
    """A renewal succeeded. deadline is in seconds on this process's boot clock."""

    key: str
    holder: str
    deadline: float
    member: str = ""


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    """A renewal had no clear reply. left is seconds until the deadline."""

    key: str
    holder: str
    error: Exception
    left: float
    member: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease may no longer be ours."""

    key: str
    holder: str
    reason: LossReason
    token: int | None
    detail: str
    member: str = ""


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
    member: str = ""


@dataclass(frozen=True, slots=True)
class Detached:
    """This process has left the lease without releasing it: it was detached, or was a member."""

    key: str
    holder: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class LeaseDropped:
    """A lease was dropped without `release()` or `detach()`: it is no longer renewed, and the ttl frees the key."""

    key: str
    holder: str
    member: str = ""


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


@frozen
class StoreRequest:
    """A request to a store has ended. took is seconds.

    command: "create", "read", "replace", "extend", "remove", "list"; "batch" for `count` commands in one request.
    result: "ok" (any answer), "refused", "unavailable", "unknown", "cancelled", "error".
    """

    command: str
    result: str
    took: float
    count: int = 1


@frozen
class BlockEntered:
    """A `with` block of a lease begins, in the thread or task that calls the listener."""

    key: str
    holder: str
    member: str = ""


@frozen
class BlockLeft:
    """A `with` block of a lease ends, in the thread or task that entered it and calls the listener."""

    key: str
    holder: str
    member: str = ""


LockEvent: TypeAlias = (
    Waiting
    | HolderChanged
    | Acquired
    | NotGranted
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
"""What the listener of a client is called with, and the default one logs."""

ProcessEvent: TypeAlias = LockEvent | StoreRequest | BlockEntered | BlockLeft
"""What the listeners of a process are called with."""

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
        case Renewed() | HolderChanged() | NotGranted():
            pass  # with many leases they would fill the log
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
