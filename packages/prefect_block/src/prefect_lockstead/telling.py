"""What a run tells of its lock: events that Prefect links to the run, log lines, and an artifact.

Nothing here asks the store, and nothing here fails a section or holds it up: what Prefect does not take is a log line,
and the end of the section waits a moment for the thread that writes the artifact. Outside of a run: log lines only.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from lockstead import LossReason, nesting
from lockstead.wrapping.messages import waiting_for
from prefect_lockstead import states
from prefect_lockstead.words import logger

if TYPE_CHECKING:
    import lockstead
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo

P = ParamSpec("P")

EVENT: Final = "lockstead.lock."
"""With this begins the name of each event: waiting, acquired, lost, released, revoked."""

ARTIFACT: Final = "lockstead-lease"
"""The key of the artifact that names a run's lock and fencing token."""


def _quietly(function: Callable[P, None]) -> Callable[P, None]:
    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the section goes on, whatever Prefect fails with
            logger().warning("not told to Prefect: %s: %s", type(error).__name__, error)

    return quiet


def begin_waiting(lock: Lock | AsyncLock, held: LockInfo | None, beside: str | None, limit: float | None) -> str:
    """Tell that a run begins to wait, and return it in words, for the run's state.

    held: who holds the lock, None if nobody knows. beside: the key of a lock that the run holds; limit: seconds.
    """
    waiting(lock, held)
    if beside is not None:
        logger().warning("%s", nesting.warning(lock.key, f"{beside!r} is held by this run", limit))
    return waiting_for(lock.key, held)


@_quietly
def waiting(lock: Lock | AsyncLock, held: LockInfo | None) -> None:
    """Tell that a run waits for a lock; held: for whom, None if nobody knows."""
    logger().info("%s", waiting_for(lock.key, held))
    said = {} if held is None else {"held_by": held.owner, "purpose": held.purpose, "expected": held.expected}
    _emit("waiting", lock.key, {}, said)


@_quietly
def acquired(lease: Lease | AsyncLease, waited: float) -> None:
    """Tell that a run holds a lock, after so many seconds, and write the artifact."""
    token = _token(lease)
    logger().info("acquired %r with %s after %.1f s", lease.key, token, waited)
    _emit("acquired", lease.key, _of(lease), {"waited": round(waited, 3)})
    if states.here() is not None:
        rows = f"| key | `{lease.key}` |\n| token | {_shown(lease)} |\n| holder | `{lease.holder}` |\n"
        _write("| | |\n|---|---|\n" + rows, f"{lease.key}, {token}")


@_quietly
def lost(lease: Lease | AsyncLease, error: lockstead.LeaseLost) -> None:
    """Tell that a run lost its lease, and that an operator revoked it where that is why."""
    logger().error("%s", error)
    said = {"reason": error.reason.value, "message": str(error)}
    _emit("lost", lease.key, _of(lease) | {"lockstead.reason": error.reason.value}, said)
    if error.reason is LossReason.REVOKED:
        _emit("revoked", lease.key, _of(lease), said)


@_quietly
def released(lease: Lease | AsyncLease) -> None:
    """Tell that a run gave its lock back."""
    logger().info("released %r, %s", lease.key, _token(lease))
    _emit("released", lease.key, _of(lease), {})


def _of(lease: Lease | AsyncLease) -> dict[str, str]:
    token = {} if lease.token is None else {"lockstead.token": str(lease.token)}
    return {"lockstead.holder": lease.holder} | token


def _token(lease: Lease | AsyncLease) -> str:
    return "no token" if lease.token is None else f"token {lease.token}"


def _shown(lease: Lease | AsyncLease) -> str:
    return "none" if lease.token is None else f"`{lease.token}`"


def _emit(what: str, key: str, labels: dict[str, str], said: dict[str, Any]) -> None:
    if states.here() is None:
        return
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"lockstead.lock.{key}", "prefect.resource.name": key, "lockstead.key": key}
    emit_event(EVENT + what, resource=resource | labels, payload={"key": key} | said)


def _write(text: str, description: str) -> None:
    """Write the artifact in a thread of its own, within this context: Prefect finds the run there."""

    @_quietly
    def write() -> None:
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(key=ARTIFACT, markdown=text, description=description, _sync=True)

    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(write,), name="lockstead-artifact", daemon=True)
    thread.start()
    _WRITING.set(thread)


def is_writing() -> bool:
    """Return whether the artifact of this section is being written still."""
    thread = _WRITING.get()
    return thread is not None and thread.is_alive()


def settle() -> None:
    """Wait a moment until the artifact of this section is written: nothing is to be under way as its process ends."""
    thread = _WRITING.get()
    if thread is not None:
        thread.join(states.ANSWER)


_WRITING: Final[ContextVar[threading.Thread | None]] = ContextVar("prefect_lockstead_writing", default=None)
"""What writes the artifact of the innermost section of this context."""
