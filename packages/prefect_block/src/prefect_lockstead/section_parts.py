"""What a section decides without waiting: which lock, for how long, whether its body may run, and how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from lockstead import AsyncLease, AsyncLock, Lease, LeaseLost, Lock, nesting
from lockstead.unclean import Unclean
from lockstead.wrapping.messages import repair_first
from prefect_lockstead import hosting, reentrance
from prefect_lockstead.errors import PreviousLeaseUnclean
from prefect_lockstead.places import Place
from prefect_lockstead.spec import LockSpec, place_of

L = TypeVar("L", Lock, AsyncLock)


def resolved(kind: type[L], spec: LockSpec, found: Place) -> tuple[LockSpec, L, tuple[str, str]]:
    """Return the spec with what a block says besides, the lock, and its (store, key)."""
    if spec.timeout is None and found.timeout is not None:
        spec = replace(spec, timeout=found.timeout)
    settings = {**found.settings, **spec.settings}
    lock = kind(found.url, client=found.client, **settings)
    owner = hosting.owner()
    if owner is not None and lock.settings.owner is None:
        lock = kind(found.url, client=found.client, owner=owner, **settings)
    if spec.on_unclean == "fail":
        lock.require_unclean_detection()
    return spec, lock, place_of(found.url)


def limited(spec: LockSpec, place: tuple[str, str]) -> tuple[LockSpec, str | None]:
    """Return the spec with a limit, and the key of the other lock, if one is held: two may wait for each other."""
    beside = reentrance.beside(place)
    # who leaves its process to wait gives back what it holds
    if beside is not None and spec.timeout is None and spec.waiting == "in_process":
        spec = replace(spec, timeout=nesting.LIMIT)
    return spec, beside


def warn_beside(key: str, spec: LockSpec, beside: str) -> None:
    """Warn that a lock is waited for while another one is held."""
    hosting.logger().warning("%s", nesting.warning(key, f"{beside!r} is held here", spec.timeout_seconds))


def judge(found: Unclean | None, spec: LockSpec) -> None:
    """Warn of an unclean end before this lease. PreviousLeaseUnclean, with one line, if the body must not run."""
    if found is None:
        return
    if spec.on_unclean == "fail":
        raise PreviousLeaseUnclean(repair_first(found))
    hosting.logger().warning("%s: what it left may need repair", found)


def ended(lease: Lease | AsyncLease, error: BaseException | None) -> LeaseLost | None:
    """Report how the section ended; return the loss if the lease was lost, the one that was raised if it was."""
    lost: LeaseLost | None = None
    if lease.lost_reason is not None:
        is_told = isinstance(error, LeaseLost) and error.holder == lease.holder
        lost = error if is_told and isinstance(error, LeaseLost) else lease.lost_error()
    hosting.tell_ended(lease, lost)
    return lost
