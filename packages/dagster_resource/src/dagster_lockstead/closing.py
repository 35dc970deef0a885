"""Closing the generator of a step when Dagster reports that the step failed or is retried.

When an I/O manager fails or is interrupted, Dagster does not close the body: the traceback keeps its frames alive, and
the lock would stay held. The generator is a whole body, or the section of a `hold` in one.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from dagster_lockstead import compat
from dagster_lockstead.reporting import wait_until_written


@contextmanager
def closed_with(step: Any, steps: Generator[Any, Any, Any]) -> Iterator[None]:
    """Close a generator, if it waits, when its step ends within the block."""
    closer = _Closer(step, steps)
    compat.listen(step.log, closer)
    try:
        yield
    finally:
        compat.listen_no_more(step.log, closer)


class _Closer(logging.Handler):
    def __init__(self, step: Any, steps: Generator[Any, Any, Any]) -> None:
        super().__init__()
        self._step = step
        self._step_key = step.step.key
        self._steps = weakref.ref(steps)

    def emit(self, record: logging.LogRecord) -> None:
        """Close the generator if the step failed or is retried; the event is written in any case."""
        event = getattr(record, compat.EVENT, None)
        if event is None or event.step_key != self._step_key:
            return
        if not (event.is_step_failure or event.is_step_up_for_retry):
            return
        compat.listen_no_more(self._step.log, self)
        steps = self._steps()
        if steps is None or inspect.getgeneratorstate(steps) == inspect.GEN_RUNNING:
            return
        try:
            steps.close()
        except BaseException as error:  # noqa: BLE001 - the step's own failure must be reported
            logging.getLogger("dagster_lockstead").warning(
                "as the step %r was ended: %s: %s", self._step_key, type(error).__name__, error
            )
        wait_until_written(self._step)
