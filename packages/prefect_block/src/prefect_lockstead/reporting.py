"""Reports of a run on its lock: events that Prefect links to the run, log lines, and an artifact.

Sends no request to the store and never fails a section: failures of Prefect are logged. The section's end waits a few
seconds for the thread that writes the artifact. Outside of a run only log lines are written.
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
from prefect_lockstead.logs import logger

if TYPE_CHECKING:
    import lockstead
    from lockstead import AsyncLease, AsyncLock, Lease, Lock, LockInfo

P = ParamSpec("P")

EVENT: Final = "lockstead.lock."
"""The prefix of the event names: waiting, acquired, lost, released, revoked."""

ARTIFACT: Final = "lockstead-lease"
"""The key of the artifact that names a run's lock and fencing token."""


def _quietly(function: Callable[P, None]) -> Callable[P, None]:
    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a failure of Prefect must not end the section
            logger().warning("cannot report to Prefect: %s: %s", type(error).__name__, error)

    return quiet


def begin_waiting(lock: Lock | AsyncLock, held: LockInfo | None, held_key: str | None, limit: float | None) -> str:
    """Report that a run starts to wait; return the message for the run's state.

    held: the holder, None if unknown. held_key: the key of a lock that the run already holds. limit: seconds.
    """
    waiting(lock, held)
    if held_key is not None:
        logger().warning("%s", nesting.warning(lock.key, f"{held_key!r} is held by this run", limit))
    return waiting_for(lock.key, held)


@_quietly
def waiting(lock: Lock | AsyncLock, held: LockInfo | None) -> None:
    """Report that a run waits for a lock. held: the holder, None if unknown."""
    logger().info("%s", waiting_for(lock.key, held))
    payload = {} if held is None else {"held_by": held.owner, "purpose": held.purpose, "expected": held.expected}
    _emit("waiting", lock.key, {}, payload)


@_quietly
def acquired(lease: Lease | AsyncLease, waited: float) -> None:
    """Report that a run acquired a lock, and write the artifact. waited: seconds."""
    token = _token(lease)
    slot = "" if lease.slot is None else f", slot {lease.slot}"
    logger().info("acquired %r with %s%s after %.1f s", lease.key, token, slot, waited)
    _emit("acquired", lease.key, _of(lease), {"waited": round(waited, 3)})
    if states.here() is not None:
        rows = f"| key | `{lease.key}` |\n| token | {_shown(lease)} |\n| holder | `{lease.holder}` |\n"
        rows += "" if lease.slot is None else f"| slot | {lease.slot} |\n"
        _write("| | |\n|---|---|\n" + rows, f"{lease.key}, {token}")


@_quietly
def lost(lease: Lease | AsyncLease, error: lockstead.LeaseLost) -> None:
    """Report that a run lost its lease; also as `revoked` if an operator revoked it."""
    logger().error("%s", error)
    payload = {"reason": error.reason.value, "message": str(error)}
    _emit("lost", lease.key, _of(lease) | {"lockstead.reason": error.reason.value}, payload)
    if error.reason is LossReason.REVOKED:
        _emit("revoked", lease.key, _of(lease), payload)


@_quietly
def released(lease: Lease | AsyncLease) -> None:
    """Report that a run released its lock."""
    logger().info("released %r, %s", lease.key, _token(lease))
    _emit("released", lease.key, _of(lease), {})


def _of(lease: Lease | AsyncLease) -> dict[str, str]:
    token = {} if lease.token is None else {"lockstead.token": str(lease.token)}
    slot = {} if lease.slot is None else {"lockstead.slot": str(lease.slot)}
    return {"lockstead.holder": lease.holder} | token | slot


def _token(lease: Lease | AsyncLease) -> str:
    return "no token" if lease.token is None else f"token {lease.token}"


def _shown(lease: Lease | AsyncLease) -> str:
    return "none" if lease.token is None else f"`{lease.token}`"


def _emit(event: str, key: str, labels: dict[str, str], payload: dict[str, Any]) -> None:
    if states.here() is None:
        return
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"lockstead.lock.{key}", "prefect.resource.name": key, "lockstead.key": key}
    emit_event(EVENT + event, resource=resource | labels, payload={"key": key} | payload)


def _write(text: str, description: str) -> None:
    """Write the artifact in a new thread, with a copy of this context, from which Prefect reads the run."""

    @_quietly
    def write() -> None:
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(key=ARTIFACT, markdown=text, description=description, _sync=True)

    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(write,), name="lockstead-artifact", daemon=True)
    thread.start()
    _WRITING.set(thread)


def is_writing() -> bool:
    """Return whether the artifact of this section is still being written."""
    thread = _WRITING.get()
    return thread is not None and thread.is_alive()


def settle() -> None:
    """Wait until the artifact of this section is written, for a few seconds at most."""
    thread = _WRITING.get()
    if thread is not None:
        thread.join(states.ANSWER)


_WRITING: Final[ContextVar[threading.Thread | None]] = ContextVar("prefect_lockstead_writing", default=None)
"""The thread that writes the artifact of the innermost section of this context."""
