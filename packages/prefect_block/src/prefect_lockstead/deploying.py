"""Refusing the deployment of a flow that would run without its lock.

A deployment stores no function: a worker loads a name from a file. If the lock was added after the name was bound, the
deployed flow would run without it, so making a deployment of such a flow raises. Import only after Prefect.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prefect_lockstead.spec import LockSpec

PLACED: Final = "__lockstead_placed__"
"""The attribute of a locked function with its `Placed`. Outer decorators copy it by functools.wraps."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How a function was locked. is_late: its name stood for the unlocked one by then. is_loaded: it had come from
    a deployment's storage."""

    locks: tuple[LockSpec, ...]
    is_late: bool = False
    is_loaded: bool = False


def placed(target: Any, function: Any, spec: LockSpec) -> Placed:
    """Return the `Placed` of a function that is locked now; it is the target or the target's function."""
    before = getattr(function, PLACED, None) or Placed(())
    named = _named(function)
    return Placed(
        (*before.locks, spec),
        is_late=before.is_late or (named is not None and (named is target or _function(named) is function)),
        is_loaded=before.is_loaded or getattr(target, "_storage", None) is not None,
    )


def check(flow: Any) -> None:
    """Raise ValueError, with one line, if a worker that loads this flow by its name gets one without the lock."""
    how: Placed | None = getattr(flow.fn, PLACED, None)
    if how is None:
        return
    if getattr(flow, "_storage", None) is not None:
        is_lost, name = how.is_loaded, str(flow._entrypoint)
    else:
        # a script may rebind the name under `if __name__ == "__main__"`, which no worker executes
        there = getattr(_function(_named(flow.fn)), PLACED, None)
        is_bound = there is not None and there.locks == how.locks and flow.fn.__module__ != "__main__"
        is_lost, name = how.is_late and not is_bound, f"{flow.fn.__module__}:{flow.fn.__qualname__}"
    if is_lost:
        raise ValueError(
            f"the flow {flow.name!r} cannot be deployed with this lock: a worker loads {name!r}, which has none; put "
            "@locked where that flow is defined, or deploy a flow of your own that has @locked and calls it"
        )


def _named(function: Any) -> Any:
    """Return the object that a worker loads by a function's name; None if there is none."""
    found: Any = getattr(inspect.unwrap(function), "__globals__", {})
    for name in function.__qualname__.split("."):
        found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
    return found


def _function(found: Any) -> Any:
    """Return the function of a flow or of a method; a function as it is."""
    found = getattr(found, "fn", found)
    return getattr(found, "__func__", found)


@functools.cache
def hook() -> None:
    """Check each flow of which Prefect makes a deployment. Acts once per process."""
    from prefect.deployments.runner import RunnerDeployment
    from prefect.flows import Flow

    for name in ("to_deployment", "ato_deployment"):  # the second one: from 3.2 on
        if hasattr(Flow, name):
            setattr(Flow, name, _checking(getattr(Flow, name)))
    from_flow = RunnerDeployment.from_flow.__func__
    RunnerDeployment.from_flow = classmethod(_checking(from_flow, at=1))


def _checking(original: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
    """Return a function of Prefect's that checks its flow, the positional argument `at`, first."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(args[at] if len(args) > at else kwargs["flow"])
        return original(*args, **kwargs)

    return call
