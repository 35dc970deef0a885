"""Decides how a single task comes to a lock of its own: `@task.locked` and `@locked`. Must not know stores.

The task waits without a worker slot, holds the lock while its body runs, and gives it back.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow_lockstead.compat import BaseOperator, MappedOperator, TaskGroup, XComArg
from airflow_lockstead.spec import LockSpec, OnStaleLease, OnUnclean, Section, check_templates
from airflow_lockstead.wrap import sections_of, wrap, wrapped
from lockstead.values import Duration


def locked(
    *,
    lock: str | None = None,
    key: str | None = None,
    lockstead_conn_id: str | None = None,
    ttl: Duration | None = None,
    timeout: Duration | None = None,
    purpose: str | None = None,
    expected: Duration | None = None,
    on_stale_lease: OnStaleLease = "fail",
    on_unclean: OnUnclean = "warn",
    labels: Mapping[str, str] | None = None,
) -> Callable[[Any], Any]:
    """Give one task a lock of its own: an operator, a task of a function, or a function, which becomes a task.

    Words as of `LockSpec`; ValueError or TypeError, with one line, for what cannot be, when the file is parsed. Each
    instance of a mapped task asks for the lock by itself. A deferred body keeps its lease for the ttl, with no keeper.
    """
    spec = LockSpec(
        lock=lock,
        key=key,
        conn_id=lockstead_conn_id,
        ttl=ttl,
        timeout=timeout,
        purpose=purpose,
        expected=expected,
        keeper=False,
        on_stale_lease=on_stale_lease,
        on_unclean=on_unclean,
        labels=labels or {},
    )
    check_templates(spec, _environment)
    return lambda target: _with_lock(target, Section(spec, single=True))


def locked_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **words: Any
) -> Any:
    """Make a task with a lock of its own of a function: `@task.locked(lock=...)`; other words are those of `@task`."""
    ours = {name: word for name, word in words.items() if name in _OURS}
    theirs = {name: word for name, word in words.items() if name not in _OURS}
    around = locked(**ours)
    task = _python_task()
    if python_callable is not None:
        return around(task(python_callable=python_callable, multiple_outputs=multiple_outputs, **theirs))
    return lambda function: around(task(python_callable=function, multiple_outputs=multiple_outputs, **theirs))


_OURS: Final = frozenset(inspect.signature(locked).parameters)


def _with_lock(target: Any, section: Section) -> Any:
    """Put the lock around whatever one may call a task."""
    if isinstance(target, XComArg):
        _wrap_once(target.operator, section)
        return target
    if isinstance(target, BaseOperator | MappedOperator):
        _wrap_once(target, section)
        return target
    if getattr(target, "_airflow_is_task_decorator", False) or _makes_tasks(target):
        made = copy.copy(target)
        made.operator_class = wrapped(made.operator_class, section)
        return made
    if isinstance(target, TaskGroup) or hasattr(target, "tg_kwargs"):
        raise TypeError("@locked is for one task; for a group take LockedTaskGroup or @locked_task_group")
    if isinstance(target, type) or not callable(target):
        named = target.__name__ if isinstance(target, type) else type(target).__name__
        raise TypeError(f"@locked is for a task or a function, not {named}; put it around the operator that you made")
    return _with_lock(_python_task()(python_callable=target), section)


def _makes_tasks(target: Any) -> bool:
    """Tell whether it is what `@task` makes of a function."""
    return hasattr(target, "operator_class") and hasattr(target, "function") and callable(target)


def _wrap_once(task: Any, section: Section) -> None:
    if any(one.single for one in sections_of(task)):
        raise ValueError(
            f"the task {task.task_id!r} has a lock of its own already; for two, put it into a LockedTaskGroup"
        )
    wrap(task, section)


def _python_task() -> Any:
    from airflow_lockstead.compat import task

    return task.python


def _environment() -> Any:
    """Give a Jinja environment to read templates with, for who knows no DAG yet."""
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(cache_size=0)
