"""The Prefect run that a section is in, if any: a locked function also runs without Prefect.

Imports Prefect only where this process has imported it already; elsewhere there is no run.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lockstead import AsyncLease, Lease, LeaseLost


def is_prefect_loaded() -> bool:
    """Return whether this process has imported Prefect, and so may be in a run."""
    return "prefect" in sys.modules


class Block(AbstractContextManager[object], AbstractAsyncContextManager[object], Protocol):
    """A context manager for both `with` and `async with`."""


def inherited(lease: Lease | AsyncLease) -> Block:
    """Return a context manager within which child tasks and flows run under the lease."""
    if not is_prefect_loaded():
        return nullcontext()
    from prefect_lockstead import children

    return children.inherited(lease)


def settled() -> Block:
    """Return a context manager that waits at its end until the section's reports to Prefect are written."""
    if not is_prefect_loaded():
        return nullcontext()
    from prefect_lockstead import wait_display

    return wait_display.settled()


def report_acquired(lease: Lease | AsyncLease, waited: float) -> None:
    """Report that the lock was acquired. waited: seconds."""
    if is_prefect_loaded():
        from prefect_lockstead import reporting

        reporting.acquired(lease, waited)


def report_ended(lease: Lease | AsyncLease, lost: LeaseLost | None) -> None:
    """Report that the lease was lost, or released if `lost` is None."""
    if not is_prefect_loaded():
        return
    from prefect_lockstead import reporting

    if lost is None:
        reporting.released(lease)
    else:
        reporting.lost(lease, lost)


def name_state_lost() -> None:
    """Let the run's final state have the name LeaseLost."""
    if is_prefect_loaded():
        from prefect_lockstead import states

        states.name_state_lost()


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Return Prefect's logger of this run; outside of runs, the logger `prefect_lockstead`."""
    if not is_prefect_loaded():
        return logging.getLogger("prefect_lockstead")
    from prefect_lockstead import logs

    return logs.logger()


def owner() -> str | None:
    """Return the owner name of this run, `prefect:flow/run/id`; None outside of runs."""
    if not is_prefect_loaded():
        return None
    from prefect.context import FlowRunContext, TaskRunContext

    flow, task = FlowRunContext.get(), TaskRunContext.get()
    parts: list[str] = []
    if flow is not None and flow.flow_run is not None:
        parts += [flow.flow.name if flow.flow else "flow", flow.flow_run.name, str(flow.flow_run.id)[:8]]
    if task is not None and task.task_run is not None:
        parts += [task.task_run.name, str(task.task_run.id)[:8]]
    if not parts:
        return None
    return "".join(char if char.isprintable() else "?" for char in "prefect:" + "/".join(parts))
