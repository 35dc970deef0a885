# Generated from aio_wrapper.py by `make blocking`: edit that file instead.
"""The wrappers that `@locked` makes: functions of the same kind, which hold the lock while they run.

The guard is in the frame that calls the body: no other code may run between the end of the body and of the guard.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lockstead import templates
from prefect_lockstead.section import held
from prefect_lockstead.spec import LockSpec


def wrapped(function: Callable[..., Any], spec: LockSpec) -> Callable[..., Any]:
    """Return a function that calls a function under the lock."""

    @functools.wraps(function)
    def holding(*args: Any, **kwargs: Any) -> Any:
        with held(spec, _given(function, args, kwargs)) as lease, lease.guard():
            return function(*args, **kwargs)

    return holding


def wrapped_generator(function: Callable[..., Any], spec: LockSpec) -> Callable[..., Any]:
    """Return a generator function that runs a generator under the lock, each step guarded.

    The consumer's code between two items is not guarded. A loss that is found there is raised within the generator at
    its next step, so that it cleans up.
    """

    @functools.wraps(function)
    def holding(*args: Any, **kwargs: Any) -> Any:
        with held(spec, _given(function, args, kwargs)) as lease:
            steps = function(*args, **kwargs)
            step = steps.__next__
            try:
                while True:
                    with lease.guard():
                        item = step()
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - it is the body's to catch
                        step = functools.partial(steps.throw, error)
                    else:
                        step = functools.partial(steps.send, sent)
                    if not lease.is_held:
                        steps.throw(lease.lost_error())
            except StopIteration as ended:
                return ended.value
            finally:
                steps.close()

    return holding


def _given(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included. TypeError as the call itself would raise."""
    return templates.arguments_of(inspect.signature(function), args, kwargs)
