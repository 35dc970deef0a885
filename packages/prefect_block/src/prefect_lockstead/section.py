# Generated from aio_section.py by `make blocking`: edit that file instead.
"""A section: how a function, a flow or a task acquires its lease and releases it.

Resolve the lock, wait for it, judge who held it before, report it, let children work under it, release it. The guard
that interrupts the body is not here but in the body's own frame (`wrapper`): an interrupt that falls between the
end of the body and the guard's must find nothing in between. What leaves here is what the body raised, or
`lockstead.LeaseLost`, an ordinary exception.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lockstead import Lease, Lock
from lockstead.wrapping.acquiring import give_back, unclean_before
from prefect_lockstead import hosting, reentrance
from prefect_lockstead.blocking import LOSS_SIGNS, find_lock
from prefect_lockstead.places import Place
from prefect_lockstead.section_parts import ended, judge, limited, resolved, warn_beside
from prefect_lockstead.spec import LockSpec


@contextmanager
def held(spec: LockSpec, parameters: Mapping[str, Any]) -> Iterator[Lease]:
    """Hold the lock for a block, whose value is the lease; guard the body in it by `lease.guard()`.

    NotAcquired after the spec's timeout, AlreadyHeld where it is held around this, LeaseLost if the lease was lost and
    the block returned, or was interrupted for it.
    """
    spec = spec.named(parameters)
    found = Place(spec.lock or "") if spec.block is None else find_lock(spec.block)
    spec, lock, place = resolved(Lock, spec, found)
    reentrance.refuse_held(place)
    began_at = time.monotonic()
    spec, beside = limited(spec, place)
    lease, has_begun = _acquired(lock, spec, beside), False
    try:
        with hosting.settled(), lease:
            try:
                judge(unclean_before(lock, lease, hosting.logger()), spec)
                with reentrance.noted(place, lease), hosting.inherited(lease):
                    hosting.tell_acquired(lease, time.monotonic() - began_at)
                    has_begun = True
                    yield lease
            except BaseException:
                # nobody worked under it, so the next holder has to be told of the same predecessor
                if not has_begun:
                    give_back(lease, hosting.logger())
                raise
    except BaseException as error:
        if not has_begun:
            raise
        lost = ended(lease, error)
        if lost is None or not (error is lost or isinstance(error, LOSS_SIGNS)):
            raise
        hosting.name_lost()
        if lost is error:
            raise
        raise lost from error
    # found after the core looked, while it was given back: who works on must not believe that all was well
    late = ended(lease, None)
    if late is not None:
        hosting.name_lost()
        raise late


def _acquired(lock: Lock, spec: LockSpec, beside: str | None) -> Lease:
    """Wait for the lock, as a run of Prefect if this may be one. beside: the key of a lock that is held already."""
    if hosting.is_there():
        from prefect_lockstead import waiting

        return waiting.acquire(lock, spec, beside)
    if spec.waiting == "reschedule":
        raise ValueError("waiting='reschedule' needs a run of a deployment, and here Prefect runs nothing")
    if beside is not None and spec.timeout != 0 and lock.inspect() is not None:
        warn_beside(lock.key, spec, beside)
    return lock.acquire(spec.timeout)
