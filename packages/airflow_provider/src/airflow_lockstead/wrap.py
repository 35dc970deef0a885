"""Wrapping a task so that its body runs under a lock: by a subclass with the same name. Must not know leases.

A DAG is serialized with the names of its operators' classes, and the worker parses the file again. So a subclass with
the same name does not change the serialized DAG, and it only has to be created when the file is parsed. Its methods are
closures over what they need. `body`, which is imported in a running task, runs the body.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_lockstead import compat

if TYPE_CHECKING:
    from airflow_lockstead.spec import Section

MARK: Final = "_lockstead_section"
"""The attribute of a wrapped class that has its section."""

LATE: Final = "_lockstead_render"
"""The attribute of a task that has the function to render its templates, until its own lock is granted."""

SHOWN: Final = "{} (locked)"
"""The operator's name in Airflow's graph, task details and API, for a task with a lock of its own."""


def wrapped(cls: Any, section: Section) -> Any:
    """Return a subclass of an operator's class, with the same name, whose bodies run under the lock of a section.

    Its `on_kill` is the operator's, whether Airflow or the loss of the lease ends the body.
    """
    made = _subclass(cls)

    def execute(self: Any, context: Any, **words: Any) -> Any:
        from airflow_lockstead import body

        inner: Any = super(made, self)
        call = _after_rendering(self, section, partial(inner.execute, context, **words))
        return body.run(self, context, section, call, inner.on_kill)

    def resume_execution(self: Any, next_method: str, next_kwargs: Any, context: Any) -> Any:
        from airflow_lockstead import body

        inner: Any = super(made, self)
        return body.resume(
            self,
            context,
            section,
            next_method,
            next_kwargs,
            execute=_after_rendering(self, section, partial(inner.execute, context, **compat.execute_words(self))),
            resume_execution=partial(inner.resume_execution, next_method, next_kwargs, context),
            on_kill=inner.on_kill,
        )

    # Airflow's method that renders a task's templates, mapped or not; it calls itself for nested fields
    def _do_render_template_fields(
        self: Any, parent: Any, template_fields: Any, context: Any, *more: Any, **named: Any
    ) -> None:
        inner: Any = super(made, self)
        render = partial(inner._do_render_template_fields, parent, template_fields, context, *more, **named)
        if parent is not self:
            render()
            return
        from airflow_lockstead import body

        before = context.get("lockstead")
        body.announce(context, section)
        if section.single and context.get("lockstead") is before:
            # rendered after the grant, since a template may use the lease's token
            self.__dict__[LATE] = render
        else:
            render()

    # Set after the class is created: Airflow wraps an `execute` that is defined in a class body, and removes from the
    # arguments a keyword that marks its own calls. That keyword has to reach the wrapped class.
    made.execute = execute
    made.resume_execution = resume_execution
    made._do_render_template_fields = _do_render_template_fields
    if section.release_id and hasattr(cls, "skip_all_except"):
        made.skip_all_except = _never_skipping(made, section.release_id)
    setattr(made, MARK, section)
    if section.single:
        made.operator_name = property(lambda self: SHOWN.format(super(made, self).operator_name))
        if isinstance(name := getattr(cls, "custom_operator_name", None), str):
            made.custom_operator_name = _CustomName(name)
        if hasattr(cls, "get_python_source"):
            made.get_python_source = _without_locked(made)
    return made


def _without_locked(made: Any) -> Callable[[Any], str]:
    """Return a `get_python_source` that removes `@locked`, for another interpreter, in which it is not defined.

    Airflow removes its own decorator, and runs the rest there. A `locked` within the body is kept.
    """

    def get_python_source(self: Any) -> str:
        source: str = super(made, self).get_python_source()
        lines = source.splitlines(keepends=True)
        body = ast.parse(source).body
        if body and isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef):
            for one in reversed(body[0].decorator_list):
                named = one.func if isinstance(one, ast.Call) else one
                if getattr(named, "id", None) == "locked" or getattr(named, "attr", None) == "locked":
                    del lines[one.lineno - 1 : one.end_lineno]
        return "".join(lines)

    return get_python_source


class _CustomName:
    """The name that Airflow shows for a decorated task in place of its class, such as "@task", marked as locked.

    Airflow reads it from the class when a task is mapped. From a task, Airflow reads it as the name of the decorator to
    remove from a function's source before that runs in another interpreter, so there it is unchanged.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, task: object, _cls: type) -> str:
        """Return the name: marked on the class, unchanged on a task."""
        return SHOWN.format(self._name) if task is None else self._name


def _after_rendering(task: Any, section: Section, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a body that first renders its task's templates, if that was postponed until the grant of its own lock."""

    def rendered() -> Any:
        render = task.__dict__.pop(LATE, None)
        if render is not None:
            render()
        return call()

    return rendered if section.single else call


def _never_skipping(made: Any, release_id: str) -> Callable[..., Any]:
    """Return a branch's `skip_all_except` that never skips the release of its lock.

    Airflow skips all tasks directly downstream of a branch, including teardowns: a branch at the end of a group that
    chooses a task after the group, or none, would leave the lock held.
    """

    def skip_all_except(self: Any, ti: Any, branch_task_ids: Any) -> Any:
        chosen = [branch_task_ids] if isinstance(branch_task_ids, str) else list(branch_task_ids or ())
        kept = [release_id] if release_id in self.downstream_task_ids else []
        return super(made, self).skip_all_except(ti, [*chosen, *kept])

    return skip_all_except


def wrap(task: Any, section: Section) -> None:
    """Make the bodies of a task, mapped or not, run under the lock of a section."""
    if isinstance(task, compat.MappedOperator):
        task.operator_class = wrapped(task.operator_class, section)
        if section.single:
            task._operator_name = SHOWN.format(task.operator_name)
    else:
        task.__class__ = wrapped(type(task), section)


def class_of(task: Any) -> Any:
    """Return the operator class of a task, mapped or not."""
    return task.operator_class if isinstance(task, compat.MappedOperator) else type(task)


def sections_of(task: Any) -> tuple[Section, ...]:
    """Return the sections that the body of a task runs in, the outermost first."""
    return tuple(vars(one)[MARK] for one in class_of(task).__mro__ if MARK in vars(one))


def with_last_look(task: Any, look: Callable[[], None]) -> None:
    """Have a task call `look` after its file was parsed and all edges of its DAG exist.

    Airflow then calls each task's `resolve_template_files`; the exit of a group is too early to see later edges.
    """
    made = _subclass(type(task))

    def resolve_template_files(self: Any) -> None:
        super(made, self).resolve_template_files()
        look()

    made.resolve_template_files = resolve_template_files
    task.__class__ = made


def _subclass(cls: Any) -> Any:
    """Return a subclass with the same name, made by the class's own metaclass as a class statement would do."""
    return type(cls)(
        cls.__name__, (cls,), {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    )
