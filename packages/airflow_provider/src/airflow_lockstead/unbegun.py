"""Decides what becomes of a grant whose task ends before its body begins: the triggerer gives it back.

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

    from lockstead import AsyncLock, LeaseTicket

LOOK_EVERY: Final = 5.0
"""Seconds between two looks at the task."""

OVER: Final = frozenset({"failed", "upstream_failed", "skipped", "removed"})
"""States in which a task has ended without a body that gives its lock back."""

_WATCHES: Final[set[asyncio.Task[None]]] = set()
"""Those of this process: an event loop keeps no task alive by itself."""


def watch(lock: AsyncLock, ticket: LeaseTicket, task: Mapping[str, Any], log: logging.Logger) -> None:
    """Begin to look, on the running event loop. task: dag_id, run_id, task_id and map_index of who was granted it."""
    made = asyncio.create_task(_watch(lock, ticket, task, log), name=f"lockstead-unbegun-{ticket.holder}")
    _WATCHES.add(made)
    made.add_done_callback(_WATCHES.discard)


async def _watch(lock: AsyncLock, ticket: LeaseTicket, task: Mapping[str, Any], log: logging.Logger) -> None:
    ends_at = time.monotonic() + ticket.ttl
    while (left := ends_at - time.monotonic()) > 0:
        await asyncio.sleep(min(LOOK_EVERY, left))
        try:
            state = await compat.state_of(**task)
            if state == "success" or (state in OVER and await _is_settled(lock, ticket, log)):
                return
        except Exception as error:  # noqa: BLE001 - whatever store or Airflow raises, the ttl frees the lock
            log.warning("could not see whether the grant of %r is used: %s", ticket.key, error)


async def _is_settled(lock: AsyncLock, ticket: LeaseTicket, log: logging.Logger) -> bool:
    """Give a grant back under which nobody works; True if there is nothing to do any more."""
    held = await lock.inspect()
    if held is None or held.holder != ticket.holder:
        return True
    if any(not one.is_expired for one in await lock.members(ticket)):
        return True  # its body had begun, and is looked after by others
    try:
        if await lock.release(ticket):
            log.warning("the task ended before its body began: %r is given back", ticket.key)
    except lockstead.LeaseLost:
        pass
    return True
