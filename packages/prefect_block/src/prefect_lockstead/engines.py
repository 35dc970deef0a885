"""Replacements for the methods with which Prefect's engines call the function of a task or flow.

Prefect has no hook there. A wrapped task runner would miss subflows and direct calls, and a wrapped task would be sent
to process pools. The methods are the same in all versions from 3.1 to 3.8; a missing one is logged.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prefect_lockstead import children

if TYPE_CHECKING:
    from lockstead import AsyncLease, Lease

_CALLS: Final = (
    ("prefect.task_engine", "SyncTaskRunEngine", "call_task_fn", "task"),
    ("prefect.task_engine", "AsyncTaskRunEngine", "call_task_fn", "task"),
    ("prefect.flow_engine", "FlowRunEngine", "call_flow_fn", "flow"),
)
_SINCE_3_2: Final = ("prefect.flow_engine", "AsyncFlowRunEngine", "call_flow_fn", "flow")

_LOGGER: Final = logging.getLogger("prefect_lockstead")


@functools.cache
def hook() -> None:
    """Let Prefect's engines call functions as members of the sections of their context. Once a process."""
    for module, engine, method, what in (*_CALLS, _SINCE_3_2):
        there = getattr(importlib.import_module(module), engine, None)
        original = getattr(there, method, None)
        if there is not None and original is not None:
            setattr(there, method, _carrying(original, what))
        elif engine != _SINCE_3_2[1]:
            _LOGGER.warning("this Prefect has no %s.%s: children do not stop with the lease", engine, method)


def _carrying(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(engine: Any, *args: Any) -> Any:
        plain = getattr(engine, what)
        function = children.covered(plain.fn, engine.parameters or {}, is_async=plain.isasync)
        carried = plain
        if function is not plain.fn:
            carried = copy.copy(plain)
            carried.fn = function

        @contextmanager
        def carrying() -> Iterator[None]:
            setattr(engine, what, carried)
            try:
                yield
            except Exception as error:
                _no_retry(engine, plain, error)
                raise
            finally:
                setattr(engine, what, plain)

        async def awaiting() -> Any:
            with carrying():
                return await original(engine, *args)

        if plain.isasync:
            return awaiting()
        with carrying():
            return original(engine, *args)

    return call


def _no_retry(engine: Any, plain: Any, error: Exception) -> None:
    # a retry would be refused, but only after its delay, for which the end of the flow would wait
    if children.is_in_vain(error) and hasattr(engine, "retries"):
        engine.retries = plain.retries


def log_unreached_runner(lease: Lease | AsyncLease) -> None:
    """Log a hint if the flow submits its tasks to other processes, to which no context is copied."""
    from prefect.context import FlowRunContext
    from prefect.logging.loggers import flow_run_logger
    from prefect.task_runners import ThreadPoolTaskRunner

    context = FlowRunContext.get()
    runner = getattr(context, "task_runner", None)
    if context is None or runner is None or isinstance(runner, ThreadPoolTaskRunner) or context.flow_run is None:
        return
    flow_run_logger(context.flow_run, context.flow).info(
        "the lease on %r does not cover tasks submitted to %s: pass lease.share() to it, and use "
        "prefect_lockstead.attached(ticket) there",
        lease.key,
        type(runner).__name__,
    )
