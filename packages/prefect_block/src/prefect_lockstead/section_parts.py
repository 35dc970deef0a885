"""The decisions of a section that need no waiting: its lock, its timeout, whether its body may run, how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from lockstead import AsyncLease, AsyncLock, Lease, LeaseLost, Lock, nesting
from lockstead.telemetry import install_once
from lockstead.unclean import Unclean
from lockstead.wrapping.messages import may_need_repair, repair_first
from prefect_lockstead import reentrancy, run_context
from prefect_lockstead.errors import PreviousLeaseUnclean
from prefect_lockstead.places import Place
from prefect_lockstead.spec import LockSpec, place_of

L = TypeVar("L", Lock, AsyncLock)


def resolved(kind: type[L], spec: LockSpec, found: Place) -> tuple[LockSpec, L, tuple[str, str]]:
    """Return the spec completed from the block, the lock, and its (store, key)."""
    install_once()
    if spec.timeout is None and found.timeout is not None:
        spec = replace(spec, timeout=found.timeout)
    settings = {**found.settings, **spec.settings}
    lock = kind(found.url, client=found.client, **settings)
    owner = run_context.owner()
    if owner is not None and lock.settings.owner is None:
        lock = kind(found.url, client=found.client, owner=owner, **settings)
    return spec, spec.checked(lock), place_of(found.url)


def limited(spec: LockSpec, place: tuple[str, str]) -> tuple[LockSpec, str | None]:
    """Return the spec, with a timeout if another lock is held, and that lock's key: nested locks may deadlock."""
    held_key = reentrancy.other_held_key(place)
    # a run that leaves its process to wait releases the other lock
    if held_key is not None and spec.timeout is None and spec.waiting == "in_process":
        spec = replace(spec, timeout=nesting.LIMIT)
    return spec, held_key


def warn_held_other(key: str, spec: LockSpec, held_key: str) -> None:
    """Log a warning: the section waits for a lock while it holds another."""
    run_context.logger().warning("%s", nesting.warning(key, f"{held_key!r} is held here", spec.timeout_seconds))


def judge(found: Unclean | None, spec: LockSpec) -> None:
    """Log an unclean end of the previous lease; raise PreviousLeaseUnclean if the body must not run."""
    if found is None:
        return
    if spec.on_unclean == "fail":
        raise PreviousLeaseUnclean(repair_first(found))
    run_context.logger().warning("%s", may_need_repair(found))


def ended(lease: Lease | AsyncLease, error: BaseException | None) -> LeaseLost | None:
    """Report how the section ended; return the LeaseLost, the raised one if there is one, None if not lost."""
    lost: LeaseLost | None = None
    if lease.lost_reason is not None:
        is_ours = isinstance(error, LeaseLost) and error.holder == lease.holder
        lost = error if is_ours and isinstance(error, LeaseLost) else lease.lost_error()
    run_context.report_ended(lease, lost)
    return lost
