"""What a locked group is to a DAG: acquire before, release behind, a keeper beside, and every task wrapped.

Carries out what `wiring` says. Must not know stores. Acquire, release and keeper are made like this, and everything
else about them is theirs:

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
    """What a group, mapped or not, becomes with a lock around it."""

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
            )
            check_keeper(spec, config.KEEPER_TTL_MIN.value)
        # what the grid shows of a group
        group_args["tooltip"] = group_args.get("tooltip") or f"One lease for all tasks: {spec.lock or spec.key}"
        super().__init__(group_id=group_id, **group_args)  # type: ignore[call-arg]  # as below
        self.spec = spec
        self._args = {ACQUIRE: acquire_args or {}, RELEASE: release_args or {}, KEEPER: keeper_args or {}}
        self._machinery: dict[str, Any] = {}
        self._known: frozenset[str] | None = None

    # --- what Airflow calls --------------------------------------------------------------------------------------

    def __enter__(self) -> Any:
        """Begin the group: what is made from here on runs under the lock."""
        if self._known is not None or self._machinery:
            raise ValueError(f"{self._line}: it was closed before, and no lock would cover what is added now")
        entered = super().__enter__()  # type: ignore[misc]  # of the class that this one is mixed into
        try:
            with _naming(self._id):
                check_templates(self.spec, self._any.dag.get_template_env)
            self._make_acquire()
        except BaseException:
            # who fails to enter is not left either, and every later task of the file would go into this group
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
        """Take a task in; ValueError once the group is closed."""
        if getattr(self, "_known", None) is not None:
            raise ValueError(_stranger(self._line, str(task.node_id)))
        return super().add(task)  # type: ignore[misc]

    def __iter__(self) -> Iterator[Any]:
        """Go through the tasks, the keeper left out: what follows the group must wait for its work, not for its lease.

        A keeper ends after the release, and skips itself where there is no triggerer.
        """
        keeper = self._machinery.get(KEEPER)
        return (task for task in super().__iter__() if task is not keeper)  # type: ignore[misc]

    # --- what is done --------------------------------------------------------------------------------------------

    @property
    def _any(self) -> Any:
        """This group as Airflow's class, which is not known to who checks types without Airflow."""
        return self

    @property
    def _id(self) -> str:
        return str(self._any.group_id)

    @property
    def _line(self) -> str:
        return f"LockedTaskGroup {self._id!r}"

    def _make_acquire(self) -> None:
        from airflow_lockstead.operators import AcquireLockOperator

        # a time-out that is meant for the members would end the wait; the wait's own is `timeout`
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
            # directly behind a setup only all_success will do, and a time-out of the members' would end the keeping
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
        """Look at the group once its file is parsed: at tasks that came later, and at edges that did."""
        dag, acquire = self._any.dag, self._machinery[ACQUIRE]
        now = {task.task_id: task for task in self._any.iter_tasks()}
        for task_id in wiring.strangers(self._known or frozenset(), now):
            raise ValueError(_stranger(self._line, task_id))
        nodes = [_node(task, self._any) for task in now.values()]
        edges = {task.task_id: task.upstream_task_ids for task in dag.tasks}
        idle = wiring.idle_for(nodes, acquire.task_id, edges)
        _warn(tuple(wiring.idle_warning(self._id, task_id, others) for task_id, others in idle.items()))
        _weigh(dag, self._machinery.get(KEEPER))


class LockedTaskGroup(_Locking, TaskGroup):  # type: ignore[misc]  # a class that is found when Airflow is there
    """A group of tasks under one lease, on however many workers; acquire and release come with it.

    Name the lock by lock, its URL, or by key with lockstead_conn_id, the connection that names its store. All other
    words are those of `LockSpec`, or of Airflow's TaskGroup. acquire_args, release_args and keeper_args go to the tasks
    of that kind. Raises ValueError or TypeError, with one line, for what cannot be, when the file is parsed.

    It does not promise that the tasks run without a pause between them, nor that a task that is cleared alone after
    the release finds a lease: see `on_stale_lease`.
    """


class _LockedMappedTaskGroup(_Locking, MappedTaskGroup):  # type: ignore[misc]  # as above
    """A mapped group under a lock: each map index acquires it for itself. Made by `@locked_task_group(...)`."""


def locked_task_group(
    group_id: str | None = None, lock: str | None = None, **words: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a locked group of a function, as `@task_group` makes a group; `expand` gives each map index its own lease.

    Words as of `LockedTaskGroup`; without a group_id it is called like the function. A URL that stands alone is the
    lock's: no group could be called so.
    """
    if callable(group_id):
        raise TypeError("name the lock: write @locked_task_group(lock=...), or key= with lockstead_conn_id=")
    if lock is None and group_id is not None and ":" in group_id:
        group_id, lock = None, group_id
    if lock is not None:
        words["lock"] = lock
    return lambda function: _LockedFactory.of(function, words if group_id is None else {"group_id": group_id, **words})


class _LockedFactory(_TaskGroupFactory):  # type: ignore[misc]  # as above
    """Airflow's factory of groups, which makes ours."""

    @classmethod
    def of(cls, function: Callable[..., Any], words: Mapping[str, Any]) -> Any:
        """Make a factory; TypeError for words that neither Airflow's groups nor ours know."""
        ours = {name: word for name, word in words.items() if name in _OURS}
        theirs = {name: word for name, word in words.items() if name not in _OURS}
        with _naming(str(theirs.get("group_id", function.__name__))):
            _check_known(theirs)
        # Airflow's own class checks its words against those of its own group, and is copied by its own fields alone
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
        """Return the same group with other words."""
        return _LockedFactory.of(self.function, {**self.tg_kwargs, **self._lock_words, **kwargs})


_OURS: Final = frozenset(inspect.signature(_Locking.__init__).parameters) - {"self", "group_id", "group_args"}


class _naming:  # noqa: N801 - reads as a word: with _naming(group)
    """Name the group in front of what is wrong with it."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id

    def __enter__(self) -> None:
        """Nothing is done."""

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        """Say the same in one line with the group's name."""
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
    """Read what `wiring` has to know of a task."""
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
    """Have the keepers of a DAG queued before the tasks of their groups; once for all, when the first is looked at."""
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
    """Go through the groups that a task stands in, the innermost first."""
    group = task.task_group
    while group is not None and group.group_id is not None:
        # Airflow keeps its groups behind weak proxies, of which isinstance sees the class and `is` does not
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
