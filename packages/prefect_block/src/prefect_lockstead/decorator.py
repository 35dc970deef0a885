"""The decorator `@locked` for a function, a flow or a task; it returns the same kind of object.

The lock is around the function itself: each attempt of a flow or a task acquires it again and has a token of its own.
Must not know stores, nor import Prefect.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar

from lockstead.values import Duration
from lockstead.wrapping.spec import OnUnclean
from prefect_lockstead import aio_wrapper, deploying, wrapper
from prefect_lockstead.spec import LockSpec, Waiting

T = TypeVar("T", bound=Callable[..., Any])

HOOKS: Final = (
    "on_completion",
    "on_failure",
    "on_cancellation",
    "on_crashed",
    "on_running",
    "on_rollback",
    "on_commit",
)


def locked(
    lock: str | None = None,
    *,
    block: str | None = None,
    ttl: Duration | None = None,
    timeout: Duration | None = None,
    purpose: str | None = None,
    expected: Duration | None = None,
    on_unclean: OnUnclean = "warn",
    waiting: Waiting = "in_process",
    labels: Mapping[str, str] | None = None,
    mode: str | None = None,
    permits: int | None = None,
) -> Callable[[T], T]:
    """Hold a lock while a function, a flow or a task runs; above or below `@flow` and `@task` alike.

    Parameters as of `LockSpec`; ValueError or TypeError for invalid ones, at import time. When the lease is lost the
    body is interrupted and raises `lockstead.LeaseLost`.
    """
    if callable(lock):
        raise TypeError("@locked needs a lock, as in @locked('gs://bucket/locks/apt')")
    spec = LockSpec(
        lock=lock,
        block=block,
        ttl=ttl,
        timeout=timeout,
        purpose=purpose,
        expected=expected,
        on_unclean=on_unclean,
        waiting=waiting,
        labels=labels or {},
        mode=mode,
        permits=permits,
    )
    return functools.partial(_with_lock, spec=spec)


def _with_lock(target: Any, spec: LockSpec) -> Any:
    """Return a function, a flow or a task with the lock around it."""
    if isinstance(target, staticmethod | classmethod):
        return type(target)(_with_lock(target.__func__, spec))
    if "prefect.flows" in sys.modules:
        deploying.hook()
    if isinstance(target, FunctionType):
        return _around(target, spec, target)
    function = getattr(target, "fn", None)
    if isinstance(function, FunctionType) and hasattr(target, "with_options"):
        return _copied(target, _around(function, spec, target))
    named = target.__name__ if isinstance(target, type) else type(target).__name__
    raise TypeError(f"@locked is for a function, a flow or a task, not {named}")


def _copied(target: Any, function: Callable[..., Any]) -> Any:
    """Return a copy of a flow or a task that runs another function, and is the same in all else.

    Not by `with_options`, which drops attributes such as the storage of a deployment.
    """
    made = copy.copy(target)
    made.fn = made.__wrapped__ = function
    for hooks in HOOKS:
        if isinstance(getattr(made, hooks, None), list):
            setattr(made, hooks, list(getattr(made, hooks)))
    return made


def _around(function: FunctionType, spec: LockSpec, target: Any) -> Callable[..., Any]:
    """Return a function of the same kind that holds the lock while it runs. target: the function, or what runs it."""
    signature = inspect.signature(function)
    known = frozenset(signature.parameters)
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    spec.check_parameters(function.__qualname__, known, takes_any=takes_any)
    if inspect.isasyncgenfunction(function):
        made = aio_wrapper.wrapped_generator(function, spec)
    elif inspect.isgeneratorfunction(function):
        made = wrapper.wrapped_generator(function, spec)
    elif inspect.iscoroutinefunction(function):
        made = aio_wrapper.wrapped(function, spec)
    else:
        made = wrapper.wrapped(function, spec)
    _place(_function(made), function)
    setattr(made, deploying.PLACED, deploying.placed(target, function, spec))
    return made


def _function(made: Any) -> FunctionType:
    if not isinstance(made, FunctionType):
        raise TypeError(f"no function: {made!r}")
    return made


NO_COLUMNS: Final = 0x80 | 13 << 3
"""First byte of a line-table entry without columns. Source: CPython, Objects/locations.md; 3.11 and later."""


def _place(made: FunctionType, function: FunctionType) -> None:
    """Give a wrapper the file and line of the function it wraps.

    Prefect reads a flow's file, for its version and its entrypoint, from the code of its function; without this, a
    deployment would load this file.
    """
    code, theirs = made.__code__, function.__code__
    units = len(code.co_code) // 2
    lengths = [8] * (units // 8) + ([units % 8] if units % 8 else [])
    made.__code__ = code.replace(
        co_filename=theirs.co_filename,
        co_firstlineno=theirs.co_firstlineno,
        co_linetable=b"".join(bytes((NO_COLUMNS | length - 1, 0)) for length in lengths),
    )
