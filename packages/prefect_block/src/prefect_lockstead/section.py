# Generated from aio_section.py by `make blocking`: edit that file instead.
"""The critical section of a function, a flow or a task: acquire the lease, run the block, release the lease.

The guard that interrupts the body is in the body's own frame (`wrapper`): no other code may run between the end of
the body and the end of the guard. A section raises what its body raised, or `lockstead.LeaseLost`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lockstead import Lease, Lock
from lockstead.wrapping.acquiring import give_back, unclean_before
from lockstead.wrapping.locks import keeps_out
from prefect_lockstead import reentrancy, run_context
from prefect_lockstead.blocking import LOSS_SIGNS, find_lock
from prefect_lockstead.places import Place
from prefect_lockstead.section_parts import ended, judge, limited, resolved, warn_held_other
from prefect_lockstead.spec import LockSpec


@contextmanager
def held(spec: LockSpec, parameters: Mapping[str, Any]) -> Iterator[Lease]:
    """Hold the lock for a block and yield the lease; guard the body with `lease.guard()`.

    NotAcquired after the spec's timeout, AlreadyHeld if this context already holds the lock, LeaseLost if the lease was
    lost and the block returned or was interrupted.
    """
    spec = spec.named(parameters)
    found = Place(spec.lock or "") if spec.block is None else find_lock(spec.block)
    spec, lock, place = resolved(Lock, spec, found)
    reentrancy.check_not_held(place)
    began_at = time.monotonic()
    spec, held_key = limited(spec, place)
    lease, has_begun = _acquired(lock, spec, held_key), False
    try:
        with run_context.settled(), lease:
            try:
                judge(unclean_before(lock, lease, run_context.logger()), spec)
                with reentrancy.holding(place, lease), run_context.inherited(lease):
                    run_context.report_acquired(lease, time.monotonic() - began_at)
                    has_begun = True
                    yield lease
            except BaseException:
                # the body did not start, so the next holder must see the same previous lease
                if not has_begun:
                    give_back(lease, run_context.logger())
                raise
    except BaseException as error:
        if not has_begun:
            raise
        lost = ended(lease, error)
        if lost is None or not (error is lost or isinstance(error, LOSS_SIGNS)):
            raise
        run_context.name_state_lost()
        if lost is error:
            raise
        raise lost from error
    # the loss was found during the release, after the core's check: the caller must not take this for success
    late = ended(lease, None)
    if late is not None:
        run_context.name_state_lost()
        raise late


def _acquired(lock: Lock, spec: LockSpec, held_key: str | None) -> Lease:
    """Wait for the lock, as a run of Prefect if there is one. held_key: the key of a lock that is already held."""
    if run_context.is_prefect_loaded():
        from prefect_lockstead import waiting

        return waiting.acquire(lock, spec, held_key)
    if spec.waiting == "reschedule":
        raise ValueError("waiting='reschedule' needs a run of a deployment, and there is no run of Prefect here")
    if held_key is not None and spec.timeout != 0 and keeps_out(lock, lock.inspect()):
        warn_held_other(lock.key, spec, held_key)
    return lock.acquire(spec.timeout)
