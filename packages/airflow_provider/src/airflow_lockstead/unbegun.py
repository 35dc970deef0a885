"""What becomes of a grant whose task ends before its body begins: the triggerer gives it back.

An executor may fail a task that deferred, just after its trigger fired; so may whoever marks it. Without a retry nobody
would take the grant over, and it would stand in everybody's way for its ttl. Its trigger is over by then, so a task of
the triggerer's event loop looks at how the task stands, for as long as the grant lives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import lockstead
from airflow_lockstead import compat

if TYPE_CHECKING:
    import logging

    from airflow_lockstead.grants import Grant
    from lockstead import AsyncLock

LOOK_EVERY: Final = 5.0
"""Seconds between two looks at the task."""

OVER: Final = frozenset({"failed", "upstream_failed", "skipped", "removed"})
"""States in which a task has ended without a body that gives its lock back."""

SUCCESS: Final = "success"

ENDED: Final = OVER | {SUCCESS}

_WATCHES: Final[set[asyncio.Task[None]]] = set()
"""Those of this process: an event loop keeps no task alive by itself."""


def watch(lock: AsyncLock, grant: Grant, task: Mapping[str, Any], log: logging.Logger) -> None:
    """Begin to look, on the running event loop.

    task: dag_id, run_id, task_id and map_index of who was granted it; and whether it `hands_on` the lease when it has
    succeeded, or has worked under it and given it back by then.
    """
    made = asyncio.create_task(_watch(lock, grant, task, log), name=f"lockstead-unbegun-{grant.holder}")
    _WATCHES.add(made)
    made.add_done_callback(_WATCHES.discard)


async def _give_back(lock: AsyncLock, grant: Grant) -> bool:
    """Release what nobody worked under; True if it was there. How the one before ended the next one is told too."""
    if grant.unclean is None:
        return await lock.release(grant.ticket)
    said = lockstead.LeaseTicket.parse(grant.ticket)
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
        except Exception as error:  # noqa: BLE001 - whatever store or Airflow raises, the ttl frees the lock
            log.warning("could not see whether the grant of %r is used: %s", grant.key, error)


async def _is_settled(lock: AsyncLock, grant: Grant, log: logging.Logger) -> bool:
    """Release a grant under which nobody works; True if there is nothing to do any more."""
    held = await lock.inspect()
    if held is None or held.holder != grant.holder:
        return True
    if any(not one.is_expired for one in await lock.members(grant.ticket)):
        return True  # its body had begun, and is looked after by others
    try:
        if await _give_back(lock, grant):
            log.warning("the task ended before its body began: %r is given back", grant.key)
    except lockstead.LeaseLost:
        pass
    return True
