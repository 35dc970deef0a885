"""`@task.locked` and `@locked`: a lock of its own for a single task. Must not know stores.

The task waits without a worker slot, holds the lock while its body runs, and releases it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from airflow_lockstead.compat import BaseOperator, MappedOperator, TaskGroup, XComArg
from airflow_lockstead.spec import NAMES, WHICH, LockSpec, OnStaleLease, Section, check_templates
from airflow_lockstead.wrap import sections_of, wrap, wrapped
from lockstead.values import Duration
from lockstead.wrapping.spec import OnUnclean

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")

if TYPE_CHECKING:

    class Task(Protocol[P, R_co]):
        """A decorated function: calling it in a DAG file returns a reference to its future result."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
            """Make a task of the DAG."""

        @property
        def function(self) -> Callable[P, R_co]:
            """The undecorated function."""

        def override(self, **words: Any) -> Task[P, R_co]:
            """Return the same task with other parameters."""

        def partial(self, **words: Any) -> Any:
            """Set arguments that are the same for all mapped instances."""

        def expand(self, **words: Any) -> Any:
            """Map the task over arguments."""

    class _Around(Protocol):
        """A decorator that adds a lock to a function or an existing task."""

        @overload
        def __call__(self, target: Callable[P, R]) -> Task[P, R]: ...
        @overload
        def __call__(self, target: T) -> T: ...


def locked(
    lock: str | None = None,
    *,
    key: str | None = None,
    lockstead_conn_id: str | None = None,
    ttl: Duration | None = None,
    timeout: Duration | None = None,
    purpose: str | None = None,
    expected: Duration | None = None,
    on_stale_lease: OnStaleLease = "fail",
    on_unclean: OnUnclean = "warn",
    labels: Mapping[str, str] | None = None,
    mode: str | None = None,
    permits: int | None = None,
) -> _Around:
    """Return a decorator that gives one task a lock of its own: an operator, a decorated task, or a plain function.

    A function becomes a task. The parameters are those of `LockSpec`; invalid ones raise ValueError or TypeError, with
    one line, when the file is parsed. Each instance of a mapped task acquires the lock separately. A deferred body
    keeps its lease for the ttl, without a keeper.
    """
    if callable(lock):
        raise TypeError("name the lock: write @locked(lock=...), or key= with lockstead_conn_id=")
    words = {name: word for name, word in locals().items() if name in _OURS}
    section = _section_of(words)

    def around(target: Any) -> Any:
        return _with_lock(target, section, words)

    return around


def _section_of(words: Mapping[str, Any]) -> Section:
    """Return the section of one task with a lock of its own, after checking the parameters."""
    given = {NAMES.get(name, name): word for name, word in words.items()}
    spec = LockSpec(**{**given, "labels": given.get("labels") or {}, "keeper": False})
    check_templates(spec, _environment)
    return Section(spec, single=True)


def locked_task(
    python_callable: Callable[..., Any] | str | None = None, multiple_outputs: bool | None = None, **words: Any
) -> Any:
    """Make a task with a lock of its own from a function: `@task.locked(lock=...)`.

    Other parameters are those of `@task`. The lock's URL may be the only positional argument, in place of the function.
    """
    if isinstance(python_callable, str):
        if "lock" in words:
            raise TypeError("the lock is named twice: write @task.locked(lock=...) once")
        words["lock"], python_callable = python_callable, None
    ours = {name: word for name, word in words.items() if name in _OURS}
    theirs = {name: word for name, word in words.items() if name not in _OURS}
    around = locked(**ours)
    task = _python_task()
    if python_callable is not None:
        return around(task(python_callable=python_callable, multiple_outputs=multiple_outputs, **theirs))
    return lambda function: around(task(python_callable=function, multiple_outputs=multiple_outputs, **theirs))


_OURS: Final = frozenset(inspect.signature(locked).parameters)


def _with_lock(target: Any, section: Section, words: Mapping[str, Any]) -> Any:
    """Add the lock to a task, an operator, a decorated task or a function; TypeError for anything else."""
    if isinstance(target, XComArg):
        _wrap_once(target.operator, section)
        return target
    if isinstance(target, BaseOperator | MappedOperator):
        _wrap_once(target, section)
        return target
    if getattr(target, "_airflow_is_task_decorator", False) or _makes_tasks(target):
        made = copy.copy(target)
        made.operator_class = wrapped(made.operator_class, section)
        made.__class__ = _with_override(type(target), target.operator_class, words)
        return made
    if isinstance(target, TaskGroup) or hasattr(target, "tg_kwargs"):
        raise TypeError("@locked is for one task; for a group take LockedTaskGroup or @locked_task_group")
    if isinstance(target, type) or not callable(target):
        named = target.__name__ if isinstance(target, type) else type(target).__name__
        raise TypeError(f"@locked is for a task or a function, not {named}; put it around the operator that you made")
    return _with_lock(_python_task()(python_callable=target), section, words)


def _with_override(cls: Any, bare: Any, words: Mapping[str, Any]) -> Any:
    """Return a class of decorated tasks whose `override` also accepts the lock's parameters.

    bare: the operator class without the lock.
    """

    def override(self: Any, **said: Any) -> Any:
        ours = {name: word for name, word in said.items() if name in _OURS}
        theirs = {name: word for name, word in said.items() if name not in _OURS}
        inner: Any = super(changed, self)
        made = inner.override(**theirs)
        if not ours:
            return made
        # a new lock name replaces the old one, whether given by lock= or by key= and lockstead_conn_id=
        kept = {name: word for name, word in words.items() if name not in WHICH or not set(ours) & set(WHICH)}
        made.operator_class, made.__class__ = bare, cls
        return locked(**{**kept, **ours})(made)

    changed: Any = type(cls.__name__, (cls,), {"override": override, "__module__": cls.__module__})
    return changed


def _makes_tasks(target: Any) -> bool:
    """Return whether an object is a function decorated with `@task`."""
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
    """Return a Jinja environment to parse templates when the DAG is not known yet."""
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(cache_size=0)
