"""Running the body of a step, of any kind, as one generator of events under a lease.

Its events are yielded inside the section, so I/O managers write under the lease. A loss between two events is raised in
the body at its next step, so that it cleans up. Coroutines run on the step's own event loop, as without a lock; if the
body ends for another reason they are cancelled and awaited.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Any, Final

from dagster_lockstead import compat
from dagster_lockstead.aborting import Abort, LeaseLostInterrupt
from dagster_lockstead.closing import closed_with
from dagster_lockstead.frames import bears_interrupts
from dagster_lockstead.reporting import marked
from dagster_lockstead.section import Entry

AWAITS: Final = 3
"""How often a cancelled task is awaited, if waiting for it is interrupted too."""

_OVER: Final = object()


def events(body: Callable[[], Any], context: Any, step: Any, entry: Entry) -> Generator[Any, Any, None]:
    """Run a body; yield its events with key and token in their metadata."""
    steps = _steps(body, context, step, entry.abort)
    try:
        for event in steps:
            # an output that was made after the loss must not be written
            if entry.has_to_end():
                steps.throw(LeaseLostInterrupt())
                return
            yield marked(event, entry.lease)
            # the lease may have been lost during the write
            if entry.has_to_end():
                steps.throw(LeaseLostInterrupt())
                return
    except StopIteration:
        return
    finally:
        steps.close()


@bears_interrupts
def _steps(body: Callable[[], Any], context: Any, step: Any, abort: Abort | None) -> Generator[Any, Any, None]:
    result = body()
    if inspect.isasyncgen(result):
        yield from _each(step.event_loop, result, abort)
        return
    if inspect.iscoroutine(result):
        result = _awaited(step.event_loop, result, abort)
    yield from compat.coerced(result, context, step.op_def.output_defs)


def _each(loop: asyncio.AbstractEventLoop, steps: AsyncGenerator[Any, Any], abort: Abort | None) -> Generator[Any]:
    try:
        while (event := _awaited(loop, anext(steps, _OVER), abort)) is not _OVER:
            try:
                yield event
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is the body's to catch
                _awaited(loop, steps.athrow(error), None)
                return
    finally:
        _awaited(loop, steps.aclose(), None)


@bears_interrupts
def _awaited(loop: asyncio.AbstractEventLoop, awaitable: Any, abort: Abort | None) -> Any:
    """Await this on a loop, blocking; cancelled and awaited to its end if anything is raised here."""
    task = loop.create_task(_one(awaitable))

    def heard() -> None:
        if abort is not None and not task.done():
            if abort.is_leaving:
                # it is already cancelled for an outer body: a second cancellation would interrupt its clean-up
                return
            abort.accepted()
        task.cancel()

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(heard)

    if abort is not None:
        abort.through(cancel)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        _end(loop, task)
        raise
    finally:
        if abort is not None:
            abort.through(None)


@bears_interrupts
async def _one(awaitable: Any) -> Any:
    return await awaitable


def _end(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    task.cancel()
    for _time in range(AWAITS):
        if task.done():
            break
        with suppress(BaseException):  # only the first exception is raised
            loop.run_until_complete(asyncio.wait({task}))
    if task.done() and not task.cancelled():
        task.exception()  # otherwise asyncio logs that the exception was never retrieved


def listened(step: Any, steps: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """Run a generator that is closed when its step has ended."""
    with closed_with(step, steps):
        yield from steps
