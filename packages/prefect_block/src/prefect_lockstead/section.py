"""How a piece of work comes to its lease and leaves it: the one way in and out, blocking and awaiting.

Resolve the lock, wait for it, judge who held it before, tell of it, let children work under it, give it back. The guard
that interrupts the body is not here but in the body's own frame (`decorator`): an interrupt that falls between the end
of the body and the guard's must find nothing in between. What leaves here is what the body raised, or
`lockstead.LeaseLost`, an ordinary exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lockstead import AsyncLease, AsyncLock, Lease, LeaseLost, LeaseLostInterrupt, Lock, nesting, unclean
from lockstead.unclean import Unclean
from prefect_lockstead import hosting, reentrance
from prefect_lockstead.calling_off import agive_back, give_back
from prefect_lockstead.errors import PreviousLeaseUnclean
from prefect_lockstead.spec import LockSpec, place_of

L = TypeVar("L", Lock, AsyncLock)


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a spec's lock is. settings are those of a block; client is the store's own, if the block brings one."""

    url: str
    client: object | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def held(spec: LockSpec, parameters: Mapping[str, Any]) -> Iterator[Lease]:
    """Hold the lock for a block, whose value is the lease; guard the body in it by `lease.guard()`.

    NotAcquired after the spec's timeout, AlreadyHeld where it is held around this, LeaseLost if the lease was lost and
    the block returned, or was interrupted for it.
    """
    spec = spec.named(parameters)
    spec, lock, place = _named(Lock, spec, _found(spec))
    reentrance.refuse_held(place)
    began_at = time.monotonic()
    spec, beside = _limited(spec, place)
    lease, has_begun = hosting.acquire(lock, spec, beside), False
    try:
        with hosting.settled(), lease:
            try:
                _judge(unclean.who(lock, lease), spec)
                with reentrance.noted(place, lease), hosting.inherited(lease):
                    hosting.tell_acquired(lease, time.monotonic() - began_at)
                    has_begun = True
                    yield lease
            except BaseException:
                # nobody worked under it, so the next holder has to be told of the same predecessor
                if not has_begun:
                    give_back(lease)
                raise
    except BaseException as error:
        if not has_begun:
            raise
        lost = _ended(lease, error)
        # Prefect's own time-out is a cancellation here; a loss must not end as one
        if lost is None or not (_says(error, lost) or isinstance(error, asyncio.CancelledError)):
            raise
        hosting.name_lost(lost)
        if lost is error:
            raise
        raise lost from error
    # found after the core looked, while it was given back: who works on must not believe that all was well
    late = _ended(lease, None)
    if late is not None:
        hosting.name_lost(late)
        raise late


@asynccontextmanager
async def aheld(spec: LockSpec, parameters: Mapping[str, Any]) -> AsyncIterator[AsyncLease]:
    """Hold the lock for a block, awaiting; as `held`. Somebody else's cancellation stays one."""
    spec = spec.named(parameters)
    spec, lock, place = _named(AsyncLock, spec, await _afound(spec))
    reentrance.refuse_held(place)
    began_at = time.monotonic()
    spec, beside = _limited(spec, place)
    lease, has_begun = await hosting.aacquire(lock, spec, beside), False
    try:
        async with hosting.asettled(), lease:
            try:
                _judge(await unclean.awho(lock, lease), spec)
                async with hosting.ainherited(lease):
                    with reentrance.noted(place, lease):
                        hosting.tell_acquired(lease, time.monotonic() - began_at)
                        has_begun = True
                        yield lease
            except BaseException:
                if not has_begun:
                    await agive_back(lease)
                raise
    except BaseException as error:
        if not has_begun:
            raise
        lost = _ended(lease, error)
        if lost is None or not _says(error, lost):
            raise
        await hosting.aname_lost(lost)
        if lost is error:
            raise
        raise lost from error
    late = _ended(lease, None)
    if late is not None:
        await hosting.aname_lost(late)
        raise late


def _found(spec: LockSpec) -> _Found:
    if spec.block is None:
        return _Found(spec.lock or "")
    from prefect_lockstead import blocks

    place = blocks.resolve(spec.block)
    return _Found(place.url, place.client, place.settings)


async def _afound(spec: LockSpec) -> _Found:
    if spec.block is None:
        return _Found(spec.lock or "")
    from prefect_lockstead import blocks

    place = await blocks.aresolve(spec.block)
    return _Found(place.url, place.client, place.settings)


def _named(kind: type[L], spec: LockSpec, found: _Found) -> tuple[LockSpec, L, tuple[str, str]]:
    """Return the spec with what the block says besides, the lock, and its (store, key)."""
    theirs = {name: value for name, value in found.settings.items() if value is not None}
    timeout = theirs.pop("timeout", None)
    if spec.timeout is None and timeout is not None:
        spec = replace(spec, timeout=timeout)
    settings = {**theirs, **spec.settings}
    lock = kind(found.url, client=found.client, **settings)
    owner = hosting.owner()
    if owner is not None and lock.settings.owner is None:
        lock = kind(found.url, client=found.client, owner=owner, **settings)
    if spec.on_unclean == "fail":
        lock.require_unclean_detection()
    return spec, lock, place_of(found.url)


def _limited(spec: LockSpec, place: tuple[str, str]) -> tuple[LockSpec, str | None]:
    """Return the spec with a limit, and the key of the other lock, if one is held: two may wait for each other."""
    beside = reentrance.beside(place)
    # who leaves its process to wait gives back what it holds
    if beside is not None and spec.timeout is None and spec.waiting == "in_process":
        spec = replace(spec, timeout=nesting.LIMIT)
    return spec, beside


def _judge(found: Unclean | None, spec: LockSpec) -> None:
    """Warn of an unclean end before this lease. PreviousLeaseUnclean, with one line, if the body must not run."""
    if found is None:
        return
    if spec.on_unclean == "fail":
        raise PreviousLeaseUnclean(
            f"{found}: repair what it left, then take the lock {found.key!r} and give it back once "
            "('lockstead run LOCK -- true'); until then on_unclean='fail' refuses every run"
        )
    hosting.logger().warning("%s: what it left may need repair", found)


def _ended(lease: Lease | AsyncLease, error: BaseException | None) -> LeaseLost | None:
    """Tell how the section ended; give the loss if the lease was lost, the one that was raised if it was."""
    lost: LeaseLost | None = None
    if lease.lost_reason is not None:
        is_told = isinstance(error, LeaseLost) and error.holder == lease.holder
        lost = error if is_told and isinstance(error, LeaseLost) else lease.lost_error()
    hosting.tell_ended(lease, lost)
    return lost


def _says(error: BaseException, lost: LeaseLost) -> bool:
    """Return whether an exception means the loss, and nothing else that its author should see.

    The core's interrupt may leave its guard in a thread as it is, if it falls after the body's last line (see
    `lease.guard()`); and a time-out of the body's clean-up would be called a time-out of the run.
    """
    return error is lost or isinstance(error, TimeoutError | LeaseLostInterrupt)
