"""Locked task groups: an acquire task before, a release task after, a keeper in parallel, and every task wrapped.

`wiring` decides the edges. Must not know stores. Acquire, release and keeper are made like this; their operators do
everything else:

    AcquireLockOperator(task_id="lock_acquire", spec=spec, scope=group_id, **acquire_args)
    ReleaseLockOperator(task_id="lock_release", spec=spec, acquire_id=acquire.task_id, **release_args)
    KeepLockOperator(task_id="lock_keep", spec=spec, acquire_id=acquire.task_id, release_id=release.task_id,
                     **keeper_args)
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from airflow_lockstead import config, wiring
from airflow_lockstead.compat import MappedOperator, MappedTaskGroup, TaskGroup, _TaskGroupFactory
from airflow_lockstead.spec import LockSpec, OnStaleLease, Section, check_keeper, check_templates
from airflow_lockstead.wiring import Node, Role
from airflow_lockstead.wrap import class_of, with_last_look, wrap
from lockstead.values import Duration
from lockstead.wrapping.spec import OnUnclean

ACQUIRE: Final = "lock_acquire"
RELEASE: Final = "lock_release"
KEEPER: Final = "lock_keep"


class _Locking:
    """Mixin that adds a lock to a task group, mapped or not."""

    _title = "LockedTaskGroup"

    def __init__(
        self,
        group_id: str,
        lock: str | None = None,
        *,
        key: str | None = None,
        lockstead_conn_id: str | None = None,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        purpose: str | None = None,
        expected: Duration | None = None,
        keeper: bool = True,
        on_stale_lease: OnStaleLease = "fail",
        on_unclean: OnUnclean = "warn",
        labels: Mapping[str, str] | None = None,
        mode: str | None = None,
        permits: int | None = None,
        acquire_args: Mapping[str, Any] | None = None,
        release_args: Mapping[str, Any] | None = None,
        keeper_args: Mapping[str, Any] | None = None,
        **group_args: Any,
    ) -> None:
        with _naming(group_id):
            _check_known(group_args)
            spec = LockSpec(
                lock=lock,
                key=key,
                conn_id=lockstead_conn_id,
                ttl=ttl,
                timeout=timeout,
                purpose=purpose,
                expected=expected,
                keeper=keeper,
                on_stale_lease=on_stale_lease,
                on_unclean=on_unclean,
                labels=labels or {},
                mode=mode,
                permits=permits,
            )
            check_keeper(spec, config.KEEPER_TTL_MIN.value)
        # the grid view shows the tooltip of a group
        group_args["tooltip"] = group_args.get("tooltip") or f"One lease for all tasks: {spec.lock or spec.key}"
        super().__init__(group_id=group_id, **group_args)  # type: ignore[call-arg]  # of the class that this one is mixed into
        self.spec = spec
        self._args = {ACQUIRE: acquire_args or {}, RELEASE: release_args or {}, KEEPER: keeper_args or {}}
        self._machinery: dict[str, Any] = {}
        self._known: frozenset[str] | None = None

    # --- what Airflow calls --------------------------------------------------------------------------------------

    def __enter__(self) -> Any:
        """Begin the group: tasks that are created from here on run under the lock."""
        if self._known is not None or self._machinery:
            raise ValueError(f"{self._line}: it is closed, and no lock would cover a task that is added now")
        entered = super().__enter__()  # type: ignore[misc]  # of the class that this one is mixed into
        try:
            with _naming(self._id):
                check_templates(self.spec, self._any.dag.get_template_env)
            self._make_acquire()
        except BaseException:
            # __exit__ is not called if __enter__ fails, and every later task of the file would be put into this group
            super().__exit__(None, None, None)  # type: ignore[misc]
            raise
        return entered

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: Any) -> None:
        """End the group: draw the edges, wrap the tasks."""
        try:
            if kind is None:
                self._close()
        finally:
            super().__exit__(kind, value, trace)  # type: ignore[misc]

    def add(self, task: Any) -> Any:
        """Add a task; ValueError once the group is closed."""
        if getattr(self, "_known", None) is not None:
            raise ValueError(_stranger(self._line, str(task.node_id)))
        return super().add(task)  # type: ignore[misc]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the tasks without the keeper: tasks after the group must wait for its work, not for its lease.

        A keeper ends after the release, and skips itself if there is no triggerer.
        """
        keeper = self._machinery.get(KEEPER)
        return (task for task in super().__iter__() if task is not keeper)  # type: ignore[misc]

    # --- wiring --------------------------------------------------------------------------------------------------

    @property
    def _any(self) -> Any:
        """Return this group as Airflow's class, which is unknown when types are checked without Airflow."""
        return self

    @property
    def _id(self) -> str:
        return str(self._any.group_id)

    @property
    def _line(self) -> str:
        return f"LockedTaskGroup {self._id!r}"

    def _make_acquire(self) -> None:
        from airflow_lockstead.operators import AcquireLockOperator

        # a default execution_timeout is meant for the members and would end the wait, which has its own `timeout`
        args = {"execution_timeout": None, **self._args[ACQUIRE]}
        acquire = AcquireLockOperator(task_id=ACQUIRE, spec=self.spec, scope=self._id, **args)
        self._machinery[ACQUIRE] = acquire.as_setup()

    def _close(self) -> None:
        acquire = self._machinery[ACQUIRE]
        tasks = {task.task_id: task for task in self._any.iter_tasks() if task is not acquire}
        with _naming(self._id):
            nodes = [_node(task, self._any) for task in tasks.values()]
            plan = wiring.plan(self._id, nodes, self.spec)
        release = self._make_release(acquire)
        for task_id in plan.first:
            acquire.set_downstream(tasks[task_id])
        for task_id in plan.last:
            release.set_upstream(tasks[task_id])
        is_mapped = any(isinstance(group, MappedTaskGroup) for group in _around(acquire))
        for task_id, upstream in plan.upstream.items():
            section = Section(
                self.spec,
                group_id=self._id,
                acquire_id=acquire.task_id,
                release_id=release.task_id,
                upstream=upstream,
                mapped=is_mapped,
            )
            wrap(tasks[task_id], section)
        self._known = frozenset(task.task_id for task in self._any.iter_tasks())
        with_last_look(acquire, self._look_again)
        _warn(plan.warnings)

    def _make_release(self, acquire: Any) -> Any:
        from airflow_lockstead.operators import KeepLockOperator, ReleaseLockOperator

        release = ReleaseLockOperator(
            task_id=RELEASE, spec=self.spec, acquire_id=acquire.task_id, **self._args[RELEASE]
        )
        self._machinery[RELEASE] = release.as_teardown(setups=acquire)
        if self.spec.keeper:
            # directly after a setup only all_success works; a default execution_timeout would end the renewals
            args = {"trigger_rule": "all_success", "execution_timeout": None, "weight_rule": "absolute"}
            args |= self._args[KEEPER]
            keeper = KeepLockOperator(
                task_id=KEEPER, spec=self.spec, acquire_id=acquire.task_id, release_id=release.task_id, **args
            )
            keeper.is_weighed = "priority_weight" not in self._args[KEEPER]
            self._machinery[KEEPER] = keeper
            acquire.set_downstream(keeper)
        return release

    def _look_again(self) -> None:
        """Check the group after its file was parsed: raise for tasks added since, warn about edges added since."""
        dag, acquire = self._any.dag, self._machinery[ACQUIRE]
        now = {task.task_id: task for task in self._any.iter_tasks()}
        for task_id in wiring.strangers(self._known or frozenset(), now):
            raise ValueError(_stranger(self._line, task_id))
        nodes = [_node(task, self._any) for task in now.values()]
        edges = {task.task_id: task.upstream_task_ids for task in dag.tasks}
        idle = wiring.idle_for(nodes, acquire.task_id, edges)
        _warn(tuple(wiring.idle_warning(self._id, task_id, others) for task_id, others in idle.items()))
        _weigh(dag, self._machinery.get(KEEPER))


class LockedTaskGroup(_Locking, TaskGroup):  # type: ignore[misc]  # the base class is found at run time
    """A group of tasks under one lease, on any number of workers, with its own acquire and release tasks.

    Name the lock by lock, its URL, or by key with lockstead_conn_id, the connection that names its store. All other
    parameters are those of `LockSpec` or of Airflow's TaskGroup. acquire_args, release_args and keeper_args are passed
    to the acquire, release and keeper tasks. Invalid arguments raise ValueError or TypeError, with one line, when the
    file is parsed.

    With mode="shared" each task is a reader in its own right. A writer that waits lets the tasks of the group begin, by
    the ticket, until the group is released. With permits=3 at most three such groups run at once, and all tasks of one
    have the same slot.

    There may be pauses between the tasks. A task that is cleared alone after the release finds no lease: see
    `on_stale_lease`.
    """


class _LockedMappedTaskGroup(_Locking, MappedTaskGroup):  # type: ignore[misc]  # as above
    """A mapped group under a lock: each map index acquires it separately. Made by `@locked_task_group(...)`."""


def locked_task_group(
    group_id: str | None = None, lock: str | None = None, **words: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a locked group from a function, as `@task_group` does; with `expand`, each map index has its own lease.

    The parameters are those of `LockedTaskGroup`; the default group_id is the function's name. A URL as the only
    positional argument is the lock's, since it is not a valid group_id.
    """
    if callable(group_id):
        raise TypeError("name the lock: write @locked_task_group(lock=...), or key= with lockstead_conn_id=")
    if lock is None and group_id is not None and ":" in group_id:
        group_id, lock = None, group_id
    if lock is not None:
        words["lock"] = lock
    return lambda function: _LockedFactory.of(function, words if group_id is None else {"group_id": group_id, **words})


class _LockedFactory(_TaskGroupFactory):  # type: ignore[misc]  # as above
    """Airflow's factory of task groups, changed to make locked groups."""

    @classmethod
    def of(cls, function: Callable[..., Any], words: Mapping[str, Any]) -> Any:
        """Return a factory; TypeError for parameters that neither Airflow's groups nor locked groups have."""
        ours = {name: word for name, word in words.items() if name in _OURS}
        theirs = {name: word for name, word in words.items() if name not in _OURS}
        with _naming(str(theirs.get("group_id", function.__name__))):
            _check_known(theirs)
        # Airflow's class checks its parameters against its own group's, and copies only its own fields
        made = type(cls.__name__, (cls,), {"_lock_words": ours})
        return made(function=function, tg_kwargs=theirs)

    def _create_task_group(self, tg_factory: Any, *args: Any, **kwargs: Any) -> Any:
        words: Mapping[str, Any] = self._lock_words
        if isinstance(tg_factory, partial):
            group = partial(_LockedMappedTaskGroup, **words, **tg_factory.keywords)
        else:
            group = partial(LockedTaskGroup, **words)
        return super()._create_task_group(group, *args, **kwargs)

    def override(self, **kwargs: Any) -> Any:
        """Return the same group with other parameters."""
        return _LockedFactory.of(self.function, {**self.tg_kwargs, **self._lock_words, **kwargs})


_OURS: Final = frozenset(inspect.signature(_Locking.__init__).parameters) - {"self", "group_id", "group_args"}


class _naming:  # noqa: N801 - used like a function: with _naming(group)
    """Context manager that prefixes the message of ValueError and TypeError with the group's name."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        """Raise the same error, in one line, with the group's name."""
        if isinstance(value, ValueError | TypeError):
            raise type(value)(f"LockedTaskGroup {self._group_id!r}: {value}") from None


def _check_known(words: Mapping[str, Any]) -> None:
    theirs = set(inspect.signature(TaskGroup.__init__).parameters) | {"expand_input"}
    unknown = sorted(set(words) - theirs)
    if unknown:
        known = sorted((theirs | _OURS) - {"self", "expand_input"})
        raise TypeError(f"unknown argument {unknown[0]!r}; known are {', '.join(known)}")


def _stranger(line: str, name: str) -> str:
    return f"{line}: {name!r} was added after the group was closed, and no lock would cover it; put it into the block"


def _node(task: Any, group: Any) -> Node:
    """Return what `wiring` needs to know of a task."""
    rule = task.trigger_rule
    return Node(
        task_id=task.task_id,
        upstream=frozenset(task.upstream_task_ids),
        downstream=frozenset(task.downstream_task_ids),
        role=_role(task),
        trigger_rule=str(getattr(rule, "value", rule)),
        is_teardown=bool(task.is_teardown),
        is_mapped=isinstance(task, MappedOperator),
        mapped_in=tuple(_mapped_within(task, group)),
        retries=task.retries or 0,
        retry_delay=task.retry_delay.total_seconds(),
    )


def _role(task: Any) -> Role:
    from airflow_lockstead.operators import AcquireLockOperator, KeepLockOperator, ReleaseLockOperator

    cls = class_of(task)
    if issubclass(cls, KeepLockOperator):
        return Role.KEEPER
    return Role.LOCK if issubclass(cls, AcquireLockOperator | ReleaseLockOperator) else Role.MEMBER


def _weigh(dag: Any, keeper: Any) -> None:
    """Set the priority weights of all keepers of a DAG, so that they are queued before the tasks of their groups.

    Done once per DAG, for its first keeper.
    """
    keepers = {task.task_id: task for task in dag.tasks if getattr(task, "is_weighed", False)}
    if keeper is not next(iter(keepers.values()), None):
        return
    others = {task.task_id: task for task in dag.tasks if task.task_id not in keepers}
    found = wiring.keeper_weights(
        {task_id: task.priority_weight for task_id, task in others.items()},
        {task_id: task.downstream_task_ids & others.keys() for task_id, task in others.items()},
        {keeper_id: task.acquire_id for keeper_id, task in keepers.items()},
    )
    for keeper_id, weight in found.items():
        keepers[keeper_id].priority_weight = weight


def _around(task: Any) -> Iterator[Any]:
    """Yield the groups that contain a task, the innermost first."""
    group = task.task_group
    while group is not None and group.group_id is not None:
        # Airflow returns weak proxies of its groups: isinstance works on them, `is` does not
        yield group
        group = group.task_group


def _mapped_within(task: Any, group: Any) -> list[str]:
    found = []
    for around in _around(task):
        if around.group_id == group.group_id:
            break
        if isinstance(around, MappedTaskGroup):
            found.append(str(around.group_id))
    return found[::-1]


def _warn(lines: tuple[str, ...]) -> None:
    for line in lines:
        warnings.warn(line, UserWarning, stacklevel=2)
