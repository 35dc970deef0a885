"""What a section has of Prefect, which this process may not have: a locked function also runs without it.

Where Prefect was never imported there is no run: nobody is told but the log of lockstead itself.
Must not import Prefect by itself.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lockstead import AsyncLease, Lease, LeaseLost


def is_there() -> bool:
    """Return whether this process may be in a run of Prefect."""
    return "prefect" in sys.modules


class Block(AbstractContextManager[object], AbstractAsyncContextManager[object], Protocol):
    """A block, `with` or `async with`."""


def inherited(lease: Lease | AsyncLease) -> Block:
    """Let the child tasks and flows of a block work under the lease."""
    if not is_there():
        return nullcontext()
    from prefect_lockstead import children

    return children.inherited(lease)


def settled() -> Block:
    """Return a block at whose end what its section shows of its waiting is shown."""
    if not is_there():
        return nullcontext()
    from prefect_lockstead import showing

    return showing.settled()


def tell_acquired(lease: Lease | AsyncLease, waited: float) -> None:
    """Tell that the lock is held; waited is seconds."""
    if is_there():
        from prefect_lockstead import telling

        telling.acquired(lease, waited)


def tell_ended(lease: Lease | AsyncLease, lost: LeaseLost | None) -> None:
    """Tell that the lease was lost, or else that the lock was given back."""
    if not is_there():
        return
    from prefect_lockstead import telling

    if lost is None:
        telling.released(lease)
    else:
        telling.lost(lease, lost)


def name_lost() -> None:
    """Arrange that the run's final state is named LeaseLost."""
    if is_there():
        from prefect_lockstead import states

        states.name_lost()


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Return the logger of this run, whose lines Prefect shows; outside of runs, one of our own."""
    if not is_there():
        return logging.getLogger("prefect_lockstead")
    from prefect_lockstead import words

    return words.logger()


def owner() -> str | None:
    """Name the run that asks, `prefect:flow/run/id`, so that people find it; None outside of runs."""
    if not is_there():
        return None
    from prefect.context import FlowRunContext, TaskRunContext

    flow, task = FlowRunContext.get(), TaskRunContext.get()
    words: list[str] = []
    if flow is not None and flow.flow_run is not None:
        words += [flow.flow.name if flow.flow else "flow", flow.flow_run.name, str(flow.flow_run.id)[:8]]
    if task is not None and task.task_run is not None:
        words += [task.task_run.name, str(task.task_run.id)[:8]]
    if not words:
        return None
    return "".join(one if one.isprintable() else "?" for one in "prefect:" + "/".join(words))
