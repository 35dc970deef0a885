"""Grants whose task ends before its body begins: the triggerer releases them.

An executor may fail a deferred task just after its trigger fired, and a user may mark it. Without a retry no task would
take over the grant, and it would block the lock for its ttl. Its trigger has ended by then, so an asyncio task on the
triggerer's event loop checks the state of the Airflow task until the ttl of the grant has passed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import lockstead
from airflow_lockstead import compat
from lockstead.values import SHARED
from lockstead.wrapping.locks import leases_of

if TYPE_CHECKING:
    import logging

    from airflow_lockstead.grants import Grant
    from lockstead import AsyncLock

LOOK_EVERY: Final = 5.0
"""Seconds between two checks of the task's state."""

OVER: Final = frozenset({"failed", "upstream_failed", "skipped", "removed"})
"""States in which a task has ended without a body that releases its lock."""

SUCCESS: Final = "success"

ENDED: Final = OVER | {SUCCESS}

_WATCHES: Final[set[asyncio.Task[None]]] = set()
"""The asyncio tasks of this process: an event loop keeps only weak references to its tasks."""


def watch(lock: AsyncLock, grant: Grant, task: Mapping[str, Any], log: logging.Logger) -> None:
    """Start to check the task's state, on the running event loop.

    task: dag_id, run_id, task_id and map_index of the task with the grant; and `hands_on`: whether it passes the lease
    on when it succeeds; otherwise it has worked under the lease and released it by then.
    """
    made = asyncio.create_task(_watch(lock, grant, task, log), name=f"lockstead-unbegun-{grant.holder}")
    _WATCHES.add(made)
    made.add_done_callback(_WATCHES.discard)


async def _give_back(lock: AsyncLock, grant: Grant) -> bool:
    """Release a lease under which no work was done; True if it existed.

    If the lease before it ended unclean, it is broken instead, so that the next holder is informed too.
    """
    said = lockstead.LeaseTicket.parse(grant.ticket)
    if grant.unclean is None or said.mode == SHARED or said.slot is not None:
        # a group of readers still informs the next holder; who takes a permit is not refused for an unclean end
        return await lock.release(said)
    broken = lock.break_lease(reason=grant.unclean, by=said.holder, now=True, incarnation=said.incarnation)
    return await broken is not None


async def _watch(lock: AsyncLock, grant: Grant, task: Mapping[str, Any], log: logging.Logger) -> None:
    place = dict(task)
    hands_on = place.pop("hands_on", True)
    ends_at = time.monotonic() + lockstead.LeaseTicket.parse(grant.ticket).ttl
    while (left := ends_at - time.monotonic()) > 0:
        await asyncio.sleep(min(LOOK_EVERY, left))
        try:
            state = await compat.state_of(**place)
            if state == SUCCESS and hands_on:
                return
            if state in ENDED and await _is_settled(lock, grant, log):
                return
        except Exception as error:  # noqa: BLE001 - after any error of the store or Airflow, the ttl frees the lock
            log.warning("could not see whether the grant of %r is used: %s", grant.key, error)


async def _is_settled(lock: AsyncLock, grant: Grant, log: logging.Logger) -> bool:
    """Release a grant without members; True if nothing is left to do. The bodies of readers do not need it."""
    if lockstead.LeaseTicket.parse(grant.ticket).mode != SHARED:
        held = await lock.inspect()
        if all(one.holder != grant.holder for one in leases_of(held)):
            return True
        if any(not one.is_expired for one in await lock.members(grant.ticket)):
            return True  # its body has begun, and the release or the ttl ends the lease
    try:
        if await _give_back(lock, grant):
            log.warning("the task ended before its body began: %r is released", grant.key)
    except lockstead.LeaseLost:
        pass
    return True
