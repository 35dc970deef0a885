# Generated from aio_waiting.py by `make blocking`: edit that file instead.
"""Acquiring a lock in a run: at once, waiting in its process, or by leaving it and coming back.

A run that waits in its process keeps its place in the store's queue and its worker's slot. One that leaves it
(`waiting="reschedule"`) frees the slot, is in no queue, and is started again at a set time (`wait_times`). A run that
is cancelled or terminated while it waits releases a lease that was granted at that moment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lockstead.wrapping.acquiring import draw_token, give_back, look, marked, take_back_granted, try_at_once
from prefect_lockstead import reporting, states
from prefect_lockstead.blocking import Wait
from prefect_lockstead.logs import logger
from prefect_lockstead.spec import LockSpec
from prefect_lockstead.wait_display import WaitDisplay
from prefect_lockstead.wait_times import due, left_of, left_of_all

if TYPE_CHECKING:
    from lockstead import Lease, Lock


def acquire(lock: Lock, spec: LockSpec, held_key: str | None = None) -> Lease:
    """Return the lease, after waiting as the spec says. held_key: the key of a lock that is already held.

    NotAcquired after the spec's timeout; Prefect's Pause if the run must leave its process or was suspended; Prefect's
    Abort if the run was cancelled or ended. In each case no lease is held.
    """
    began_at = time.monotonic()
    limit = spec.timeout_seconds
    if spec.waiting == "reschedule":
        states.check_can_come_back()
    while True:
        try:
            return _acquired(marked(lock), spec, limit, began_at, held_key)
        except states.Stopped as stopped:
            states.leave(stopped, lock.key)


def _acquired(lock: Lock, spec: LockSpec, limit: float | None, began_at: float, held_key: str | None) -> Lease:
    lease: Lease | None = None
    display: WaitDisplay | None = None
    wait = Wait()
    try:
        lease = try_at_once(lock, logger()) if limit != 0 else lock.acquire(0)
        if lease is None:
            held = look(lock, logger())
            message = reporting.begin_waiting(lock, held, held_key, limit)
            if spec.waiting == "reschedule":
                left = left_of_all(limit)
                if left is None or left > 0:
                    raise states.coming_back(message, due(held, time.time(), left))
                lease = lock.acquire(0)
            else:
                with wait:
                    display = WaitDisplay(message, wait.cancel)
                    lease = lock.acquire(left_of(limit, began_at))
                display.ask()
        draw_token(lease, logger())
        if display is not None:
            display.raise_stopped()
    except BaseException as error:
        if lease is not None:
            give_back(lease, logger())
        elif not isinstance(error, Exception):
            take_back_granted(lock, logger())
        if display is not None:
            display.give_up()
            if wait.is_cancelled and isinstance(error, Wait.INTERRUPT):
                display.raise_stopped()
        raise
    return lease
